//! Saving behind the training thread: the training thread does not wait, and nothing is lost without a
//! report.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::contents;
use crate::common::gate::Gate;
use unisono_checkpoint::{
    Best, Contents, Error, Options, Reopened, Report, Saver, SaverOptions, Store, list, newest,
};

fn saver(dir: &Path, options: Options, how: SaverOptions) -> (Saver, Gate) {
    let gate = Gate::default();
    let store = Store::open_with(dir, options, Arc::new(gate.clone())).unwrap();
    (Saver::new(store, how).unwrap(), gate)
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

/// Returns the reports in short form.
fn said(reports: &[Report]) -> Vec<String> {
    let one = |report: &Report| match report {
        Report::Saved { step, saved, .. } => match saved.reopened {
            None => format!("saved {step}"),
            Some(Reopened::Directory) => format!("saved {step} in a new directory"),
            Some(other) => format!("saved {step} after {other:?}"),
        },
        Report::Replaced { step, by } => format!("{step} replaced by {by}"),
        Report::Failed { step, error: Error::Io { reason, .. } } => {
            format!("failed {step}: {}", reason.kind())
        }
        Report::Failed { step, error } => format!("failed {step}: {error}"),
        other => format!("{other:?}"),
    };
    reports.iter().map(one).collect()
}

#[test]
fn a_save_returns_at_once_and_finish_makes_it_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default(), SaverOptions::default());
    gate.close();
    saver.save(1, contents(1)).unwrap();
    gate.await_arrival();
    assert_eq!(newest(dir.path()).unwrap(), None);
    assert!(saver.poll().unwrap().is_empty());
    gate.open();
    let (store, reports) = saver.finish().unwrap();
    assert_eq!(said(&reports), ["saved 1"]);
    assert_eq!(store.newest().unwrap().unwrap().contents, contents(1));
    drop(store);
    Store::open(dir.path()).expect("nobody holds the lock");
}

#[test]
fn what_was_written_is_given_back_once() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default(), SaverOptions::default());
    gate.close();
    saver.save(1, contents(1)).unwrap();
    gate.await_arrival();
    assert_eq!(saver.spare(), Contents::default());
    gate.open();
    saver.flush().unwrap();
    assert_eq!(saver.spare(), contents(1));
    assert_eq!(saver.spare(), Contents::default());
}

#[test]
fn what_waits_is_replaced_unless_retention_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(1).every(10).best(Best::Lowest(1));
    let (saver, gate) = saver(dir.path(), options, SaverOptions::default());
    gate.close();
    let save = |step, metric| saver.save_with_metric(step, contents(step), Some(f64::into(metric))).unwrap();
    save(1, 0.5);
    gate.await_arrival();
    save(2, 0.6);
    save(3, 0.7);
    save(4, 0.1);
    thread::scope(|scope| {
        // Step 4 is the best so far, so this call waits for it to be written, and step 10 is a milestone.
        let later = scope.spawn(|| [10, 11].map(|step| save(step, 0.8)));
        thread::sleep(Duration::from_millis(50));
        assert!(!later.is_finished());
        gate.open();
    });
    let (_, reports) = saver.finish().unwrap();
    assert_eq!(
        said(&reports),
        ["2 replaced by 3", "3 replaced by 4", "saved 1", "saved 4", "saved 10", "saved 11"]
    );
    assert_eq!(steps(dir.path()), [11, 10, 4]);
}

#[test]
fn a_step_that_is_to_be_saved_itself_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default().keep(5), SaverOptions::default());
    gate.close();
    saver.save(1, contents(1)).unwrap();
    gate.await_arrival();
    saver.save(2, contents(2)).unwrap();
    saver.save_itself(3, contents(3), None).unwrap();
    thread::scope(|scope| {
        let later = scope.spawn(|| saver.save(4, contents(4)).unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(!later.is_finished());
        gate.open();
    });
    let (_, reports) = saver.finish().unwrap();
    assert_eq!(said(&reports), ["2 replaced by 3", "saved 1", "saved 3", "saved 4"]);
    assert_eq!(steps(dir.path()), [4, 3, 1]);
}

#[test]
fn every_save_is_written_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(0);
    let (saver, _) = saver(dir.path(), options, SaverOptions::default().write_every(true));
    for step in 1..=20 {
        saver.save(step, contents(step)).unwrap();
    }
    drop(saver);
    assert_eq!(steps(dir.path()), (1..=20).rev().collect::<Vec<_>>());
}

#[test]
fn a_failure_that_may_pass_is_told_and_tried_again() {
    for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::default().keep(1).every(5);
        let (saver, gate) = saver(dir.path(), options, SaverOptions::default());
        saver.save(1, contents(1)).unwrap();
        saver.flush().unwrap();
        gate.fail(Some(kind));
        saver.save(5, contents(5)).unwrap();
        assert_eq!(said(&saver.flush().unwrap()), [format!("failed 5: {kind}"), format!("failed 5: {kind}")]);
        saver.save(6, contents(6)).unwrap();
        assert_eq!(saver.with_store(|store| store.newest()).unwrap().unwrap().contents, contents(1));
        assert_eq!(said(&saver.poll().unwrap()), [format!("failed 5: {kind}"), format!("failed 6: {kind}")]);
        gate.fail(None);
        // The milestone is saved late. The step that was not to be kept is not saved.
        saver.save(7, contents(7)).unwrap();
        let (store, reports) = saver.finish().unwrap();
        assert_eq!(said(&reports), ["saved 5", "saved 7"]);
        assert_eq!(steps(store.dir()), [7, 5]);
    }
}

#[test]
fn two_failed_saves_that_are_kept_are_both_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(1).every(5);
    let (saver, gate) = saver(dir.path(), options, SaverOptions::default());
    gate.fail(Some(ErrorKind::StorageFull));
    for step in [5, 10, 11] {
        saver.save(step, contents(step)).unwrap();
        saver.with_store(|_| ());
    }
    assert!(said(&saver.poll().unwrap()).iter().all(|one| one.starts_with("failed ")));
    gate.fail(None);
    assert_eq!(said(&saver.flush().unwrap()), ["saved 5", "saved 10", "saved 11"]);
    assert_eq!(steps(dir.path()), [11, 10, 5]);
}

/// Of several failed saves those are tried again that retention wants most.
#[test]
fn the_best_of_several_failed_saves_is_not_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(1).best(Best::Lowest(1));
    let (saver, gate) = saver(dir.path(), options, SaverOptions::default());
    gate.fail(Some(ErrorKind::StorageFull));
    for (step, metric) in [(1, 0.1), (2, 0.5), (3, 0.4), (4, 0.3)] {
        saver.save_itself(step, contents(step), Some(metric.into())).unwrap();
        saver.with_store(|_| ());
    }
    let given_up = said(&saver.poll().unwrap()).into_iter().filter(|one| one.contains("replaced"));
    assert_eq!(given_up.collect::<Vec<_>>(), ["2 replaced by 3", "3 replaced by 4"]);
    gate.fail(None);
    assert_eq!(said(&saver.flush().unwrap()), ["saved 1", "saved 4"]);
    assert_eq!(steps(dir.path()), [4, 1]);
}

#[test]
fn contents_too_large_for_a_checkpoint_end_no_run_that_does_not_require_saves() {
    // A small map counts for a hundred times as many bytes as its text has.
    let too_large = || {
        let mut contents = contents(2);
        contents.trainer = serde_json::json!({ "a": { "b": vec![serde_json::json!({ "": 0 }); 1 << 19] } });
        contents
    };
    let dir = tempfile::tempdir().unwrap();
    let (saver, _) = saver(dir.path(), Options::default(), SaverOptions::default());
    saver.save(1, contents(1)).unwrap();
    saver.flush().unwrap();
    saver.save(2, too_large()).unwrap();
    saver.with_store(|_| ());
    let reports = saver.poll().unwrap();
    let [Report::Failed { step: 2, error: error @ Error::Unstorable { .. } }] = &*reports else {
        panic!("{reports:?}");
    };
    assert!(error.to_string().ends_with("bytes when it is read, most of them in a.b"), "{error}");
    saver.save(3, contents(3)).unwrap();
    assert_eq!(said(&saver.flush().unwrap()), ["saved 3"]);
    drop(saver);
    let (saver, _) = self::saver(dir.path(), Options::default(), SaverOptions::default().require(true));
    saver.save(4, too_large()).unwrap();
    assert!(matches!(saver.flush().unwrap_err(), Error::Unstorable { .. }));
}

#[test]
fn the_last_save_is_tried_once_more_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default(), SaverOptions::default());
    gate.fail(Some(ErrorKind::StorageFull));
    saver.save(1, contents(1)).unwrap();
    saver.with_store(|_| ());
    gate.fail(None);
    let (_, reports) = saver.finish().unwrap();
    assert_eq!(said(&reports), [format!("failed 1: {}", ErrorKind::StorageFull), "saved 1".into()]);
}

#[test]
fn a_required_save_that_fails_is_an_error_of_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let (saver, gate) = saver(dir.path(), Options::default(), SaverOptions::default().require(true));
    gate.fail(Some(ErrorKind::StorageFull));
    saver.save(1, contents(1)).unwrap();
    saver.with_store(|_| ());
    let error = saver.save(2, contents(2)).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: cannot create: "), "{error}");
    assert!(saver.finish().is_err());
    // A caller's mistake is an error in any case.
    gate.fail(None);
    let (saver, _) = self::saver(dir.path(), Options::default(), SaverOptions::default());
    saver.save(9, contents(9)).unwrap();
    saver.flush().unwrap();
    saver.save(3, contents(3)).unwrap();
    assert!(matches!(saver.flush().unwrap_err(), Error::Behind { step: 3, newest: 9, .. }));
    assert!(saver.flush().unwrap().is_empty());
}

#[test]
fn a_vanished_directory_is_made_anew_when_that_is_possible() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("run");
    let (saver, _) = saver(&dir, Options::default(), SaverOptions::default());
    saver.save(1, contents(1)).unwrap();
    assert_eq!(said(&saver.flush().unwrap()), ["saved 1"]);

    fs::remove_dir_all(&dir).unwrap();
    fs::write(&dir, "in the way").unwrap();
    saver.save(2, contents(2)).unwrap();
    saver.with_store(|_| ());
    let reports = saver.poll().unwrap();
    assert!(matches!(&*reports, [Report::Failed { step: 2, error: Error::Io { .. } }]), "{reports:?}");

    fs::remove_file(&dir).unwrap();
    saver.save(3, contents(3)).unwrap();
    assert_eq!(said(&saver.flush().unwrap()), ["saved 3 in a new directory"]);
    assert!(matches!(Store::open(&dir), Err(Error::Locked { .. })), "and is locked");

    // Another run may have locked the directory first.
    fs::remove_dir_all(&dir).unwrap();
    let other = Store::open(&dir).unwrap();
    saver.save(4, contents(4)).unwrap();
    saver.with_store(|_| ());
    let reports = saver.poll().unwrap();
    assert!(matches!(&*reports, [Report::Failed { step: 4, error: Error::Locked { .. } }]), "{reports:?}");
    drop(other);
    assert_eq!(said(&saver.flush().unwrap()), ["saved 4 in a new directory"]);

    // Without its lock alone the directory is the same, with its checkpoints.
    if cfg!(unix) {
        fs::remove_file(dir.join(".lock")).unwrap();
        saver.save(5, contents(5)).unwrap();
        assert_eq!(said(&saver.flush().unwrap()), ["saved 5 after Lock"]);
        assert!(matches!(Store::open(&dir), Err(Error::Locked { .. })), "and is locked");
        assert_eq!(steps(&dir), [5, 4]);
        // A directory that takes the place of another is not the same, though it has checkpoints.
        fs::rename(&dir, above.path().join("elsewhere")).unwrap();
        drop(Store::open(&dir).unwrap());
        fs::remove_file(dir.join(".lock")).unwrap();
        saver.save(6, contents(6)).unwrap();
        assert_eq!(said(&saver.flush().unwrap()), ["saved 6 in a new directory"]);
    }
}
