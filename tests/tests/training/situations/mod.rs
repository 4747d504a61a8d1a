//! Situations in which other frameworks are known to compute something else than what was meant, most of them
//! from public bug reports. Each is tried as a program would that was written after the guide, on one replica
//! and on three. The expected values are worked out beside it, in f64 by hand ([`by_hand`]), or by a model
//! without the difficulty.
//!
//! | situation | what goes wrong elsewhere | where |
//! | --- | --- | --- |
//! | the last batch is smaller, or does not divide among replicas | dropped, padded, or a mean of means | `steps` |
//! | a global batch larger than the data, more replicas than samples | idle replicas add zeros or NaN | `steps` |
//! | weights of samples, also all 0 in a batch | each replica divides by its own sum; decay still acts | `steps` |
//! | weights of classes | a mean over each replica | `steps` |
//! | tokens that are ignored, in other numbers on each replica | means of means, with accumulation too | `steps` |
//! | gradient accumulation with a ragged last batch | the last step is too large or left out | `steps` |
//! | penalties, clipping by the norm | once for each replica, or by a replica's own norm | `steps` |
//! | a layer that is applied twice, an id that comes twice | one of two gradients is lost | `steps` |
//! | learning rates by steps | counted in batches of a replica, multiplied by replicas | `steps` |
//! | frozen and unused parameters under weight decay and momentum | they move | `steps` |
//! | metrics with a ragged last batch | a mean over batches; what is padded counts | `measured` |
//! | metrics and losses of the second epoch | they go on from the first | `measured` |
//! | an evaluation that drops its last batch | some samples are not counted, in silence | `measured` |
//! | augmentation before data are split | what is held out is augmented as well | `measured` |
//! | targets of shape `[B]` beside outputs of `[B, 1]` | they are broadcast to `[B, B]` | `measured` |
//! | a class that the model does not have | a loss of something else, NaN | `measured` |
//! | weights below 0, targets that are no probabilities | a gradient in the wrong direction | `measured` |
//! | a metric watched in the wrong direction | the worst weights are kept | `measured` |
//! | rows of predictions | in the order of replicas, with padding | `measured` |
//! | batch norm | statistics of one replica; a last batch of one sample | `normed` |
//! | batch norm under accumulation, and in evaluations | statistics of a part; they move | `normed` |
//! | averages of weights beside batch norm | with the statistics of other weights | `averages.rs` |
//! | dropout and augmentation | the same draws on each replica, thread or epoch | `normed` |
//! | the order of an epoch | the same each epoch; samples come twice or never | `normed` |
//! | state from batch to batch | not carried, or spoiled by an evaluation in between | `sequences` |
//! | masks: backwards, in attention, without any token | padding is read, NaN | `sequences` |
//! | saved on three replicas, resumed on one, in the middle of an epoch | samples come again | `lives` |
//! | a sample that is not finite on one replica | all are spoiled, or one alone skips the step | `lives` |
//! | overflow in mixed precision | one replica skips a step and others do not | `precision.rs` |
//! | other data, settings or draws on one machine | means of different runs | `lives` |

mod by_hand;
mod lives;
mod measured;
mod normed;
mod sequences;
mod steps;

use unisono::data::{Loader, Memory, Values};
use unisono::{Builder, Chain, Dense, MeanSquaredError, Sgd, Trainer};
use unisono_random::Draws;

use by_hand::{Linear, Row};

/// Each situation is tried with as many replicas.
const REPLICAS: [usize; 2] = [1, 3];
/// The samples of [`rows`]: in batches of 4, the last one has 3.
const SAMPLES: usize = 11;
const BATCH: usize = 4;
const RATE: f64 = 0.1;

/// Returns rows of two numbers with a target, each of weight 1.
fn rows() -> Vec<Row> {
    let mut draws = Draws::of(7, "test", "situations", 0, 0);
    let mut row = || Row { x: [draws.normal(), draws.normal()], y: draws.normal(), weight: 1.0 };
    (0..SAMPLES).map(|_| row()).collect()
}

/// Returns rows as data, in their order. Weights are a field if one is not 1.
fn data(rows: &[Row]) -> Loader {
    let x = rows.iter().flat_map(|row| row.x).collect();
    let data = Memory::new("x", [2], Values::F32(x)).unwrap();
    let data = data.with("y", [1], Values::F32(rows.iter().map(|row| row.y).collect())).unwrap();
    let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
    let data = match weights.iter().all(|&weight| weight == 1.0) {
        true => data,
        false => data.with("w", [], Values::F32(weights)).unwrap(),
    };
    Loader::new(data).threads(1)
}

/// Returns a builder of a linear model with one output that is trained without momentum.
fn linear(optimizer: impl Into<Chain>) -> Builder {
    Trainer::builder(Dense::new(1)).loss(MeanSquaredError).optimizer(optimizer).global_batch(BATCH)
}

/// Builds a trainer for some data.
fn build(builder: Builder, data: &Loader) -> Trainer {
    builder.build(&data.fields().unwrap()).unwrap()
}

/// Builds a trainer for some data that starts with the weights of a model by hand.
fn build_from(start: &Linear, builder: Builder, data: &Loader) -> Trainer {
    let mut trainer = build(builder, data);
    trainer.set_tensor("weight", &start.weight.map(|x| x as f32)).unwrap();
    trainer.set_tensor("bias", &[start.bias as f32]).unwrap();
    trainer
}

fn sgd() -> Sgd {
    Sgd::new(RATE)
}

fn tensor(trainer: &mut Trainer, name: &str) -> Vec<f64> {
    let values = trainer.tensor(name).unwrap_or_else(|| panic!("there is no {name}")).unwrap();
    values.into_iter().map(f64::from).collect()
}

/// Asserts that numbers of f32 are those that were worked out in f64.
fn assert_near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}: {found:?}, not {expected:?}");
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-5 * (1.0 + b.abs());
    assert!(found.iter().zip(expected).all(is_near), "{what}: {found:?}, not {expected:?}");
}

/// Asserts that a trainer has the weights of a model by hand.
fn assert_is(what: &str, trainer: &mut Trainer, expected: &Linear) {
    assert_near(what, &tensor(trainer, "weight"), &expected.weight);
    assert_near(what, &tensor(trainer, "bias"), &[expected.bias]);
}
