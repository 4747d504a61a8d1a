//! The finder of learning rates: what it finds, and that a run with it can be killed.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    Builder, Dense, Influence, LearningRateFinder, Loss, MeanSquaredError, Phase, PoissonNll, Sgd, Stop,
    Trainer, on_step,
};
use unisono_tests::{loader, perceptron};

fn data() -> Loader {
    loader(50, 5).unwrap()
}

fn builder(replicas: usize) -> Builder {
    perceptron(8).optimizer(Sgd::new(0.5)).global_batch(16).replicas(replicas)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().fields().unwrap()).unwrap()
}

#[test]
fn a_rate_is_found_and_the_finder_ends_the_run() {
    let (finder, found) = LearningRateFinder::new(1e-5, 10.0, 60);
    let mut trainer = build(builder(2).callback(finder));
    trainer.fit(&data(), None, u32::MAX).unwrap();
    let all = found.all();
    assert_eq!(trainer.steps(), all.len() as u64);
    assert!(all.len() <= 61 && all.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    let rate = found.suggestion().unwrap();
    assert!((1e-3..5.0).contains(&rate), "{rate}");
}

/// The losses of phases are not comparable, and each phase has its own rate.
#[test]
fn a_run_with_phases_is_refused() {
    let phase = |name: &str| Phase::new(name).optimizer(Sgd::new(0.5));
    let (finder, found) = LearningRateFinder::new(1e-5, 10.0, 60);
    let phased = perceptron(8).phase(phase("a")).phase(phase("b")).global_batch(16).replicas(1);
    let error = build(phased.callback(finder)).fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("search in a run without phases"), "{error}");
    assert!(found.all().is_empty());
}

/// Returns a run of 60 rates on 48 samples, in batches of 16, that all have the same target. The last batch
/// of an epoch may weigh nothing.
fn tried(loss: impl Loss + 'static, target: f32, is_last_empty: bool) -> (u64, Vec<(f64, f64)>) {
    let numbers = |number: fn(usize) -> f32| Values::F32((0..48).map(number).collect());
    let data = Memory::new("x", [1], numbers(|at| (at % 4) as f32 / 4.0)).unwrap();
    let mut data = data.with("y", [1], Values::F32(vec![target; 48])).unwrap();
    if is_last_empty {
        data = data.with("w", [], numbers(|at| f32::from(at < 32))).unwrap();
    }
    let loader = Loader::new(data).threads(1);
    let (finder, found) = LearningRateFinder::new(1e-5, 1e-2, 60);
    let builder = Trainer::builder(Dense::new(1)).loss(loss).optimizer(Sgd::new(0.5)).callback(finder);
    let mut trainer = builder.global_batch(16).replicas(1).build(&loader.fields().unwrap()).unwrap();
    trainer.fit(&loader, None, u32::MAX).unwrap();
    (trainer.steps(), found.all())
}

/// A batch of samples that all weigh 0 has no loss, and changes nothing.
#[test]
fn a_step_without_weight_tries_no_rate() {
    let (steps, with_empty) = tried(MeanSquaredError, 1.0, true);
    // 61 steps with a loss, and those without one between them.
    assert_eq!((steps, with_empty.len()), (91, 61));
    assert!(with_empty.iter().all(|(_, loss)| *loss > 0.0), "{with_empty:?}");
    assert!(with_empty.windows(2).skip(1).all(|pair| pair[0].0 < pair[1].0), "{with_empty:?}");
}

#[test]
fn a_loss_may_fall_below_zero() {
    let (steps, found) = tried(PoissonNll::new(), 20.0, false);
    assert_eq!((steps, found.len()), (61, 61));
    assert!(found[0].1 > 0.0 && found[60].1 < -1.0, "{found:?}");
}

/// A run that is killed after any step tries the rest of the rates when it is resumed.
#[test]
fn a_finder_that_is_killed_goes_on_where_it_was() {
    let train = data();
    let start = |stop_after: Option<u64>| {
        let (finder, found) = LearningRateFinder::new(1e-4, 2.0, 12);
        let stop = Stop::new();
        let asks = stop.clone();
        let stops = on_step("stops", Influence::None, move |step, _| {
            if Some(step.step) == stop_after {
                asks.ask();
            }
            Ok(())
        });
        let mut trainer = build(builder(1).callback(finder).callback(stops));
        trainer.stop_on(&stop);
        (trainer, found)
    };
    let (mut sound, expected) = start(None);
    sound.fit(&train, None, u32::MAX).unwrap();
    assert!(expected.all().len() > 8, "{expected:?}");
    for stop_after in [0, 1, 5] {
        let dir = tempfile::tempdir().unwrap();
        let (mut trainer, found) = start(Some(stop_after));
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.fit(&train, None, u32::MAX).unwrap();
        assert_eq!(found.all(), expected.all()[..=stop_after as usize]);
        drop(trainer);
        let (mut trainer, found) = start(None);
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.resume().unwrap().unwrap();
        trainer.fit(&train, None, u32::MAX).unwrap();
        assert_eq!(found.all(), expected.all());
        assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
        trainer.resume().unwrap().unwrap();
        assert_eq!(found.all(), expected.all());
    }
}
