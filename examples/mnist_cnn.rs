//! MNIST's digits of 28x28 pixels: a small convolutional network with batch norm, pooling and dropout. After
//! one epoch over the first 10,000 images it classifies 95% of the test images correctly, after three epochs
//! over all images 98.5%.
//!
//!     cargo run --release -p unisono-examples --bin mnist_cnn -- --data MNIST --out target/mnist_cnn
//!
//! `docs/STATES.md` says where MNIST's files come from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use unisono::data::{ImageFolder, Loader, Source, channels_first, rescale};
use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, Dense, Dropout, Flatten, MaxPool2d, Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, Run, accuracy, claim, mnist, part, say};

const DEFAULTS: Defaults = Defaults { epochs: 3, global_batch: 64, shards: 8, seed: 42 };

#[derive(Args)]
struct Flags {
    /// Folder with MNIST's four IDX files, gzipped or not. docs/STATES.md says where to get them
    #[arg(long, value_name = "DIR", required_unless_present = "images", conflicts_with = "images")]
    data: Option<PathBuf>,
    /// Use pictures instead: DIR/train/CLASS/*.png and DIR/test/CLASS/*.png
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Number of images to train on, from the start [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    train_samples: Option<u64>,
}

pub(crate) fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a convolutional network on MNIST", mnist_cnn)
}

fn mnist_cnn(run: Run, flags: Flags) -> Result<(), Error> {
    let [train, test] = match (&flags.data, &flags.images) {
        (_, Some(dir)) => [pictures(&dir.join("train"))?, pictures(&dir.join("test"))?],
        (Some(dir), None) => [mnist(dir, "train")?, mnist(dir, "t10k")?],
        (None, None) => return Err("no data: --data DIR or --images DIR".into()),
    };
    let samples = train.len().min(flags.train_samples.unwrap_or(u64::MAX));
    let first = part(&train, 0..samples)?;
    // Turns [28, 28] or [28, 28, 1] into [1, 28, 28].
    let prepared = |loader: Loader| {
        loader
            .try_map("pixels", rescale("x", 1.0 / 255.0, 0.0))
            .version("1")
            .try_map("channels_first", channels_first("x"))
            .version("1")
    };
    let train = prepared(run.loader(first)).shuffle(run.seed);
    let test = prepared(run.loader(test));

    let model = Sequential::new()
        .add(Conv2d::new(16, 3).padding(1).no_bias())
        .add(MaxPool2d::new(2))
        .add(BatchNorm::new())
        .add(Relu)
        .add(Conv2d::new(32, 3).padding(1).no_bias())
        .add(MaxPool2d::new(2))
        .add(BatchNorm::new())
        .add(Relu)
        .add(Flatten)
        .add(Dense::new(64))
        .add(Relu)
        .add(Dropout::new(0.25))
        .add(Dense::new(10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(2e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &test)?;

    let accuracy = accuracy(&trainer);
    say!("test images: {:.2}% right", 100.0 * accuracy);
    // The claim is not checked for runs on fewer images.
    match (samples, trainer.history().len()) {
        (60_000.., 3..) => claim("accuracy on the test images", accuracy, 0.985),
        (10_000.., 1..) => claim("accuracy on the test images", accuracy, 0.95),
        _ => Ok(()),
    }
}

/// Returns pictures of MNIST's size from directories, one for each class.
fn pictures(dir: &Path) -> Result<Arc<dyn Source>, Error> {
    Ok(Arc::new(ImageFolder::open(dir)?.grayscale().size(28, 28)))
}
