//! A fit that fails loses no work. The run goes on as if nothing had happened, either at once or after a
//! resume.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use unisono::checkpoint::list;
use unisono::data::{Loader, Position};
use unisono::{
    Accuracy, BestBy, Builder, Dense, Dropout, Error, FromFn, Plateau, Relu, Saving, Schedule, Sequential,
    Sgd, Stop, Trainer,
};
use unisono_tests::{CLASSES, FEATURES, blobs, loader};

const EPOCHS: u32 = 4;

/// The way in which a sample goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Unreadable,
    Nan,
    /// The model takes the logarithm of a negative number.
    Negative,
}

/// Returns a loader whose sample 7 goes wrong when it is loaded for the `time`th time, unless it was mended.
fn fragile(samples: usize, time: u32, wrong: Wrong) -> (Loader, Arc<AtomicBool>) {
    let source = blobs(samples, 5).unwrap();
    let marked = source.array("x").and_then(|x| x.as_f32()).unwrap()[7 * FEATURES];
    let (met, mended) = (AtomicU32::new(0), Arc::new(AtomicBool::new(false)));
    let well = Arc::clone(&mended);
    let loader = Loader::new(source).threads(1).shuffle(5).try_map("break", move |sample, _| {
        let x = sample.f32_mut("x").unwrap();
        let due = x[0] == marked && met.fetch_add(1, Ordering::Relaxed) + 1 == time;
        match wrong {
            _ if !due || well.load(Ordering::Relaxed) => {}
            Wrong::Unreadable => return Err("unreadable".into()),
            Wrong::Nan => x[1] = f32::NAN,
            Wrong::Negative => x[1] = -1000.0,
        }
        Ok(())
    });
    (loader, mended)
}

/// Returns a builder of a trainer whose learning rate depends on what was measured.
fn builder() -> Builder {
    let rate = Schedule::constant(0.1).reduce_on(Plateau::lowest("loss").patience(0).threshold(0.2));
    let log = FromFn::new("log", |_, x| (x + 100.0).log() * 10.0);
    let model = Sequential::new()
        .add(log)
        .add(Dense::new(8))
        .add(Relu)
        .add(Dropout::new(0.25))
        .add(Dense::new(CLASSES));
    Trainer::builder(model)
        .optimizer(Sgd::new(rate).momentum(0.9))
        .metric(Accuracy)
        .seed(11)
        .global_batch(16)
        .shards(4)
}

fn build(replicas: usize, data: &Loader) -> Trainer {
    builder().replicas(replicas).build(&data.fields().unwrap()).unwrap()
}

/// The state and the history of a run.
type Run = (String, String);

fn ended(trainer: &mut Trainer) -> Run {
    (trainer.state_sha256().unwrap(), format!("{:?}", trainer.history()))
}

fn undisturbed(train: &Loader, held_out: &Loader) -> Run {
    let mut trainer = build(1, train);
    trainer.fit(train, Some(held_out), EPOCHS).unwrap();
    ended(&mut trainer)
}

fn resumed(dir: &Path, step: u64, train: &Loader, held_out: &Loader) -> Run {
    let mut trainer = build(3, train);
    trainer.checkpoints(dir, 0).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, step);
    trainer.fit(train, Some(held_out), EPOCHS).unwrap();
    ended(&mut trainer)
}

/// Trains the rest of a run, either with the same trainer or with one that is resumed from a step in a
/// directory.
fn finished(mut trainer: Trainer, resume: Option<(&Path, u64)>, train: &Loader, held_out: &Loader) -> Run {
    if let Some((dir, step)) = resume {
        drop(trainer);
        return resumed(dir, step, train, held_out);
    }
    trainer.fit(train, Some(held_out), EPOCHS).unwrap();
    ended(&mut trainer)
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

#[test]
fn a_sample_that_cannot_be_trained_on_costs_its_step_and_no_other() {
    let held_out = loader(20, 6).unwrap();
    let expected = undisturbed(&fragile(50, 0, Wrong::Nan).0, &held_out);
    for wrong in [Wrong::Unreadable, Wrong::Nan, Wrong::Negative] {
        let (train, mended) = fragile(50, 2, wrong);
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = build(2, &train);
        trainer.checkpoints(dir.path(), 0).unwrap();
        let error = trainer.fit(&train, Some(&held_out), EPOCHS).unwrap_err();
        assert_eq!(matches!(error, Error::NotFinite { .. }), wrong == Wrong::Negative, "{error}");
        let step = trainer.steps();
        assert!((5..8).contains(&step), "amid the second epoch of four steps: {step}");
        assert_eq!(steps(dir.path()), [step]);
        drop(trainer);
        mended.store(true, Ordering::Relaxed);
        assert_eq!(resumed(dir.path(), step, &train, &held_out), expected);
    }
}

#[test]
fn an_evaluation_that_fails_is_made_up_for() {
    let train = loader(50, 5).unwrap();
    let expected = undisturbed(&train, &fragile(20, 0, Wrong::Nan).0);
    for at_once in [true, false] {
        let (held_out, mended) = fragile(20, 3, Wrong::Unreadable);
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = build(2, &train);
        trainer
            .save_to(Saving::new(dir.path()).keep_best(BestBy::Lowest("loss".into())).keep_last(1))
            .unwrap();
        trainer.fit(&train, Some(&held_out), EPOCHS).unwrap_err();
        assert_eq!((trainer.steps(), trainer.history().len()), (12, 2), "the third epoch has not ended");
        assert_eq!(trainer.position(), Position { epoch: 2, sample: 50 });
        mended.store(true, Ordering::Relaxed);
        let run = finished(trainer, (!at_once).then_some((dir.path(), 12)), &train, &held_out);
        assert_eq!(run, expected, "at once: {at_once}");
    }
}

/// The last action of a fit is an evaluation. The checkpoint made before it is replaced by one that includes
/// it.
#[test]
fn the_last_evaluation_is_in_the_last_checkpoint() {
    let train = loader(50, 5).unwrap();
    let expected = undisturbed(&train, &fragile(20, 0, Wrong::Nan).0);
    let (held_out, mended) = fragile(20, EPOCHS, Wrong::Unreadable);
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(2, &train);
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.fit(&train, Some(&held_out), EPOCHS).unwrap_err();
    assert_eq!(steps(dir.path()), [16]);
    drop(trainer);
    mended.store(true, Ordering::Relaxed);
    assert_eq!(resumed(dir.path(), 16, &train, &held_out), expected);
    // Nothing is left to do.
    let mut done = build(1, &train);
    done.checkpoints(dir.path(), 0).unwrap();
    done.resume().unwrap().unwrap();
    assert_eq!((ended(&mut done), done.position()), (expected, Position { epoch: EPOCHS, sample: 0 }));
}

/// There are 34 samples. The last two of each epoch are bad at first, so no step ends the epoch.
#[test]
fn an_epoch_whose_last_samples_were_left_out_ends_too() {
    let source = blobs(34, 8).unwrap();
    let marked: Vec<f32> = {
        let x = source.array("x").and_then(|x| x.as_f32()).unwrap();
        [32, 33].map(|i| x[i * FEATURES]).into()
    };
    let bad = Arc::new(AtomicBool::new(true));
    let train = {
        let bad = Arc::clone(&bad);
        Loader::new(source).threads(1).skip_bad(2).try_map("bad", move |sample, _| {
            let is_bad = marked.contains(&sample.f32_mut("x").unwrap()[0]) && bad.load(Ordering::Relaxed);
            if is_bad { Err("bad".into()) } else { Ok(()) }
        })
    };
    let expected = undisturbed(&train, &fragile(20, 0, Wrong::Nan).0);
    for at_once in [true, false] {
        bad.store(true, Ordering::Relaxed);
        let (held_out, mended) = fragile(20, 1, Wrong::Unreadable);
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = build(2, &train);
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.fit(&train, Some(&held_out), EPOCHS).unwrap_err();
        assert_eq!((trainer.steps(), trainer.history().len(), trainer.skipped()), (2, 0, &[32, 33][..]));
        // A sample that was left out once stays left out.
        bad.store(false, Ordering::Relaxed);
        mended.store(true, Ordering::Relaxed);
        let run = finished(trainer, (!at_once).then_some((dir.path(), 2)), &train, &held_out);
        assert_eq!(run, expected, "at once: {at_once}");
    }
}

#[test]
fn a_fit_whose_last_step_is_not_saved_fails_and_the_trainer_still_holds_it() {
    let train = loader(50, 5).unwrap();
    let held_out = loader(20, 6).unwrap();
    let expected = undisturbed(&train, &held_out);
    let dir = tempfile::tempdir().unwrap();
    let [full, other] = ["full", "other"].map(|name| dir.path().join(name));
    let mut trainer = build(2, &train);
    trainer.checkpoints(&full, 3).unwrap();
    std::fs::remove_dir_all(&full).unwrap();
    std::fs::write(&full, "in the way").unwrap();
    let error = trainer.fit(&train, Some(&held_out), 2).unwrap_err();
    assert!(matches!(&error, Error::NotSaved { dir, step: 8, .. } if *dir == full), "{error}");
    let message = error.to_string();
    assert!(message.contains("full: the last step, 8, is not saved: "), "{message}");
    assert_eq!((trainer.steps(), trainer.history().len()), (8, 2), "training went on in between");
    // Another attempt is another error, not the end of the run.
    assert!(matches!(trainer.fit(&train, Some(&held_out), 2), Err(Error::NotSaved { step: 8, .. })));

    trainer.checkpoints(&other, 0).unwrap();
    trainer.fit(&train, Some(&held_out), 2).unwrap();
    assert_eq!(steps(&other), [8]);
    drop(trainer);
    assert_eq!(resumed(&other, 8, &train, &held_out), expected);
}

#[test]
fn a_request_to_stop_ends_an_evaluation_between_its_batches() {
    let train = loader(50, 5).unwrap();
    let expected = undisturbed(&train, &loader(200, 6).unwrap());
    let stop = Stop::new();
    let (evaluated, asks) = (Arc::new(AtomicU32::new(0)), stop.clone());
    let counter = Arc::clone(&evaluated);
    let held_out = loader(200, 6).unwrap();
    let asking = held_out.clone().threads(1).prefetch(0).map("ask", move |_, _| {
        // The first sample of all finds the fields.
        if counter.fetch_add(1, Ordering::Relaxed) == 20 {
            asks.ask();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(2, &train);
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.stop_on(&stop);
    trainer.fit(&train, Some(&asking), EPOCHS).unwrap();
    assert!(evaluated.load(Ordering::Relaxed) < 100, "{evaluated:?} of 200 samples");
    assert_eq!((trainer.steps(), trainer.history().len()), (4, 0), "the first epoch has not ended");
    assert!(matches!(trainer.evaluate(&held_out), Err(Error::Stopped)));
    assert!(matches!(trainer.predict(&held_out), Err(Error::Stopped)));
    drop(trainer);
    assert_eq!(resumed(dir.path(), 4, &train, &held_out), expected);
}

/// Without audits there is no state to go back to.
#[test]
fn a_state_that_is_doubted_is_not_saved_and_where_it_is_is_known() {
    fail::cfg("doubted:replica-1:step-2", "return(state:0)").unwrap();
    let train = loader(50, 5).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let builder = builder().replicas(2).digest_every(1).audit_every(0).fault_scope("doubted:");
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.checkpoints(dir.path(), 0).unwrap();
    let error = trainer.fit(&train, None, 1).unwrap_err().to_string();
    assert!(error.starts_with("the state may be wrong: the replicas' states differ"), "{error}");
    assert!(error.ends_with("resume from a checkpoint"), "{error}");
    assert_eq!((trainer.steps(), trainer.position()), (3, Position { epoch: 0, sample: 48 }));
    assert!(steps(dir.path()).is_empty());
}
