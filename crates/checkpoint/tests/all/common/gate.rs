//! A disk on which saves wait until a gate opens, or fail for a reason that passes.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use unisono_checkpoint::{Disk, Sink, StdDisk};

#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    waiting: usize,
    error: Option<ErrorKind>,
}

impl Gate {
    pub fn close(&self) {
        self.set(|inner| inner.closed = true);
    }

    pub fn open(&self) {
        self.set(|inner| inner.closed = false);
    }

    /// Makes writing files fail for this reason, or succeed again for `None`.
    pub fn fail(&self, error: Option<ErrorKind>) {
        self.set(|inner| inner.error = error);
    }

    /// Waits until a save stands before the closed gate.
    pub fn await_arrival(&self) {
        let (inner, changed) = &*self.0;
        drop(changed.wait_while(inner.lock().unwrap(), |inner| inner.waiting == 0).unwrap());
    }

    fn set(&self, change: impl FnOnce(&mut Inner)) {
        let (inner, changed) = &*self.0;
        change(&mut inner.lock().unwrap());
        changed.notify_all();
    }

    fn pass(&self) {
        let (inner, changed) = &*self.0;
        let mut inner = inner.lock().unwrap();
        inner.waiting += 1;
        changed.notify_all();
        let mut inner = changed.wait_while(inner, |inner| inner.closed).unwrap();
        inner.waiting -= 1;
    }
}

impl Disk for Gate {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.pass();
        StdDisk.create_dir(dir)
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        match self.0.0.lock().unwrap().error {
            Some(kind) => Err(kind.into()),
            None => StdDisk.create(file),
        }
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
