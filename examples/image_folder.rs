//! Pictures in one folder for each class, and one class is rare: convolutions, augmentation, class weights.
//!
//!     cargo run --release -p unisono-examples --bin image_folder -- --replicas 2

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::{ImageFolder, Pretrained, augment, channels_first, class_counts, preprocess};
use unisono::{
    AdamW, BatchNorm, Conv2d, Dense, Flatten, MaxPool2d, RecallScore, Relu, Sequential, Trainer,
    balanced_class_weights,
};
use unisono_examples::{Defaults, Error, Run, held_out_metric, pictures, say};

const DEFAULTS: Defaults = Defaults { epochs: 6, global_batch: 32, shards: 8, seed: 42 };
/// The rows and columns of a picture.
const SIDE: usize = 16;

#[derive(Args)]
struct Flags {
    /// Folder with other pictures, with a subfolder for each class [default: generated pictures]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Trains convolutions on folders of pictures", image_folder)
}

fn image_folder(run: Run, flags: Flags) -> Result<(), Error> {
    let dir = flags.data.clone().map_or_else(pictures, Ok)?;
    let folder = ImageFolder::open(&dir)?.grayscale().size(SIDE, SIDE);
    let counts: Vec<u64> = class_counts(&folder, "y")?.into_values().collect();
    let all =
        run.loader(folder).shuffle(run.seed).try_map("unit", preprocess("x", Pretrained::Unit)).version("1");
    let (train, held_out) = all.validation_split(0.25)?;
    let train = train.try_map("shift", augment::random_crop("x", [SIDE, SIDE], 2)).version("1");
    let (train, held_out) = (
        train.try_map("first", channels_first("x")).version("1"),
        held_out.try_map("first", channels_first("x")),
    );

    let model = Sequential::new()
        .add(Conv2d::new(8, 3).padding(1))
        .add(BatchNorm::new())
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(16, 3).padding(1))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(counts.len()));
    let builder = Trainer::builder(model)
        .class_weights(balanced_class_weights(&counts))
        .metric(RecallScore::macro_average(counts.len()))
        .optimizer(AdamW::new(3e-3));
    let trainer = run.train(builder, &train, &held_out)?;

    let recall = held_out_metric(&trainer, "recall (macro)");
    say!("validation: {:.1}% of each class are found, on average; {counts:?} pictures", 100.0 * recall);
    // The claim is not checked for other data.
    match flags.data {
        Some(_) => Ok(()),
        None => DEFAULTS.claim_of(&trainer, "mean recall on the validation pictures", recall, 0.9),
    }
}
