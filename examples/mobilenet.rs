//! MobileNetV2 (Sandler et al. 2018), a quarter as wide, on handwritten digits of 32x32 pixels.
//!
//!     cargo run --release -p unisono-examples --bin mobilenet -- --replicas 2

use std::process::ExitCode;

use unisono::{
    Accuracy, AdamW, BatchNorm, Dense, DepthwiseConv2d, GlobalAvgPool2d, Relu6, Residual, Sequential,
    Trainer, Upsample2d,
};
use unisono_examples::{Defaults, Error, Run, ids, normed, numbers, published};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 64, shards: 8, seed: 42 };
/// For each stage: how much wider a block is inside, its channels, the number of blocks, the first one's
/// stride.
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

fn main() -> ExitCode {
    DEFAULTS.program("Trains a MobileNetV2 on handwritten digits", mobilenet)
}

fn mobilenet(run: Run) -> Result<(), Error> {
    let picture = [numbers("x", &[3, 224, 224]), ids("y", &[])];
    published(&Trainer::builder(mobilenet_v2(8, 1000)), &picture, 3_504_872)?;

    let (train, held_out) = run.digit_pictures()?;
    let model = Sequential::new().add(Upsample2d::new(4)).add(mobilenet_v2(2, 10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(5e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.8)
}

/// All channels are `eighths` of those in the paper.
fn mobilenet_v2(eighths: usize, classes: usize) -> Sequential {
    let (mut network, mut from) = (normed(4 * eighths, 3, 2).add(Relu6), 4 * eighths);
    for [expand, channels, blocks, stride] in STAGES {
        let to = channels * eighths / 8;
        network = network.add(block(from, to, expand, stride));
        for _ in 1..blocks {
            network = network.add(Residual::new(block(to, to, expand, 1)));
        }
        from = to;
    }
    network.add(normed(160 * eighths, 1, 1)).add(Relu6).add(GlobalAvgPool2d).add(Dense::new(classes))
}

fn block(from: usize, to: usize, expand: usize, stride: usize) -> Sequential {
    let wide = if expand > 1 { normed(from * expand, 1, 1).add(Relu6) } else { Sequential::new() };
    let depthwise = DepthwiseConv2d::new(3).stride(stride).padding(1).no_bias();
    wide.add(depthwise).add(BatchNorm::new()).add(Relu6).add(normed(to, 1, 1))
}
