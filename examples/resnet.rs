//! ResNet-18 (He et al. 2016), an eighth as wide, on handwritten digits of 32x32 pixels.
//!
//!     cargo run --release -p unisono-examples --bin resnet -- --replicas 2

use std::process::ExitCode;

use unisono::{Accuracy, AdamW, Sequential, Trainer, Upsample2d};
use unisono_examples::{Defaults, Error, Run, ids, numbers, published, resnet18};

const DEFAULTS: Defaults = Defaults { epochs: 6, global_batch: 64, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program("Trains a ResNet-18 on handwritten digits", resnet)
}

fn resnet(run: Run) -> Result<(), Error> {
    let picture = [numbers("x", &[3, 224, 224]), ids("y", &[])];
    published(&Trainer::builder(resnet18(64, 1000)), &picture, 11_689_512)?;

    let (train, held_out) = run.digit_pictures()?;
    let model = Sequential::new().add(Upsample2d::new(4)).add(resnet18(8, 10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(3e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.9)
}
