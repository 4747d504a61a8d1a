//! A disk of its own that keeps the file by which a run is locked somewhere else.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::contents;
use unisono_checkpoint::{Disk, Error, Options, Sink, StdDisk, Store};

/// The machine's own file system, whose lock is a file elsewhere.
#[derive(Debug)]
struct LockedElsewhere(PathBuf);

impl Disk for LockedElsewhere {
    fn lock_file(&self, _: &Path) -> io::Result<File> {
        StdDisk.lock_file(&self.0)
    }
    fn is_lock_file(&self, held: &File, _: &Path) -> bool {
        StdDisk.is_lock_file(held, &self.0)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        StdDisk.create_dir(dir)
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        StdDisk.create(file)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        StdDisk.sync_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        StdDisk.remove(path)
    }
    fn is_dir(&self, path: &Path) -> bool {
        StdDisk.is_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        StdDisk.list(dir)
    }
    fn size(&self, file: &Path) -> io::Result<u64> {
        StdDisk.size(file)
    }
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        StdDisk.read(file)
    }
}

#[test]
fn a_run_is_locked_by_a_file_of_its_disk() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lock = elsewhere.path().join("lock");
    let disk = Arc::new(LockedElsewhere(lock.clone()));
    let open = || Store::open_with(dir.path(), Options::default(), disk.clone());
    let mut store = open().unwrap();
    for step in [1, 2] {
        assert_eq!(store.save(step, &contents(step)).unwrap().reopened, None);
        assert_eq!(store.trust(step).unwrap(), Some(step));
    }
    assert!(!dir.path().join(".lock").exists());
    assert!(matches!(open(), Err(Error::Locked { .. })));
    std::fs::remove_file(&lock).unwrap();
    assert!(store.trust(2).is_err(), "another run may hold another file");
    store.save(3, &contents(3)).unwrap();
    assert!(lock.exists() && matches!(open(), Err(Error::Locked { .. })));
}
