//! Deep Q-learning (Mnih et al. 2015, with the double estimate of van Hasselt et al. 2016): a network learns
//! from its own play to balance a pole on a cart. Its targets come from an average of its weights.
//!
//!     cargo run --release -p unisono-examples --bin dqn -- --replicas 2

use std::process::ExitCode;

use unisono::data::{Batch, Draws, Episodes, Replay};
use unisono::{AdamW, Dense, Huber, Loss, Model, Optimizer, Outputs, Relu, Sequential, Trainer};
use unisono_examples::{CartPole, Defaults, Error, Run, claim, say};

const DEFAULTS: Defaults = Defaults { epochs: 14, global_batch: 64, shards: 8, seed: 42 };
/// The steps of training in an epoch, each after a push to all carts.
const STEPS: u64 = 250;
const CARTS: usize = 16;

fn main() -> ExitCode {
    DEFAULTS.program("Learns to balance a pole by deep Q-learning", dqn)
}

fn dqn(run: Run) -> Result<(), Error> {
    let dense = || Sequential::new().add(Dense::new(64)).add(Relu);
    let net = Sequential::new().add(dense()).add(dense()).add(Dense::new(2));
    let model = Model::new(move |cx, x| {
        let values = cx.apply("net", &net, &x["state"]);
        // The network chooses the next action, and its average says what that is worth.
        let next = cx.apply_frozen("net", &net, &x["next"]).argmax().to_i32().one_hot(2);
        let worth = (cx.apply_average("net", &net, &x["next"], 0.98) * next).sum(&[-1]).detach();
        let target = &x["reward"] + &x["continues"] * worth * 0.98;
        let value = (&values * x["action"].one_hot(2)).sum(&[-1]);
        cx.loss("difference", &Huber::default().per_sample(&value, &target), 1.0);
        Outputs::new().with("values", &values)
    });
    let builder = Trainer::builder(model).optimizer(AdamW::new(1e-3).weight_decay(0.0).clip_norm(5.0));

    let mut replay = Replay::new(20_000, run.seed);
    // The network is asked about all carts at once.
    let carts = |most: usize| Episodes::<CartPole>::new(most.min(run.global_batch));
    let (test, mut carts) = (carts(64), carts(CARTS));
    for step in 0..50 {
        carts.act(&mut replay, &mut Draws::of(run.seed, "dqn", "first", 0, step), &[], 1.0)?;
    }
    let values = |trainer: &mut Trainer, states: &Batch| -> Result<Vec<f32>, Error> {
        Ok(trainer.predict_batch_outputs(states, &["values"])?.into_values("values"))
    };
    let mut trainer = run.train_by(builder, replay, STEPS, |trainer| {
        let step = trainer.steps();
        // An epoch starts with new carts, so that a run is resumed with its weights and its buffer alone.
        if step % STEPS == 0 {
            carts.clear();
        }
        let values = carts.states()?.map_or(Ok(vec![]), |states| values(trainer, &states))?;
        let replay = trainer.replay_mut().ok_or("a run without its buffer")?;
        let epsilon = (1.0 - step as f32 / 1000.0).max(0.05);
        carts.act(replay, &mut Draws::of(run.seed, "dqn", "play", 0, step), &values, epsilon)?;
        Ok(replay.draw(run.global_batch)?)
    })?;

    let mut draws = Draws::of(run.seed, "dqn", "test", 0, 0);
    let pushes = test.play(&mut draws, |states| values(&mut trainer, states))?;
    let pushes = f64::from(pushes.iter().sum::<f32>()) / pushes.len() as f64;
    say!("a pole stands for {pushes:.1} of {} pushes", CartPole::MOST);
    if trainer.steps() >= u64::from(DEFAULTS.epochs) * STEPS {
        claim("pushes", pushes, 150.0)
    } else {
        Ok(())
    }
}
