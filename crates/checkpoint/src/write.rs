//! Files that are whole or not there.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use sha2::{Digest, Sha256};

use crate::digest::hex;
use crate::disk::{Disk, Sink, StdDisk};
use crate::error::{Result, broken, io};
use crate::format::Encoded;
use crate::manifest::Entry;
use crate::tensor::Tensors;

/// Files of so many bytes are hashed while they are written.
const LARGE: usize = 1 << 20;

/// Writes tensors as a plain safetensors file: beside it first (`.NAME.tmp`), then, when it is durable, renamed into
/// place. Equal tensors make equal files, byte for byte.
pub fn write_model(path: impl AsRef<Path>, tensors: &Tensors) -> Result<()> {
    replace_model(&StdDisk, path.as_ref(), tensors)
}

pub(crate) fn replace_model(disk: &dyn Disk, path: &Path, tensors: &Tensors) -> Result<()> {
    replace_file(disk, path, Encoded::new(tensors)?.parts()).map(drop)
}

/// Writes a file that is the old one or the new one, whatever happens.
pub(crate) fn replace_file<'a>(
    disk: &dyn Disk,
    path: &Path,
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<Entry> {
    let Some(name) = path.file_name() else {
        return Err(broken(path, "names no file"));
    };
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let written = write_file(disk, &temporary, parts).and_then(|entry| {
        disk.rename(&temporary, path).map_err(io(path, "move the finished file here"))?;
        Ok(Entry { name: name.into_owned(), ..entry })
    });
    match written {
        Ok(entry) => sync_dir(disk, &parent(path)).map(|()| entry),
        Err(error) => {
            // The error that is reported is the one that matters.
            let _ = disk.remove(&temporary);
            Err(error)
        }
    }
}

/// Writes and syncs one file, and says what was written.
pub(crate) fn write_file<'a>(
    disk: &dyn Disk,
    path: &Path,
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<Entry> {
    let parts: Vec<&[u8]> = parts.collect();
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let write = || {
        let mut sink: Box<dyn Sink> = disk.create(path).map_err(io(path, "create"))?;
        parts.iter().try_for_each(|part| sink.write_all(part)).map_err(io(path, "write"))?;
        sink.sync().map_err(io(path, "sync"))
    };
    let sha256 = match bytes {
        ..LARGE => write().map(|()| hash(&parts)),
        _ => thread::scope(|scope| {
            // Hashing takes as long as a fast disk does; where there is no second thread to be had, one after the other.
            let hashing = thread::Builder::new().name("sha256".into()).spawn_scoped(scope, || hash(&parts));
            write()
                .map(|()| hashing.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(|| hash(&parts)))
        }),
    }?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Entry { name, bytes: bytes as u64, sha256 })
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hex(&hash.finalize())
}

/// Makes a directory, and those above it, durable from the first that is new.
pub(crate) fn create_dirs(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if disk.is_dir(dir) {
        return Ok(());
    }
    let above = parent(dir);
    if above != dir {
        create_dirs(disk, &above)?;
    }
    match disk.create_dir(dir) {
        Err(_) if disk.is_dir(dir) => Ok(()),
        result => result.map_err(io(dir, "create a directory")).and_then(|()| sync_dir(disk, &above)),
    }
}

/// Writes and removes a small file, to learn now what would go wrong later.
pub(crate) fn probe(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let path = dir.join(".tmp-probe");
    let written = write_file(disk, &path, std::iter::once(&b"can this be written?\n"[..]));
    let removed = disk.remove(&path).map_err(io(&path, "remove"));
    written.and(removed)
}

pub(crate) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    disk.sync_dir(dir).map_err(io(dir, "sync"))
}

/// The directory something is in: `.` for a bare name, itself for a root.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}
