//! Trust behind the training thread: the call does not wait, and each save is trusted if it was handed over
//! before, whatever became of it in between.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::common::gate::Gate;
use crate::common::random::Random;
use crate::common::{contents, names};
use unisono_checkpoint::{Best, Options, Report, Saver, SaverOptions, Store, list};

fn saver(dir: &Path, options: Options) -> (Saver, Gate) {
    let gate = Gate::default();
    let store = Store::open_with(dir, options, Arc::new(gate.clone())).unwrap();
    (Saver::new(store, SaverOptions::default()).unwrap(), gate)
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

fn trusted(saver: &Saver) -> Option<u64> {
    saver.with_store(|store| store.trusted()).unwrap().map(|(step, _)| step)
}

/// Returns the reports in short form.
fn said(reports: &[Report]) -> Vec<String> {
    let one = |report: &Report| match report {
        Report::Saved { step, .. } => format!("saved {step}"),
        Report::Dropped { step } => format!("dropped {step}"),
        Report::Failed { step, .. } => format!("failed {step}"),
        Report::NotTrusted { step, error } => {
            assert!(error.to_string().contains("checkpoints/"), "{error}");
            format!("not trusted {step}")
        }
        other => format!("{other:?}"),
    };
    reports.iter().map(one).collect()
}

#[test]
fn what_is_written_and_what_waits_are_trusted_once_they_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default());
    gate.close();
    saver.save(1, contents(1)).unwrap();
    gate.await_arrival();
    saver.save(2, contents(2)).unwrap();
    // Both calls return although the gate is closed.
    saver.trust(1);
    saver.trust(2);
    assert_eq!(
        names(&dir.path().join("checkpoints")).iter().filter(|name| *name == "trusted.json").count(),
        0
    );
    gate.open();
    let (store, reports) = saver.finish().unwrap();
    assert_eq!(said(&reports), ["saved 1", "saved 2"]);
    assert_eq!(store.trusted().unwrap().map(|(step, _)| step), Some(2));
}

#[test]
fn what_is_being_written_is_trusted_and_what_is_later_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default());
    gate.close();
    saver.save(5, contents(5)).unwrap();
    gate.await_arrival();
    saver.trust(5);
    saver.save(6, contents(6)).unwrap();
    gate.open();
    assert_eq!(said(&saver.flush().unwrap()), ["saved 5", "saved 6"]);
    assert_eq!(trusted(&saver), Some(5));
}

#[test]
fn a_save_that_is_handed_over_after_the_audit_is_not_covered() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default());
    saver.save(1, contents(1)).unwrap();
    saver.flush().unwrap();
    gate.close();
    saver.save(2, contents(2)).unwrap();
    gate.await_arrival();
    saver.trust(3);
    saver.save(3, contents(3)).unwrap();
    gate.open();
    saver.flush().unwrap();
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(2), vec![3, 2, 1]));
    saver.trust(3);
    assert_eq!(trusted(&saver), Some(3));
}

#[test]
fn a_save_that_failed_at_first_is_trusted_when_it_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default().every(5));
    gate.fail(Some(ErrorKind::StorageFull));
    saver.save(5, contents(5)).unwrap();
    saver.with_store(|_| ());
    saver.trust(5);
    saver.with_store(|_| ());
    gate.fail(None);
    saver.save(6, contents(6)).unwrap();
    let reports = saver.flush().unwrap();
    assert_eq!(said(&reports), ["failed 5", "saved 5", "saved 6"]);
    assert_eq!(trusted(&saver), Some(5));
}

#[test]
fn a_save_that_fails_while_its_audit_passes_is_trusted_when_it_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default());
    gate.close();
    saver.save(5, contents(5)).unwrap();
    gate.await_arrival();
    saver.trust(5);
    gate.fail(Some(ErrorKind::StorageFull));
    gate.open();
    saver.with_store(|_| ());
    gate.fail(None);
    assert_eq!(said(&saver.flush().unwrap()), ["failed 5", "saved 5"]);
    assert_eq!(trusted(&saver), Some(5));
}

#[test]
fn a_record_that_cannot_be_written_is_told_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default().keep(1));
    for step in [1, 2] {
        saver.save(step, contents(step)).unwrap();
        saver.flush().unwrap();
    }
    gate.fail(Some(ErrorKind::StorageFull));
    saver.trust(2);
    saver.with_store(|_| ());
    assert_eq!(said(&saver.poll().unwrap()), ["not trusted 2"]);
    assert_eq!(said(&saver.flush().unwrap()), ["not trusted 2"]);
    gate.fail(None);
    // The record is written before the save that would let step 2 go.
    saver.save(3, contents(3)).unwrap();
    assert_eq!(said(&saver.flush().unwrap()), ["saved 3"]);
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(2), vec![3, 2]));

    // What replaces a checkpoint that was to be trusted is not trusted for it.
    gate.fail(Some(ErrorKind::StorageFull));
    saver.trust(3);
    saver.with_store(|_| ());
    let mut other = contents(3);
    other.trainer["epoch"] = 1.into();
    saver.save(3, other).unwrap();
    saver.with_store(|_| ());
    gate.fail(None);
    saver.flush().unwrap();
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(2), vec![3, 2]));
}

/// The record cannot be written, but checkpoints can.
#[test]
fn what_replaces_a_checkpoint_that_was_to_be_trusted_is_not_trusted_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, _) = saver(dir.path(), Options::default());
    for step in [1, 2] {
        saver.save(step, contents(step)).unwrap();
        saver.flush().unwrap();
    }
    let record = dir.path().join("checkpoints/trusted.json");
    fs::create_dir(&record).unwrap();
    saver.trust(2);
    saver.with_store(|_| ());
    let mut other = contents(2);
    other.trainer["epoch"] = 1.into();
    saver.save(2, other).unwrap();
    saver.with_store(|_| ());
    assert_eq!(said(&saver.poll().unwrap()), ["not trusted 2", "not trusted 2", "saved 2"]);
    fs::remove_dir(&record).unwrap();
    assert_eq!(said(&saver.flush().unwrap()), [""; 0]);
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(1), vec![2, 1]));
}

#[test]
fn a_distrust_gives_up_what_waits_and_what_failed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(0).every(5).best(Best::Lowest(1));
    let (saver, gate) = saver(dir.path(), options);
    for step in [1, 2, 3] {
        saver.save_with_metric(step, contents(step), Some((1.0 / step as f64).into())).unwrap();
        saver.flush().unwrap();
    }
    saver.trust(2);
    saver.with_store(|_| ());
    gate.fail(Some(ErrorKind::StorageFull));
    saver.save(5, contents(5)).unwrap();
    saver.with_store(|_| ());
    gate.fail(None);
    let suspects = saver.distrust(2).unwrap();
    assert_eq!(suspects, [dir.path().join("checkpoints/suspect-step-00000003")]);
    assert_eq!(said(&saver.flush().unwrap())[..], ["failed 5", "dropped 5"]);
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(2), vec![2, 1]));

    // The best is step 2 now, so a step that is better than it is kept, though worse than step 3 was.
    gate.close();
    saver.save(3, contents(3)).unwrap();
    gate.await_arrival();
    saver.save_with_metric(4, contents(4), Some(0.4.into())).unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| saver.save(6, contents(6)).unwrap());
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!next.is_finished());
        gate.open();
    });
    assert_eq!(said(&saver.flush().unwrap()), ["saved 3", "saved 4", "saved 6"]);

    // What is being written is complete first; what waits is given up.
    gate.close();
    saver.save(7, contents(7)).unwrap();
    gate.await_arrival();
    saver.save(8, contents(8)).unwrap();
    saver.trust(8);
    thread::scope(|scope| {
        let distrusted = scope.spawn(|| saver.distrust(6).unwrap());
        // If the gate opened first, step 8 would be written too.
        let mut dropped = saver.poll().unwrap();
        while dropped.is_empty() {
            thread::sleep(std::time::Duration::from_millis(1));
            dropped = saver.poll().unwrap();
        }
        gate.open();
        assert_eq!(said(&dropped), ["dropped 8"]);
        assert_eq!(distrusted.join().unwrap(), [dir.path().join("checkpoints/suspect-step-00000007")]);
    });
    assert_eq!(said(&saver.flush().unwrap()), ["saved 7"]);
    saver.save(8, contents(8)).unwrap();
    saver.flush().unwrap();
    assert_eq!((trusted(&saver), steps(dir.path())), (Some(6), vec![8, 6, 4, 3, 2, 1]));
}

/// Saves, trusts and distrusts in random order without waiting. What is trusted in the end is what a store
/// would have trusted that did each thing at once.
#[test]
fn the_order_of_calls_decides_and_not_the_threads_pace() {
    for seed in 0..10 {
        let random = &mut Random(seed);
        let dir = tempfile::tempdir().unwrap();
        let options = Options::default().keep(0);
        let store = Store::open_with(dir.path(), options, Arc::new(Gate::default())).unwrap();
        let saver = Saver::new(store, SaverOptions::default().write_every(true)).unwrap();
        let (mut last, mut expected) = (0, None::<u64>);
        for _ in 0..30 {
            match random.below(8) {
                0..5 => {
                    last += 1;
                    saver.save(last, contents(last)).unwrap();
                }
                5..7 => {
                    let upto = last + 1 - (random.below(4) as u64).min(last);
                    saver.trust(upto);
                    expected = expected.max((upto.min(last) > 0).then_some(upto.min(last)));
                }
                _ if random.below(3) == 0 => {
                    last = last.saturating_sub(random.below(4) as u64);
                    saver.distrust(last).unwrap();
                    expected = expected.map(|trusted| trusted.min(last)).filter(|trusted| *trusted > 0);
                }
                _ => drop(saver.poll().unwrap()),
            }
        }
        let (store, _) = saver.finish().unwrap();
        assert_eq!(store.trusted().unwrap().map(|(step, _)| step), expected, "seed {seed}");
        assert_eq!(steps(dir.path()), (1..=last).rev().collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn a_directory_that_is_gone_is_told_of() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("run");
    let (saver, _) = saver(&dir, Options::default());
    saver.save(1, contents(1)).unwrap();
    saver.flush().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    saver.trust(1);
    saver.with_store(|_| ());
    let reports = saver.poll().unwrap();
    assert!(matches!(&*reports, [Report::NotTrusted { step: 1, .. }]), "{reports:?}");
    assert!(!dir.exists(), "nothing is made anew");
    saver.save(2, contents(2)).unwrap();
    saver.flush().unwrap();
    assert_eq!((trusted(&saver), steps(&dir)), (None, vec![2]));
}
