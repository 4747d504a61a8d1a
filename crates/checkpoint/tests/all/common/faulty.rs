//! A disk that fails.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use unisono_checkpoint::{Disk, Sink, StdDisk, Syncing};

/// Fails operation number `first`, with what that means for those after it.
#[derive(Debug)]
pub struct Faulty {
    done: Arc<AtomicUsize>,
    reads: Arc<AtomicUsize>,
    first: usize,
    /// The number of the read that fails, if one is to.
    first_read: Option<usize>,
    then: Then,
}

/// What the failure of an operation means for others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Then {
    /// No other operation fails.
    GoesOn,
    /// All later operations fail too, as if the process had died.
    Dies,
    /// The process dies.
    Kills,
}

impl Faulty {
    pub fn new(first: usize, then: Then) -> Self {
        Self { done: Arc::default(), reads: Arc::default(), first, first_read: None, then }
    }

    /// Fails to read one file, number `first`, in passing.
    pub fn reading(first: usize) -> Self {
        Self { first_read: Some(first), ..Self::new(usize::MAX, Then::GoesOn) }
    }

    /// Returns the number of operations so far.
    pub fn done(&self) -> usize {
        self.done.load(SeqCst)
    }

    /// Returns the number of files that were read so far.
    pub fn reads(&self) -> usize {
        self.reads.load(SeqCst)
    }

    fn step(&self) -> io::Result<()> {
        let now = self.done.fetch_add(1, SeqCst);
        let fails = now == self.first || self.then == Then::Dies && now > self.first;
        if fails { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    /// Ends the process after half of an operation was done.
    fn end(&self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() && self.then == Then::Kills {
            std::process::abort();
        }
        result
    }

    fn whole(&self) -> io::Result<()> {
        self.end(self.step())
    }
}

impl Disk for Faulty {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole().and_then(|()| StdDisk.create_dir(dir))
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        self.whole()?;
        let faults = Faulty { done: self.done.clone(), reads: self.reads.clone(), ..*self };
        Ok(Box::new(FaultySink { faults, sink: StdDisk.create(file)? }))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole().and_then(|()| StdDisk.sync_dir(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole().and_then(|()| StdDisk.rename(from, to))
    }
    /// Ends the process in the middle: some files are removed and some are not.
    fn remove(&self, path: &Path) -> io::Result<()> {
        let result = self.step();
        if result.is_err() && path.is_dir() {
            let files = StdDisk.list(path)?;
            files.iter().take(2).try_for_each(|file| StdDisk.remove(&path.join(file)))?;
        }
        self.end(result).and_then(|()| StdDisk.remove(path))
    }
    fn is_dir(&self, path: &Path) -> bool {
        StdDisk.is_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.whole().and_then(|()| StdDisk.list(dir))
    }
    fn size(&self, file: &Path) -> io::Result<u64> {
        StdDisk.size(file)
    }
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        let now = self.reads.fetch_add(1, SeqCst);
        if self.first_read == Some(now) { Err(io::Error::other("injected")) } else { StdDisk.read(file) }
    }
}

struct FaultySink {
    faults: Faulty,
    sink: Box<dyn Sink>,
}

impl Write for FaultySink {
    /// A write that fails has written half of its bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.faults.step();
        if result.is_err() {
            self.sink.write_all(&bytes[..bytes.len() / 2])?;
        }
        self.faults.end(result).and_then(|()| self.sink.write(bytes))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

impl Sink for FaultySink {
    fn sync(self: Box<Self>) -> Syncing {
        let begun = self.faults.whole().map(|()| self.sink.sync());
        Syncing::new(|| begun?.wait())
    }
}
