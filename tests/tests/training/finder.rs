//! The finder of learning rates: what it finds, and that a run with it can be killed.

use unisono::data::Loader;
use unisono::{Builder, Influence, LearningRateFinder, Sgd, Stop, Trainer, on_step};
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
