//! "The directory either holds a complete checkpoint or does not exist": every operation of a save fails in turn.

mod common;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::contents;
use unisono_checkpoint::{Disk, Options, Sink, StdDisk, Store, newest, read_tensors, write_model};

/// Fails operation number `first`, and those after it when the process is meant to have died.
#[derive(Debug)]
struct Faulty {
    done: Arc<AtomicUsize>,
    first: usize,
    dies: bool,
}

impl Faulty {
    fn new(first: usize, dies: bool) -> Self {
        Self { done: Arc::default(), first, dies }
    }

    fn step(&self) -> io::Result<()> {
        let now = self.done.fetch_add(1, SeqCst);
        let fails = now == self.first || self.dies && now > self.first;
        if fails { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

impl Disk for Faulty {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.step().and_then(|()| StdDisk.create_dir(dir))
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        self.step()?;
        let faults = Faulty { done: self.done.clone(), ..*self };
        Ok(Box::new(FaultySink { faults, sink: StdDisk.create(file)? }))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step().and_then(|()| StdDisk.sync_dir(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step().and_then(|()| StdDisk.rename(from, to))
    }
    /// Dies in the middle: some files are gone and some are not.
    fn remove(&self, path: &Path) -> io::Result<()> {
        let result = self.step();
        if result.is_err() && path.is_dir() {
            let files = StdDisk.list(path)?;
            files.iter().take(2).try_for_each(|file| StdDisk.remove(&path.join(file)))?;
        }
        result.and_then(|()| StdDisk.remove(path))
    }
    fn is_dir(&self, path: &Path) -> bool {
        StdDisk.is_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.step().and_then(|()| StdDisk.list(dir))
    }
    fn size(&self, file: &Path) -> io::Result<u64> {
        StdDisk.size(file)
    }
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        StdDisk.read(file)
    }
}

struct FaultySink {
    faults: Faulty,
    sink: Box<dyn Sink>,
}

impl Write for FaultySink {
    /// A write that fails has written half.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.faults.step() {
            self.sink.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.sink.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

impl Sink for FaultySink {
    fn sync(self: Box<Self>) -> io::Result<()> {
        self.faults.step().and_then(|()| self.sink.sync())
    }
}

/// Saves `step` over checkpoints of steps 1 and 2, failing at one operation after the other of opening and saving.
fn every_fault(step: u64, dies: bool) {
    let options = Options { keep: 2, ..Options::default() };
    let before = contents(2);
    let mut after = contents(step);
    after.trainer["again"] = true.into();
    let mut outcomes = [0, 0];
    for fault in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open_with(dir.path(), options.clone(), Arc::new(StdDisk)).unwrap();
        store.save(1, &contents(1)).unwrap();
        store.save(2, &before).unwrap();
        drop(store);

        let disk = Arc::new(Faulty::new(fault, dies));
        let saved = Store::open_with(dir.path(), options.clone(), disk.clone())
            .and_then(|mut store| store.save(step, &after));

        // As a reader finds it, with nothing cleaned up: what is there is whole, and whole is what was saved.
        let found = newest(dir.path()).unwrap().expect("a complete checkpoint");
        assert_eq!(found.skipped, [], "fault {fault}: a partial checkpoint");
        let is_new = found.contents == after;
        assert!(is_new && found.step == step || found.contents == before && found.step == 2, "fault {fault}");
        assert!(is_new || saved.is_err(), "fault {fault}: said to be saved, and was not");
        outcomes[usize::from(is_new)] += 1;

        // And the next run goes on from it.
        let mut store = Store::open_with(dir.path(), options.clone(), Arc::new(StdDisk)).unwrap();
        assert_eq!(store.newest().unwrap().unwrap().contents, found.contents);
        store.save(step, &after).unwrap();
        assert_eq!(store.newest().unwrap().unwrap().contents, after);
        let mut names = StdDisk.list(&dir.path().join("checkpoints")).unwrap();
        names.sort();
        assert_eq!(
            names,
            if step == 3 { ["step-00000002", "step-00000003"] } else { ["step-00000001", "step-00000002"] }
        );

        if disk.done.load(SeqCst) <= fault {
            assert!(saved.unwrap().not_removed.is_empty());
            assert!(outcomes[0] > 20 && outcomes[1] > 3, "too few faults: {outcomes:?}");
            return;
        }
    }
}

#[test]
fn the_process_dies_at_any_operation_of_a_save() {
    every_fault(3, true);
}

#[test]
fn any_one_operation_of_a_save_fails() {
    every_fault(3, false);
}

#[test]
fn the_process_dies_while_a_step_is_saved_again() {
    every_fault(2, true);
}

#[test]
fn any_one_operation_fails_while_a_step_is_saved_again() {
    every_fault(2, false);
}

#[test]
fn the_final_model_is_the_old_or_the_new_one() {
    let mut outcomes = [0, 0];
    for fault in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        write_model(&path, &contents(1).model).unwrap();
        let disk = Arc::new(Faulty::new(fault, true));
        let written = Store::open_with(dir.path(), Options::default(), disk.clone())
            .and_then(|store| store.write_model(&contents(2).model));
        let found = read_tensors(&path).unwrap();
        let is_new = found == contents(2).model;
        assert!(is_new || found == contents(1).model && written.is_err(), "fault {fault}");
        outcomes[usize::from(is_new)] += 1;
        if disk.done.load(SeqCst) <= fault {
            assert!(written.is_ok() && outcomes[0] > 10 && outcomes[1] > 1, "too few faults: {outcomes:?}");
            return;
        }
    }
}
