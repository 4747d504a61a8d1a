//! A generative adversarial network (Goodfellow et al. 2014): the generator learns to make points of a ring
//! out of noise, the critic to tell them from real ones. Both learn in the same step.
//!
//!     cargo run --release -p unisono-examples --bin gan -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Draws, Loader, Memory, Values};
use unisono::{
    Adam, BinaryAccuracy, BinaryCrossEntropyWithLogits, Dense, Groups, Model, Outputs, Relu, Sequential,
    Trainer,
};
use unisono_examples::{Defaults, Error, Run, say};

const DEFAULTS: Defaults = Defaults { epochs: 60, global_batch: 128, shards: 8, seed: 42 };
const POINTS: usize = 4_096;
/// The numbers of a sample's noise.
const NOISE: usize = 4;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a generator and a critic on points of a ring", gan)
}

fn gan(run: Run) -> Result<(), Error> {
    let noisy = |loader: Loader| {
        let noisy = loader.map("noise", |sample, draws| {
            let noise: Vec<f32> = (0..NOISE).map(|_| draws.normal()).collect();
            sample.set("noise", unisono::data::Field::f32(vec![NOISE], noise));
        });
        noisy.version("1")
    };
    let (train, held_out) =
        (noisy(run.loader(ring(POINTS, 1)?).shuffle(run.seed)), noisy(run.loader(ring(512, 2)?)));

    let tower = |last: usize| {
        Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(64)).add(Relu).add(Dense::new(last))
    };
    let (generator, critic) = (tower(2), tower(1));
    let model = Model::new(move |cx, x| {
        let made = cx.apply("generator", &generator, &x["noise"]);
        Outputs::new()
            .with("real", &cx.apply("critic", &critic, &x["point"]))
            .with("fake", &cx.apply("critic", &critic, &made.detach()))
            // Gradients go through the critic to the generator, and not to the critic's weights.
            .with("fooled", &cx.apply_frozen("critic", &critic, &made))
            .with("made", &made)
    });
    let adam = |rate: f64| Adam::new(rate).betas(0.5, 0.999);
    let builder = Trainer::builder(model)
        .loss_of("real", BinaryCrossEntropyWithLogits, 1.0)
        .loss_of("fake", BinaryCrossEntropyWithLogits, 1.0)
        .loss_of("fooled", BinaryCrossEntropyWithLogits, 1.0)
        .metric_of("real", BinaryAccuracy)
        .optimizer(Groups::new(adam(1e-3)).group(|name| name.starts_with("generator"), adam(1e-3)));
    let mut trainer = run.train(builder, &train, &held_out)?;

    let predictions = trainer.predict_all(&held_out)?;
    let made = predictions.get("made").ok_or("the model makes no points")?;
    let radius = |point: &[f32]| f64::from(point[0].hypot(point[1]));
    let near = made.values.chunks(2).filter(|point| (radius(point) - 2.0).abs() < 0.5).count() as f64;
    let share = near / made.shape[0] as f64;
    let mut octants = [0; 8];
    for point in made.values.chunks(2) {
        let turn = f64::from(point[1].atan2(point[0])) / std::f64::consts::TAU + 0.5;
        octants[((turn * 8.0) as usize).min(7)] += 1;
    }
    let emptiest = f64::from(*octants.iter().min().unwrap_or(&0)) / made.shape[0] as f64;
    say!("made: {:.1}% near the ring, {:.1}% in the emptiest eighth of it", 100.0 * share, 100.0 * emptiest);
    DEFAULTS.claim_of(&trainer, "share of points near the ring", share, 0.8)?;
    DEFAULTS.claim_of(&trainer, "share of points in the emptiest eighth of the ring", emptiest, 0.03)
}

/// Points around a ring of radius 2, and the targets of the three losses.
fn ring(points: usize, seed: u64) -> Result<Memory, DataError> {
    let mut draws = Draws::of(seed, "example", "ring", 0, 0);
    let point = |_| {
        let (x, y) = (draws.normal(), draws.normal());
        let radius = (2.0 + 0.1 * draws.normal()) / x.hypot(y).max(1e-6);
        [x * radius, y * radius]
    };
    let values: Vec<f32> = (0..points).flat_map(point).collect();
    Memory::new("point", [2], Values::F32(values))?
        .with("real", [1], Values::F32(vec![1.0; points]))?
        .with("fake", [1], Values::F32(vec![0.0; points]))?
        .with("fooled", [1], Values::F32(vec![1.0; points]))
}
