//! A Siamese network: one tower sees two handwritten digits and tells whether they are the same digit.
//!
//!     cargo run --release -p unisono-examples --bin siamese -- --replicas 2

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::{Column, Csv, Draws, Memory, Source, Values};
use unisono::{
    AdamW, BinaryAccuracy, BinaryCrossEntropyWithLogits, Dense, Dropout, Model, Outputs, Relu, Sequential,
    Trainer,
};
use unisono_examples::{Defaults, Error, Refused, Run, data, held_out_metric, say};

const DEFAULTS: Defaults = Defaults { epochs: 12, global_batch: 64, shards: 8, seed: 42 };
/// The pixels of a digit.
const PIXELS: usize = 64;
/// The share of the digits that is trained on: of the file in the repository the first 1,400.
const TRAINED: (usize, usize) = (1_400, 1_797);

#[derive(Args)]
struct Flags {
    /// File with other data, gzipped or not. Each line has 64 grey values and a label
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Trains one tower to compare two digits", siamese)
}

fn siamese(run: Run, flags: Flags) -> Result<(), Error> {
    let digits = Csv::new(data(flags.data.as_deref(), "digits.csv.gz")).label(Column::Last).read()?;
    // The digits of the pairs that are held out are in no other pair.
    let (all, last) = (digits.len() as usize, digits.len() as usize * TRAINED.0 / TRAINED.1);
    let (train, held_out) = (pairs(&digits, 0..last, 6_000)?, pairs(&digits, last..all, 1_500)?);
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let tower = Sequential::new().add(Dense::new(128)).add(Relu).add(Dropout::new(0.1)).add(Dense::new(32));
    let model = Model::new(move |cx, x| {
        let [left, right] = ["left", "right"].map(|side| cx.apply("tower", &tower, &x[side]));
        let apart = left - right;
        Outputs::new().with("same", &cx.apply("distance", &Dense::new(1), &(&apart * &apart)))
    });
    let builder = Trainer::builder(model)
        .loss_of("same", BinaryCrossEntropyWithLogits, 1.0)
        .metric_of("same", BinaryAccuracy)
        .optimizer(AdamW::new(2e-3));
    let trainer = run.train(builder, &train, &held_out)?;

    let right = held_out_metric(&trainer, "same binary accuracy");
    say!("validation: {:.2}% of the pairs are correct", 100.0 * right);
    // Nothing is claimed of other data.
    let least = if flags.data.is_none() { 0.88 } else { 0.0 };
    DEFAULTS.claim_of(&trainer, "accuracy on the validation pairs", right, least)
}

/// Draws pairs of a range of the digits, half of which are the same digit.
fn pairs(digits: &Memory, range: std::ops::Range<usize>, count: u64) -> Result<Memory, Error> {
    let x = digits.array("x").and_then(Values::as_f32).ok_or("the digits have no pixels")?;
    let y = digits.array("y").and_then(Values::as_i32).ok_or("the digits have no labels")?;
    if x.len() != PIXELS * y.len() || y[range.clone()].windows(2).all(|pair| pair[0] == pair[1]) {
        let what = format!("digits of {PIXELS} pixels, of at least two classes: shuffle the rows");
        return Err(Refused(format!("rows {} to {} have to be {what}", range.start + 1, range.end)).into());
    }
    let mut draws = Draws::of(range.start as u64, "example", "pairs", 0, 0);
    let mut draw = || range.start + draws.below(range.len() as u32) as usize;
    let picture = |at: usize| x[PIXELS * at..PIXELS * (at + 1)].iter().map(|grey| grey / 16.0);
    let (mut left, mut right, mut same) = (vec![], vec![], vec![]);
    for is_same in (0..count).map(|pair| pair % 2 == 0) {
        let first = draw();
        let second = std::iter::repeat_with(&mut draw).find(|&other| (y[other] == y[first]) == is_same);
        left.extend(picture(first));
        right.extend(second.into_iter().flat_map(picture));
        same.push(f32::from(u8::from(is_same)));
    }
    let pairs = Memory::new("left", [PIXELS], Values::F32(left))?;
    Ok(pairs.with("right", [PIXELS], Values::F32(right))?.with("same", [1], Values::F32(same))?)
}
