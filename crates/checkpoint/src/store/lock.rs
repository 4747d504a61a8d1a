//! The lock: a directory has one owner at a time.

#[cfg(unix)]
use std::fs;
use std::fs::{File, TryLockError};
use std::path::Path;

use crate::disk::Disk;
use crate::tensors::error::{Error, Result, io};

/// Holds a directory for one store. The system releases it when the owner dies, however it dies, so the lock
/// file itself stays and its presence means nothing.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// What the system knows the directory by that the file was opened in, where it can be asked.
    dir: Option<(u64, u64)>,
}

impl Lock {
    /// Opens the file and locks it. A link or a pipe in its place is an error.
    pub(crate) fn acquire(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.lock_file(path).map_err(io(path, "open"))?;
        let dir = path.parent().and_then(number_of);
        match file.try_lock() {
            Ok(()) => Ok(Self { file, dir }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(reason)) => Err(io(path, "lock")(reason)),
        }
    }

    /// Whether a directory is the one that the lock was acquired in, as far as is known.
    pub(crate) fn is_of(&self, dir: &Path) -> bool {
        self.dir.is_some() && self.dir == number_of(dir)
    }

    /// Whether the lock is still the one that a second run would meet at the path. It is not if the directory
    /// was removed or moved, or if another was mounted over it.
    pub(crate) fn is_at(&self, disk: &dyn Disk, path: &Path) -> bool {
        disk.is_lock_file(&self.file, path)
    }
}

/// Returns the numbers of the device and of the file by which the system knows a directory.
#[cfg(unix)]
fn number_of(dir: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn number_of(_dir: &Path) -> Option<(u64, u64)> {
    None
}

impl Drop for Lock {
    /// Releases the lock. Closing the file is not enough: a process that another thread is just starting has
    /// a copy of it for a moment.
    fn drop(&mut self) {
        // An error could not be reported, and closing releases the lock a moment later.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::StdDisk;

    #[test]
    fn a_lock_that_is_dropped_is_free_though_a_copy_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::acquire(&StdDisk, &path).unwrap();
        assert!(matches!(Lock::acquire(&StdDisk, &path), Err(Error::Locked { .. })));
        // This is the copy that a process has which is being started.
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        Lock::acquire(&StdDisk, &path).unwrap();
        drop(copy);
    }
}
