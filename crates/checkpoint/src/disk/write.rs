//! Writing files that are complete or not there.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use sha2::{Digest, Sha256};

use crate::disk::listed::Entry;
use crate::disk::temporary::{EXPORT, PROBE, temporary_name};
use crate::disk::{Disk, StdDisk, Syncing};
use crate::tensors::digest::hex;
use crate::tensors::encoded::Encoded;
use crate::tensors::error::{Result, broken, io};
use crate::tensors::tensor::Tensors;

/// Files of at least this many bytes are hashed while they are written.
const LARGE: usize = 1 << 20;

/// Writes tensors as a plain safetensors file: first beside it, under a name that nobody can guess, then,
/// once that is durable, renamed into place. A link at the path is replaced, not followed. Equal tensors make
/// equal files, byte for byte.
///
/// A process that is killed here may leave `.tmp-export-` and 16 hex digits in the file's directory. No run
/// needs it.
///
/// # Errors
/// The path names no file, or something else than a regular file or a link is there
/// ([`check_replaceable`]); a tensor is called `__metadata__`, or the header would be longer than readers
/// accept; the file cannot be written, moved to its place or made durable.
pub fn write_model(path: impl AsRef<Path>, tensors: &Tensors) -> Result<()> {
    let path = path.as_ref();
    check_replaceable(path)?;
    replace_model(&*beside(path)?, path, EXPORT, tensors)
}

/// Writes tensors as [`write_model`] does, and `format` in the file's metadata. The format of PyTorch's
/// tensors is `pt`. Some versions of Hugging Face's transformers refuse files without it.
///
/// # Errors
/// Those of [`write_model`].
pub fn write_model_of_format(path: impl AsRef<Path>, tensors: &Tensors, format: &str) -> Result<()> {
    let path = path.as_ref();
    check_replaceable(path)?;
    replace_file(&*beside(path)?, path, EXPORT, Encoded::with_format(tensors, Some(format))?.parts())
        .map(drop)
}

/// Writes a file as a whole, as [`write_model`] does: a link at the path is replaced and not followed, and
/// the file that was there stays until the new one is durable. The bytes are
/// those of the parts, one behind the other.
///
/// # Errors
/// The file cannot be written, or something else than a regular file or a link is there, with its path.
pub fn write_whole(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    let path = path.as_ref();
    check_replaceable(path)?;
    replace_file(&*beside(path)?, path, EXPORT, parts.iter().copied()).map(drop)
}

/// Checks that a file may be written at a path: that nothing is there, or a regular file or a link, which is
/// replaced. A device, a pipe, a socket or a directory stays as it is.
///
/// # Errors
/// Something else is there, with its path.
pub fn check_replaceable(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() || found.is_symlink() => Ok(()),
        Ok(found) if found.is_dir() => Err(broken(path, "is a directory, not a file to be replaced")),
        Ok(_) => Err(broken(path, "is a device, a pipe or a socket, which is not replaced by a file")),
        // What keeps it from being looked at keeps it from being written.
        Err(_) => Ok(()),
    }
}

/// Returns the disk that keeps to the directory which a path is in.
pub(crate) fn beside(path: &Path) -> Result<Arc<dyn Disk>> {
    let dir = parent(path);
    let anchored = StdDisk.anchored(&dir, true).map_err(io(&dir, "write into this directory"))?;
    Ok(anchored.unwrap_or_else(|| Arc::new(StdDisk)))
}

pub(crate) fn replace_model(disk: &dyn Disk, path: &Path, what: &str, tensors: &Tensors) -> Result<()> {
    replace_file(disk, path, what, Encoded::new(tensors)?.parts()).map(drop)
}

/// Writes a file so that, whatever happens, the old one or the new one is there. `what` is the temporary
/// file's kind, [`EXPORT`] or, under the lock of a run's directory, [`FILE`](crate::disk::temporary::FILE).
pub(crate) fn replace_file<'a>(
    disk: &dyn Disk,
    path: &Path,
    what: &str,
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<Entry> {
    let Some(name) = path.file_name() else {
        return Err(broken(path, "names no file"));
    };
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(temporary_name(disk, what));
    let written = write_file(disk, &temporary, parts).and_then(|entry| {
        disk.rename(&temporary, path).map_err(io(path, "move the finished file here"))?;
        Ok(Entry { name: name.into_owned(), ..entry })
    });
    match written {
        Ok(entry) => sync_dir(disk, &parent(path)).map(|()| entry),
        Err(error) => {
            // The error that is reported is that of writing. The name is this call's own, so what has it, if
            // anything, is what was begun here.
            let _ = disk.remove(&temporary);
            Err(error)
        }
    }
}

/// Writes and syncs one file. Returns what was written.
pub(crate) fn write_file<'a>(
    disk: &dyn Disk,
    path: &Path,
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<Entry> {
    let parts = parts.collect();
    thread::scope(|scope| Writing::begin(scope, disk, path, &parts)?.finish())
}

/// Writes files one after the other, each while those before it are still hashed and on their way to the
/// disk. When this returns, all are durable.
pub(crate) fn write_files(disk: &dyn Disk, files: &[(PathBuf, Vec<&[u8]>)]) -> Result<Vec<Entry>> {
    thread::scope(|scope| {
        let mut begun = Vec::new();
        for (path, parts) in files {
            begun.push(Writing::begin(scope, disk, path, parts));
            if matches!(begun.last(), Some(Err(_))) {
                break;
            }
        }
        // All must be finished before an error is returned, because the caller then cleans up, and no thread
        // may still write.
        let done: Vec<Result<Entry>> =
            begun.into_iter().map(|writing| writing.and_then(Writing::finish)).collect();
        done.into_iter().collect()
    })
}

/// A file that is written, but perhaps not yet hashed and durable.
struct Writing<'scope> {
    path: &'scope Path,
    parts: &'scope [&'scope [u8]],
    /// The thread that hashes, if there is one: hashing takes as long as a fast disk does.
    hashing: Option<thread::ScopedJoinHandle<'scope, String>>,
    syncing: Syncing,
}

impl<'scope> Writing<'scope> {
    fn begin<'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        disk: &dyn Disk,
        path: &'env Path,
        parts: &'env Vec<&'env [u8]>,
    ) -> Result<Self> {
        let large = parts.iter().map(|part| part.len()).sum::<usize>() >= LARGE;
        let thread = || thread::Builder::new().name("sha256".into());
        let hashing = large.then(|| thread().spawn_scoped(scope, || hash(parts)).ok()).flatten();
        let mut sink = disk.create(path).map_err(io(path, "create"))?;
        parts.iter().try_for_each(|part| sink.write_all(part)).map_err(io(path, "write"))?;
        Ok(Self { path, parts, hashing, syncing: sink.sync() })
    }

    fn finish(self) -> Result<Entry> {
        let Self { path, parts, hashing, syncing } = self;
        let sha256 = hashing.and_then(|thread| thread.join().ok()).unwrap_or_else(|| hash(parts));
        syncing.wait().map_err(io(path, "sync"))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Entry { name, bytes: parts.iter().map(|part| part.len() as u64).sum(), sha256 })
    }
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hex(&hash.finalize())
}

/// Makes a directory and those above it, and makes them durable from the first that is new.
///
/// # Errors
/// A directory can be neither found nor made, or not be made durable.
pub fn create_dirs(disk: &dyn Disk, dir: &Path) -> Result<()> {
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

/// Writes and removes a small file, to find errors now that would occur later.
pub(crate) fn probe(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let path = dir.join(temporary_name(disk, PROBE));
    let written = write_file(disk, &path, std::iter::once(&b"can this be written?\n"[..]));
    let removed = disk.remove(&path).map_err(io(&path, "remove"));
    written.and(removed)
}

pub(crate) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    disk.sync_dir(dir).map_err(io(dir, "sync"))
}

/// Returns the directory that a path is in: `.` for a bare name, the root itself for a root.
pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}
