//! Deep Q-learning (Mnih et al. 2015, with the double estimate of van Hasselt et al. 2016): a network learns
//! from its own play to balance a pole on a cart. Its targets come from an average of its weights.
//!
//!     cargo run --release -p unisono-examples --bin dqn -- --replicas 2

use std::process::ExitCode;

use clap::Parser;
use unisono::data::{Batch, Draws, Field, Replay, Sample};
use unisono::{AdamW, Dense, Huber, Loss, Model, Optimizer, Outputs, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, RunFlags, claim, program, say};

const DEFAULTS: Defaults = Defaults { epochs: 14, global_batch: 64, shards: 8, seed: 42 };
/// The steps of training in an epoch, each after a push to all carts.
const STEPS: u64 = 250;
const CARTS: usize = 16;
/// How many pushes a pole that does not fall is played for.
const MOST: u32 = 200;

#[derive(Parser)]
#[command(about = "Learns to balance a pole by deep Q-learning", after_help = DEFAULTS.help())]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
}

fn main() -> ExitCode {
    unisono::gpu::prepare_environment();
    program(dqn)
}

fn dqn(flags: Flags) -> Result<(), Error> {
    let run = flags.run.settle(DEFAULTS)?;
    let dense = || Sequential::new().add(Dense::new(64)).add(Relu);
    let net = Sequential::new().add(dense()).add(dense()).add(Dense::new(2));
    let model = Model::new(move |cx, x| {
        let values = cx.apply("net", &net, &x["state"]);
        // The network chooses the next action, and its average says what that is worth.
        let next = cx.apply_frozen("net", &net, &x["next"]).argmax().to_i32().one_hot(2);
        let worth = (cx.apply_average("net", &net, &x["next"], 0.98) * next).sum(&[-1]).detach();
        let target = &x["reward"] + &x["stands"] * worth * 0.98;
        let value = (&values * x["action"].one_hot(2)).sum(&[-1]);
        cx.loss("difference", &Huber::default().per_sample(&value, &target), 1.0);
        Outputs::new().with("values", &values)
    });
    let builder = Trainer::builder(model).optimizer(AdamW::new(1e-3).weight_decay(0.0).clip_norm(5.0));

    let mut replay = Replay::new(20_000, run.seed);
    let mut carts = vec![];
    for step in 0..50 {
        play(&mut carts, &mut replay, &mut Draws::of(run.seed, "dqn", "first", 0, step), |_, _| None)?;
    }
    let mut trainer = run.train_by(builder, replay, STEPS, |trainer| {
        let step = trainer.steps();
        // An epoch starts with new carts, so that a run is resumed with its weights and its buffer alone.
        if step % STEPS == 0 {
            carts.clear();
        }
        let mut draws = Draws::of(run.seed, "dqn", "play", 0, step);
        let values = values(trainer, &carts)?;
        let replay = trainer.replay_mut().ok_or("a run without its buffer")?;
        let chance = (1.0 - step as f32 / 1000.0).max(0.05);
        play(&mut carts, replay, &mut draws, |cart, draws| {
            let best = values.get(2 * cart..2 * cart + 2).map(|value| value[1] > value[0]);
            best.filter(|_| draws.range(0.0, 1.0) > chance)
        })?;
        Ok(replay.draw(run.global_batch)?)
    })?;

    let mut draws = Draws::of(run.seed, "dqn", "test", 0, 0);
    let mut carts: Vec<Cart> = (0..64).map(|_| Cart::new(&mut draws)).collect();
    let mut stood = 0;
    for _ in 0..MOST {
        let values = values(&mut trainer, &carts)?;
        let pushed = carts.into_iter().zip(values.chunks(2));
        carts = pushed.filter_map(|(mut cart, q)| cart.push(q[1] > q[0]).then_some(cart)).collect();
        stood += carts.len();
    }
    let stood = stood as f64 / 64.0;
    say!("a pole stands for {stood:.1} of {MOST} pushes");
    if trainer.steps() >= u64::from(DEFAULTS.epochs) * STEPS { claim("pushes", stood, 150.0) } else { Ok(()) }
}

/// Pushes all carts as `choose` says, or at random where it says nothing, and adds what happened to the
/// buffer. Carts whose poles fall are replaced by new ones.
fn play(
    carts: &mut Vec<Cart>,
    replay: &mut Replay,
    draws: &mut Draws,
    mut choose: impl FnMut(usize, &mut Draws) -> Option<bool>,
) -> Result<(), Error> {
    while carts.len() < CARTS {
        carts.push(Cart::new(draws));
    }
    for (at, cart) in carts.iter_mut().enumerate() {
        let action = choose(at, draws).unwrap_or_else(|| draws.below(2) == 1);
        let state = cart.state;
        let stands = cart.push(action);
        replay.push(
            &Sample::new()
                .with("state", Field::f32([4], state))
                .with("action", Field::i32([], [i32::from(action)]))
                .with("reward", Field::f32([], [1.0]))
                .with("next", Field::f32([4], cart.state))
                .with("stands", Field::f32([], [f32::from(u8::from(stands))])),
        )?;
        if !stands || cart.pushes == MOST {
            *cart = Cart::new(draws);
        }
    }
    Ok(())
}

/// Returns the values of both actions for each cart.
fn values(trainer: &mut Trainer, carts: &[Cart]) -> Result<Vec<f32>, Error> {
    if carts.is_empty() {
        return Ok(vec![]);
    }
    let states: Vec<f32> = carts.iter().flat_map(|cart| cart.state).collect();
    let batch = Batch::of([("state", Field::f32([carts.len(), 4], states))])?;
    let found = trainer.predict_batch_outputs(&batch, &["values"])?;
    Ok(found.get("values").map(|found| found.values.clone()).unwrap_or_default())
}

/// A pole on a cart (Barto, Sutton and Anderson 1983; Gymnasium's `CartPole-v1`).
struct Cart {
    /// The cart's place and speed, the pole's angle and its speed.
    state: [f32; 4],
    pushes: u32,
}

impl Cart {
    fn new(draws: &mut Draws) -> Self {
        Self { state: [0; 4].map(|_| draws.range(-0.05, 0.05)), pushes: 0 }
    }

    /// Pushes the cart to the right or to the left for a fiftieth of a second. Returns whether the pole still
    /// stands.
    fn push(&mut self, right: bool) -> bool {
        let [place, speed, angle, turn] = self.state;
        let (sin, cos) = (libm::sinf(angle), libm::cosf(angle));
        let force = if right { 10.0 } else { -10.0 };
        let push = (force + 0.05 * turn * turn * sin) / 1.1;
        let turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
        let pushed = push - 0.05 * turning * cos / 1.1;
        self.state =
            [place + 0.02 * speed, speed + 0.02 * pushed, angle + 0.02 * turn, turn + 0.02 * turning];
        self.pushes += 1;
        self.state[0].abs() < 2.4 && self.state[2].abs() < 0.2095
    }
}
