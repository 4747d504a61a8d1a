//! A run that makes its own samples, in a loop of its own, and goes back.

use unisono::data::{Field, Replay, Sample};
use unisono::{AdamW, Dense, MeanSquaredError, Relu, Sequential};

use super::*;

/// The steps of the run.
const PLAYED: u64 = 24;

/// Plays to the end: each step adds a sample that depends on its number. Returns the state, the buffer and
/// how often the run went back.
fn played(drill: &Drill) -> (String, Replay, usize) {
    let sample = |step: u64| {
        let x = step as f32 / PLAYED as f32;
        Sample::new().with("x", Field::f32([2], [x, 0.5])).with("y", Field::f32([1], [x * x]))
    };
    let mut replay = Replay::new(10, 7);
    replay.push(&sample(0)).unwrap();
    let model = Sequential::new().add(Dense::new(8)).add(Relu).add(Dense::new(1));
    let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(AdamW::new(0.05));
    let builder = builder.global_batch(8).shards(8).replicas(drill.replicas).adapter("cpu");
    let builder = builder.audits(Audits::Every(EVERY)).digest_every(3).fault_scope(&drill.scope());
    let mut trainer = builder.build(replay.fields()).unwrap();
    trainer.keep_replay(replay);
    let mut back = 0;
    while trainer.steps() < PLAYED {
        let step = trainer.steps();
        let replay = trainer.replay_mut().unwrap();
        assert_eq!(replay.pushed(), step + 1);
        replay.push(&sample(step)).unwrap();
        let batch = replay.draw(8).unwrap();
        match trainer.step(&batch) {
            Ok(_) => {}
            Err(Error::RolledBack { step: to, .. }) => {
                assert!(to <= step && to == trainer.steps());
                back += 1;
            }
            Err(error) => panic!("{drill:?}: {error}"),
        }
    }
    (trainer.state_sha256().unwrap(), trainer.replay().unwrap().clone(), back)
}

/// Before the buffer is full and behind.
#[test]
fn a_replay_buffer_goes_back_with_the_run() {
    let (state, buffer, _) = played(&Drill { replicas: 1, points: vec![], wrong: 0 });
    let mut all = 0;
    for step in [0, 3, 8, 9, 10, 17] {
        let (theirs, own, back) = played(&Drill::once(3, 1, step, "state:0"));
        assert_eq!(theirs, state, "step {step}");
        assert_eq!(own, buffer, "step {step}");
        all += back;
    }
    assert!(all >= 4, "went back {all} times");
}
