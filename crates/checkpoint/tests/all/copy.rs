//! Copies of checkpoints of other directories: complete or absent, whatever fails.

use std::path::Path;
use std::sync::Arc;

use crate::common::faulty::{Faulty, Then};
use crate::common::{contents, names};
use unisono_checkpoint::{Contents, Error, Options, Result, StdDisk, Store, load, newest};

/// Returns the files of a checkpoint of step 3, which another store has saved.
fn files(contents: &Contents) -> Vec<(String, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::open(dir.path()).unwrap().save(3, contents).unwrap().path;
    names(&path).into_iter().map(|name| (name.clone(), std::fs::read(path.join(name)).unwrap())).collect()
}

fn copy_into(store: &mut Store, files: &[(String, Vec<u8>)]) -> Result<()> {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    store.save_copy(&files).map(drop)
}

#[test]
fn a_copy_is_the_same_byte_for_byte_and_removes_no_older_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&contents(3));
    let mut store = Store::open_with(dir.path(), Options::default().keep(1), Arc::new(StdDisk)).unwrap();
    store.save(2, &contents(2)).unwrap();
    copy_into(&mut store, &files).unwrap();
    let copied = dir.path().join("checkpoints/step-00000003");
    for (name, bytes) in &files {
        assert_eq!(&std::fs::read(copied.join(name)).unwrap(), bytes, "{name}");
    }
    assert_eq!(names(&dir.path().join("checkpoints")), ["step-00000002", "step-00000003"]);
    assert_eq!(store.newest().unwrap().unwrap().contents, contents(3));
    // A later one would be found in its place.
    store.save(4, &contents(4)).unwrap();
    assert!(matches!(copy_into(&mut store, &files).unwrap_err(), Error::Behind { step: 3, newest: 4, .. }));
}

#[test]
fn files_that_are_no_complete_checkpoint_are_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let whole = files(&contents(3));
    for at in 0..whole.len() {
        let (mut without, mut changed) = (whole.clone(), whole.clone());
        without.remove(at);
        changed[at].1[7] ^= 1;
        for other in [without, changed] {
            let error = copy_into(&mut store, &other).unwrap_err();
            assert!(matches!(error, Error::Broken { .. }), "{error}");
        }
    }
    assert!(names(&dir.path().join("checkpoints")).is_empty());
    // What is no part of a checkpoint is left out.
    let more = [vec![("../../planted".to_owned(), b"x".to_vec())], whole].concat();
    copy_into(&mut store, &more).unwrap();
    assert_eq!(names(&dir.path().join("checkpoints/step-00000003")).len(), 4);
}

/// Copies step 3 into a directory that has it already, complete or not, failing at one operation after the
/// other.
fn every_fault(then: Then, is_broken: bool) {
    let (before, after) = (contents(3), contents(7));
    let files = files(&after);
    let mut copied = 0;
    for fault in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.save(2, &contents(2)).unwrap();
        let path = store.save(3, &before).unwrap().path;
        drop(store);
        if is_broken {
            std::fs::write(path.join("trainer.json"), "").unwrap();
        }
        let disk = Arc::new(Faulty::new(fault, then));
        let result = Store::open_with(dir.path(), Options::default(), disk.clone())
            .and_then(|mut store| copy_into(&mut store, &files));
        let newest_is_sound = |dir: &Path| {
            let found = newest(dir).unwrap().unwrap();
            let previous = if is_broken { (2, &contents(2)) } else { (3, &before) };
            let is_new = found.contents == after;
            assert!(is_new || (found.step, &found.contents) == previous, "fault {fault}: {}", found.step);
            assert!(is_new || result.is_err(), "fault {fault}");
            is_new
        };
        copied += usize::from(newest_is_sound(dir.path()));
        drop(Store::open(dir.path()).unwrap());
        newest_is_sound(dir.path());
        let there = names(&dir.path().join("checkpoints"));
        assert!(there.iter().all(|name| !name.starts_with('.')), "fault {fault}: {there:?}");
        load(dir.path().join("checkpoints/step-00000002")).unwrap();
        if disk.done() <= fault {
            result.unwrap();
            assert!(copied > 1 && fault > copied + 15, "{copied} of {fault}");
            return;
        }
    }
}

#[test]
fn a_copy_fails_at_any_operation() {
    for then in [Then::Dies, Then::GoesOn] {
        every_fault(then, false);
        every_fault(then, true);
    }
}
