//! Which checkpoints a run that was wrong goes back to, and what becomes of the others.

use std::path::PathBuf;

use unisono::checkpoint::list;
use unisono::{Audits, Error, Saving};
use unisono_tests::perceptron;

use super::{Drill, EPOCHS, EVERY, Hears, data, undisturbed};

#[test]
fn checkpoints_after_the_trusted_state_are_set_aside_and_a_resume_ends_in_the_right_bytes() {
    let expected = undisturbed();
    let dir = tempfile::tempdir().unwrap();
    let (mut trainer, _) = Drill::once(1, 0, 99, "gradient").trainer(Audits::Every(EVERY));
    trainer.checkpoints(dir.path(), 1).unwrap();
    trainer.fit(&data(), None, 3).unwrap();
    drop(trainer);
    // Two devices that differ for good, with nothing to tell which is wrong: the fault is in the state, which
    // the known-answer test does not look at.
    let (mut trainer, _) = Drill::from(2, 1, 0, "state:0").trainer(Audits::Every(EVERY));
    trainer.checkpoints(dir.path(), 1).unwrap();
    assert_eq!(trainer.resume().unwrap().map(|from| from.step), Some(12));
    let error = trainer.fit(&data(), None, EPOCHS).unwrap_err();
    assert!(matches!(error, Error::Refused { step: 12, .. }), "{error}");
    assert_eq!(trainer.steps(), 12);
    drop(trainer);
    let (mut trainer, _) = Drill::once(1, 0, 99, "gradient").trainer(Audits::Every(EVERY));
    trainer.checkpoints(dir.path(), 1).unwrap();
    assert_eq!(trainer.resume().unwrap().map(|from| from.step), Some(12));
    trainer.fit(&data(), None, EPOCHS).unwrap();
    assert_eq!(trainer.state_sha256().unwrap(), expected);
}

#[test]
fn a_run_that_was_resumed_from_a_checkpoint_without_trust_goes_back_to_one_with_it_or_is_refused() {
    let expected = undisturbed();
    for trusted in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        // A device that is wrong, in a run that audits nothing.
        let (mut trainer, _) =
            Drill::once(1, 0, 99, "gradient").trainer(if trusted { Audits::Every(1) } else { Audits::Never });
        trainer.checkpoints(dir.path(), 2).unwrap();
        trainer.fit(&data(), None, 2).unwrap();
        drop(trainer);
        let (mut trainer, _) = Drill::from(2, 1, 0, "gradient").trainer(Audits::Never);
        trainer.checkpoints(dir.path(), 2).unwrap();
        trainer.resume().unwrap();
        trainer.fit(&data(), None, 3).unwrap();
        drop(trainer);
        let (mut trainer, watching) = Drill::from(2, 1, 0, "gradient").trainer(Audits::Every(2));
        trainer.checkpoints(dir.path(), 2).unwrap();
        assert_eq!(trainer.resume().unwrap().map(|from| from.step), Some(12));
        let fitted = trainer.fit(&data(), None, EPOCHS).map(|_| ());
        if trusted {
            fitted.unwrap();
            assert_eq!(*watching.0.lock().unwrap(), [8]);
            assert_eq!(trainer.state_sha256().unwrap(), expected);
        } else {
            let error = fitted.unwrap_err();
            assert!(
                matches!(error, Error::Untrusted { .. }) && error.to_string().contains("start anew"),
                "{error}"
            );
            let refused = trainer.state_sha256().unwrap_err();
            assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");
        }
    }
}

/// One that can be read is taken instead, where there is one.
#[test]
fn a_trusted_checkpoint_that_cannot_be_read_is_named() {
    for all in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        // However slow the disk is, several trusted checkpoints are saved.
        let saving = || Saving::new(dir.path()).every(2).keep_every(2).keep_last(9);
        for (audits, drill, epochs) in [
            (Audits::Every(1), Drill::once(1, 0, 99, "gradient"), 2),
            (Audits::Never, Drill::from(2, 1, 0, "gradient"), 3),
        ] {
            let (mut trainer, _) = drill.trainer(audits);
            trainer.save_to(saving()).unwrap();
            trainer.resume().unwrap();
            trainer.fit(&data(), None, epochs).unwrap();
        }
        let listed = unisono::checkpoint::inspect::list(dir.path()).unwrap();
        let trusted: Vec<PathBuf> =
            listed.into_iter().filter(|one| one.trusted).map(|one| one.path).collect();
        let broken = if all { &trusted[..] } else { &trusted[..1] };
        for path in broken {
            let file = path.join("model.safetensors");
            let mut bytes = std::fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(file, bytes).unwrap();
        }
        let (hears, drill) = (Hears::default(), Drill::from(2, 1, 0, "gradient"));
        let builder = perceptron(8).global_batch(16).replicas(2).audits(Audits::Every(2)).digest_every(10);
        let builder = builder.fault_scope(&drill.scope()).observer(hears.clone());
        let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
        trainer.save_to(saving()).unwrap();
        assert_eq!(trainer.resume().unwrap().map(|from| from.step), Some(12));
        let fitted = trainer.fit(&data(), None, EPOCHS).map(|_| ());
        let notes = hears.notes.lock().unwrap().join("\n");
        let said = if all { fitted.unwrap_err().to_string() } else { notes };
        for path in broken {
            let path = path.display().to_string();
            assert!(said.contains(&path) && said.contains("SHA-256"), "{path}: {said}");
        }
        assert!(!said.contains("start anew"), "{said}");
        if !all {
            assert_eq!(trainer.state_sha256().unwrap(), undisturbed());
        }
    }
}

/// The state changes in the step behind the one that is saved, and the fit ends before it asks for that save.
#[test]
fn a_fit_that_ends_by_an_error_tells_what_became_of_its_saves() {
    let dir = tempfile::tempdir().unwrap();
    let (hears, drill) = (Hears::default(), Drill::once(2, 1, 5, "state:0"));
    let builder = perceptron(8).global_batch(16).replicas(2).audits(Audits::Never).digest_every(1);
    let builder = builder.fault_scope(&drill.scope()).observer(hears.clone());
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    trainer.checkpoints(dir.path(), 5).unwrap();
    let error = trainer.fit(&data(), None, EPOCHS).unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    let saved = hears.saved.lock().unwrap().clone();
    drop(trainer);
    let listed: Vec<PathBuf> = list(dir.path()).unwrap().into_iter().map(|(_, path)| path).collect();
    assert!(listed.len() == 1 && saved == listed, "{saved:?}, {listed:?}");
}
