//! Copies of checkpoints that another store has made, such as that of another machine.

use std::path::Path;

use crate::disk::write::{sync_dir, write_file, write_files};
use crate::store::manifest::Manifest;
use crate::store::names::{CHECKPOINTS, MANIFEST};
use crate::store::{Saved, Store};
use crate::tensors::error::{Result, broken, io};

impl Store {
    /// Saves a copy of a checkpoint that another store has made, given its files, each with its name. The
    /// copy is the same byte for byte. As of [`Store::save`], it is complete and durable when this returns,
    /// and until then its name does not exist.
    ///
    /// What [`Store::save`] says of checkpoints of the same step, of later ones and of broken ones holds
    /// here. No older checkpoint is removed before the next save, and the copy is not trusted.
    ///
    /// # Errors
    /// The files are not those of a complete checkpoint, by the sizes and hashes in its manifest;
    /// [`Error::Behind`](crate::Error::Behind); the copy cannot be written.
    pub fn save_copy(&mut self, files: &[(&str, &[u8])]) -> Result<Saved> {
        let path = self.dir.join(CHECKPOINTS).join(MANIFEST);
        let text = file(files, MANIFEST).ok_or_else(|| broken(&path, "is not among the files of a copy"))?;
        let manifest = Manifest::parse(&path, text)?;
        let write = |store: &Self, temporary: &Path| store.write_copy(temporary, &manifest, text, files);
        self.place(manifest.step, |_, _| Ok(Vec::new()), write)
    }

    fn write_copy(
        &self,
        temporary: &Path,
        manifest: &Manifest,
        text: &[u8],
        files: &[(&str, &[u8])],
    ) -> Result<()> {
        let disk = &*self.disk;
        let mut parts = Vec::new();
        for entry in &manifest.files {
            let path = temporary.join(&entry.name);
            let bytes = file(files, &entry.name);
            let bytes = bytes.ok_or_else(|| broken(&path, "is not among the files of a copy"))?;
            parts.push((path, vec![bytes]));
        }
        disk.create_dir(temporary).map_err(io(temporary, "create a directory"))?;
        if write_files(disk, &parts)? != manifest.files {
            return Err(broken(temporary, "the files of a copy are not those that its manifest lists"));
        }
        write_file(disk, &temporary.join(MANIFEST), std::iter::once(text))?;
        sync_dir(disk, temporary)
    }
}

/// Returns the bytes of a file.
fn file<'a>(files: &[(&str, &'a [u8])], name: &str) -> Option<&'a [u8]> {
    files.iter().find(|(own, _)| *own == name).map(|(_, bytes)| *bytes)
}
