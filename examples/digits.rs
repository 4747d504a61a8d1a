//! Handwritten digits of 8x8 pixels: a perceptron with dropout that classifies 97% of the held-out digits
//! correctly.
//!
//!     cargo run --release -p unisono-examples --bin digits -- --replicas 3 --out target/digits

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::{Column, Csv, Per, Source, Statistics, normalize, split};
use unisono::{Accuracy, AdamW, Dense, Dropout, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, accuracy, data, say};

const DEFAULTS: Defaults = Defaults { epochs: 20, global_batch: 64, shards: 8, seed: 42 };
/// The seed of the split. It does not depend on the run's seed, so runs with different seeds can be compared.
const SPLIT: u64 = 42;

#[derive(Args)]
struct Flags {
    /// File with other data, gzipped or not. Each line has 64 grey values and a label
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
}

pub(crate) fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a perceptron on the UCI digits", digits)
}

fn digits(run: Run, flags: Flags) -> Result<(), Error> {
    let digits = Csv::new(data(flags.data.as_deref(), "digits.csv.gz")).label(Column::Last).read()?;
    // Four fifths, 1,437 samples, are for training. The others are normalised with the statistics of the
    // training samples, so that nothing of them is known in training.
    let train_samples = digits.len() * 4 / 5;
    let [train, held_out] = split(digits, train_samples, SPLIT)?;
    let statistics = Statistics::of(&train, "x", Per::All, 1)?;
    // A closure cannot be compared on resume: its version stands for it, and is changed with it.
    let train = run.loader(train).try_map("normalise", normalize("x", &statistics)).version("1");
    let train = train.shuffle(run.seed);
    let held_out = run.loader(held_out).try_map("normalise", normalize("x", &statistics));

    let model = Sequential::new()
        .add(Dense::new(128))
        .add(Relu)
        .add(Dropout::new(0.2))
        .add(Dense::new(64))
        .add(Relu)
        .add(Dropout::new(0.2))
        .add(Dense::new(10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(2e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;

    let accuracy = accuracy(&trainer);
    say!("validation: {:.2}% correct", 100.0 * accuracy);
    // The claim is not checked for other data.
    match flags.data {
        Some(_) => Ok(()),
        None => DEFAULTS.claim_of(&trainer, "accuracy on the validation set", accuracy, 0.97),
    }
}
