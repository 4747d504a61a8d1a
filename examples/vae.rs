//! A variational autoencoder (Kingma and Welling 2013) of handwritten digits. Its decoder then makes digits
//! out of noise, which are nearly as close to real ones as the digits held out are.
//!
//!     cargo run --release -p unisono-examples --bin vae -- --replicas 2

use std::process::ExitCode;

use unisono::checkpoint::Plan;
use unisono::data::{Draws, Loader, Memory, Values};
use unisono::{Adam, BinaryCrossEntropyWithLogits, Dense, Loss, Model, Outputs, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, numbers, say};

const DEFAULTS: Defaults = Defaults { epochs: 40, global_batch: 64, shards: 8, seed: 42 };
/// The numbers of a code.
const CODE: usize = 8;
/// The pixels of a digit.
const PIXELS: usize = 64;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a variational autoencoder, and makes digits with its decoder", vae)
}

fn vae(run: Run) -> Result<(), Error> {
    let (train, held_out) = run.digit_pictures()?;

    let tower = |last: usize| Sequential::new().add(Dense::new(128)).add(Relu).add(Dense::new(last));
    let (encoder, decoder) = (tower(2 * CODE), tower(PIXELS));
    let model = Model::new(move |cx, x| {
        let picture = x["x"].flatten();
        let code = cx.apply("encoder", &encoder, &picture);
        let (mean, log_variance) = (code.slice(-1, 0..CODE), code.slice(-1, CODE..2 * CODE));
        let divergence = (mean.square() + log_variance.exp() - 1.0 - &log_variance).sum(&[-1]) * 0.5;
        cx.loss("divergence", &divergence, 1.0);
        let drawn = mean + (log_variance * 0.5).exp() * cx.normal(&[CODE]);
        let logits = cx.apply("decoder", &decoder, &drawn);
        let distance = BinaryCrossEntropyWithLogits.per_sample(&logits, &picture) * PIXELS as f32;
        cx.loss("picture", &distance, 1.0);
        Outputs::new().with("made", &logits.sigmoid())
    });
    let builder = Trainer::builder(model).optimizer(Adam::new(2e-3));
    let mut trainer = run.train(builder, &train, &held_out)?;

    // The decoder alone, with its weights out of those of both.
    let decoder = tower(PIXELS);
    let alone = Model::new(move |cx, x| {
        Outputs::new().with("made", &cx.apply("decoder", &decoder, &x["code"]).sigmoid())
    });
    let only_decoder = run.predictor().replicas(1).weights(Plan::new().ignore("encoder.*"));
    let mut predictor = only_decoder.open_tensors(alone, &[numbers("code", &[CODE])], &trainer.weights()?)?;
    let mut draws = Draws::of(run.seed, "example", "code", 0, 0);
    let codes = (0..256 * CODE).map(|_| draws.normal()).collect();
    let made = predictor.predict(&Loader::new(Memory::new("code", [CODE], Values::F32(codes))?))?;

    let (known, others) = (pixels(&train)?, pixels(&held_out)?);
    let made = made.get("made").ok_or("the decoder makes nothing")?;
    let far = [apart(&made.values, &known), apart(&others, &known)];
    say!(
        "distance to the nearest digit trained on: of made digits {:.3}, of real ones {:.3}",
        far[0],
        far[1]
    );
    DEFAULTS.claim_of(&trainer, "distance of real digits for each of made ones", far[1] / far[0], 0.8)
}

/// Returns the pixels of all digits of a loader.
fn pixels(loader: &Loader) -> Result<Vec<f32>, Error> {
    let batches = loader.epoch(0)?.map(|batch| Ok(batch?.f32("x")?.to_vec()));
    Ok(batches.collect::<Result<Vec<_>, Error>>()?.concat())
}

/// Returns the mean distance of some digits to the nearest of others.
fn apart(digits: &[f32], others: &[f32]) -> f64 {
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    let nearest =
        |digit: &[f32]| others.chunks(PIXELS).map(|other| distance(digit, other)).fold(f32::MAX, f32::min);
    let all: Vec<f32> = digits.chunks(PIXELS).map(nearest).collect();
    f64::from(all.iter().sum::<f32>()) / all.len() as f64
}
