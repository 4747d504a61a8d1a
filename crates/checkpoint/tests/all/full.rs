//! Disks that fill up in the middle of saves: the save is an error that may pass, what was complete stays,
//! and when there is room again the next save succeeds.
//!
//! Twelve trials, or 50 with `UNISONO_LONG`.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::common::random::Random;
use crate::common::{contents, names};
use unisono_checkpoint::{Disk, Error, Options, Sink, StdDisk, Store, Syncing, newest};

/// A disk with room for so many more bytes. A directory or a file counts for some beside what it holds.
#[derive(Debug, Clone)]
struct Small(Arc<AtomicUsize>);

impl Small {
    /// Takes room for bytes, or as much as there is.
    fn take(&self, bytes: usize) -> usize {
        let left = self.0.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(bytes)));
        left.unwrap_or_default().min(bytes)
    }

    fn entry(&self) -> io::Result<()> {
        if self.take(40) == 40 { Ok(()) } else { Err(ErrorKind::StorageFull.into()) }
    }
}

impl Disk for Small {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.entry().and_then(|()| StdDisk.create_dir(dir))
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        self.entry()?;
        Ok(Box::new(SmallSink { disk: self.clone(), sink: StdDisk.create(file)? }))
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

struct SmallSink {
    disk: Small,
    sink: Box<dyn Sink>,
}

impl Write for SmallSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.disk.take(bytes.len()) {
            0 if !bytes.is_empty() => Err(ErrorKind::StorageFull.into()),
            room => self.sink.write_all(&bytes[..room]).map(|()| room),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

impl Sink for SmallSink {
    fn sync(self: Box<Self>) -> Syncing {
        self.sink.sync()
    }
}

#[test]
fn a_disk_that_fills_up_loses_nothing() {
    let trials = if std::env::var_os("UNISONO_LONG").is_some() { 50 } else { 12 };
    let mut full = 0;
    for seed in 0..trials {
        let mut random = Random(seed);
        let dir = tempfile::tempdir().unwrap();
        let disk = Small(Arc::new(AtomicUsize::new(usize::MAX)));
        let options = Options::default().keep(2);
        let mut store = Store::open_with(dir.path(), options, Arc::new(disk.clone())).unwrap();
        store.save(1, &contents(1)).unwrap();
        let mut newest_step = 1;
        for step in 2..12 {
            disk.0.store(random.below(3000), SeqCst);
            match store.save(step, &contents(step)) {
                Ok(_) => newest_step = step,
                Err(error) => {
                    full += 1;
                    assert!(matches!(&error, Error::Io { .. }) && error.may_pass(), "seed {seed}: {error}");
                }
            }
            let found = newest(dir.path()).unwrap().unwrap();
            assert_eq!((found.step, found.contents), (newest_step, contents(newest_step)), "seed {seed}");
            assert!(found.skipped.is_empty(), "seed {seed}: {:?}", found.skipped);
            let left = names(&dir.path().join("checkpoints"));
            assert!(left.iter().all(|name| name.starts_with("step-")), "seed {seed}: {left:?}");
        }
        disk.0.store(usize::MAX, SeqCst);
        store.save(12, &contents(12)).unwrap();
        assert_eq!(newest(dir.path()).unwrap().unwrap().step, 12);
    }
    assert!(full > trials as usize, "{full} full disks");
}
