//! ResNet-18 (He et al. 2016), an eighth as wide, on handwritten digits of 32x32 pixels.
//!
//!     cargo run --release -p unisono-examples --bin resnet -- --replicas 2

use std::process::ExitCode;

use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, Dense, GlobalAvgPool2d, MaxPool2d, Relu, Residual, Sequential,
    Trainer, Upsample2d,
};
use unisono_examples::{Defaults, Error, Run, ids, numbers, published};

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

/// The first convolution has `width` channels.
fn resnet18(width: usize, classes: usize) -> Sequential {
    let stem = normed(width, 7, 2).add(Relu).add(MaxPool2d::new(3).stride(2).padding(1));
    let body = [1, 2, 4, 8].into_iter().fold(stem, |network, times| {
        let widens = times > 1;
        let first = block(times * width, 1 + usize::from(widens), widens);
        network.add(first).add(block(times * width, 1, false))
    });
    body.add(GlobalAvgPool2d).add(Dense::new(classes))
}

fn block(channels: usize, stride: usize, widens: bool) -> Sequential {
    let inner = normed(channels, 3, stride).add(Relu).add(normed(channels, 3, 1));
    let block = Residual::new(inner);
    let block = if widens { block.shortcut(normed(channels, 1, stride)) } else { block };
    Sequential::new().add(block).add(Relu)
}

fn normed(channels: usize, kernel: usize, stride: usize) -> Sequential {
    let conv = Conv2d::new(channels, kernel).padding(kernel / 2).stride(stride).no_bias();
    Sequential::new().add(conv).add(BatchNorm::new())
}
