//! "The directory either holds a complete checkpoint or does not exist": every operation of a save fails in
//! turn.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::contents;
use crate::common::faulty::{Faulty, Then};
use unisono_checkpoint::{Disk, Options, StdDisk, Store, newest, read_tensors, write_model};

/// Saves `step` over checkpoints of steps 1 and 2, failing at one operation after the other of opening and
/// saving.
fn every_fault(step: u64, then: Then) {
    let options = Options::default().keep(2);
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

        let disk = Arc::new(Faulty::new(fault, then));
        let saved = Store::open_with(dir.path(), options.clone(), disk.clone())
            .and_then(|mut store| store.save(step, &after));

        // A reader who cleans nothing up finds only complete checkpoints, with what was saved.
        let found = newest(dir.path()).unwrap().expect("a complete checkpoint");
        assert_eq!(found.skipped, [], "fault {fault}: a partial checkpoint");
        let is_new = found.contents == after;
        assert!(is_new && found.step == step || found.contents == before && found.step == 2, "fault {fault}");
        assert!(is_new || saved.is_err(), "fault {fault}: said to be saved, and was not");
        outcomes[usize::from(is_new)] += 1;

        // The next run goes on from it.
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

        if disk.done() <= fault {
            assert!(saved.unwrap().not_removed.is_empty());
            assert!(outcomes[0] > 20 && outcomes[1] > 3, "too few faults: {outcomes:?}");
            return;
        }
    }
}

#[test]
fn the_process_dies_at_any_operation_of_a_save() {
    every_fault(3, Then::Dies);
}

#[test]
fn any_one_operation_of_a_save_fails() {
    every_fault(3, Then::GoesOn);
}

#[test]
fn the_process_dies_while_a_step_is_saved_again() {
    every_fault(2, Then::Dies);
}

#[test]
fn any_one_operation_fails_while_a_step_is_saved_again() {
    every_fault(2, Then::GoesOn);
}

#[test]
fn the_final_model_is_the_old_or_the_new_one() {
    let mut outcomes = [0, 0];
    for fault in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        write_model(&path, &contents(1).model).unwrap();
        let disk = Arc::new(Faulty::new(fault, Then::Dies));
        let written = Store::open_with(dir.path(), Options::default(), disk.clone())
            .and_then(|store| store.write_model(&contents(2).model));
        let found = read_tensors(&path).unwrap();
        let is_new = found == contents(2).model;
        assert!(is_new || found == contents(1).model && written.is_err(), "fault {fault}");
        outcomes[usize::from(is_new)] += 1;
        if disk.done() <= fault {
            assert!(written.is_ok() && outcomes[0] > 10 && outcomes[1] > 1, "too few faults: {outcomes:?}");
            return;
        }
    }
}

const DIR: &str = "UNISONO_TEST_DIR";
const AT: &str = "UNISONO_TEST_AT";

/// This is no test by itself: it is the process that the next test starts, and that kills itself in the
/// middle of a save.
#[test]
fn a_process_that_is_killed() {
    let (Ok(dir), Ok(at)) = (std::env::var(DIR), std::env::var(AT)) else { return };
    let disk = Arc::new(Faulty::new(at.parse().unwrap(), Then::Kills));
    let options = Options::default().keep(2);
    Store::open_with(Path::new(&dir), options, disk).unwrap().save(3, &contents(3)).unwrap();
}

#[test]
fn the_process_is_killed_at_any_operation() {
    let mut outcomes = [0, 0];
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.save(1, &contents(1)).unwrap();
        store.save(2, &contents(2)).unwrap();
        drop(store);

        let mut process = Command::new(std::env::current_exe().unwrap());
        process
            .args(["--exact", "crash::a_process_that_is_killed"])
            .env(DIR, dir.path())
            .env(AT, at.to_string());
        let done = process.output().unwrap().status.success();

        let found = newest(dir.path()).unwrap().expect("a complete checkpoint");
        assert_eq!((found.skipped, &found.contents), (vec![], &contents(found.step)), "killed at {at}");
        assert!(found.step == 3 || found.step == 2 && !done, "killed at {at}: step {}", found.step);
        outcomes[usize::from(found.step == 3)] += 1;
        // The lock died with the process, and the next run goes on.
        Store::open(dir.path()).unwrap().save(4, &contents(4)).unwrap();
        assert_eq!(newest(dir.path()).unwrap().unwrap().step, 4);
        if done {
            assert!(outcomes[0] > 20 && outcomes[1] > 3, "too few operations: {outcomes:?}");
            return;
        }
    }
}
