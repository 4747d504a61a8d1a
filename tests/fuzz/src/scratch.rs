//! A directory for the files that readers read, in memory where the system has such a place.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes a directory.
    ///
    /// # Panics
    /// There is no place for one.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        Self(dir.expect("a temporary directory"))
    }

    /// Returns the path of a name in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and the directory that it is in. Returns its path.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        if fs::write(&path, bytes).is_err() {
            fs::create_dir_all(path.parent().unwrap_or(&path)).expect("a directory");
            fs::write(&path, bytes).expect("a file");
        }
        path
    }

    /// Removes what a name stands for, if there is anything.
    ///
    /// # Panics
    /// It cannot be removed.
    pub fn remove(&self, name: &str) {
        let path = self.path(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(&path).expect("a directory that can be removed");
        }
    }
}

/// Splits off the first byte, which says how the others are read.
pub(crate) fn flags(bytes: &[u8]) -> (u8, &[u8]) {
    bytes.split_first().map_or((0, bytes), |(&flags, rest)| (flags, rest))
}
