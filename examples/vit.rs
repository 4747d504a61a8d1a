//! A vision transformer (Dosovitskiy et al. 2021: ViT-B/16, and a small one) on handwritten digits, in
//! patches of 2x2 pixels.
//!
//!     cargo run --release -p unisono-examples --bin vit -- --replicas 2

use std::process::ExitCode;

use unisono::{
    Accuracy, AdamW, Conv2d, Dense, Initializer, LayerNorm, Lead, Model, Outputs, Trainer, TransformerBlock,
};
use unisono_examples::{Defaults, Error, Run, ids, numbers, published};

const DEFAULTS: Defaults = Defaults { epochs: 15, global_batch: 64, shards: 8, seed: 42 };

/// The size of a vision transformer; patches have `patch` rows and columns.
#[derive(Clone, Copy)]
struct Size {
    patch: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    classes: usize,
}

const BASE: Size = Size { patch: 16, width: 768, blocks: 12, heads: 12, classes: 1000 };
const SMALL: Size = Size { patch: 2, width: 32, blocks: 2, heads: 4, classes: 10 };

fn main() -> ExitCode {
    DEFAULTS.program("Trains a vision transformer on handwritten digits", vit)
}

fn vit(run: Run) -> Result<(), Error> {
    let picture = [numbers("x", &[3, 224, 224]), ids("y", &[])];
    published(&Trainer::builder(transformer(BASE)), &picture, 86_567_656)?;

    let (train, held_out) = run.digit_pictures()?;
    let builder = Trainer::builder(transformer(SMALL)).optimizer(AdamW::new(3e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.93)
}

fn transformer(size: Size) -> Model {
    let Size { patch, width, blocks, heads, classes } = size;
    Model::new(move |cx, x| {
        let patches = cx.apply("patches", &Conv2d::new(width, patch).stride(patch), &x["x"]);
        let count: usize = patches.dims()[1..].iter().product();
        let patches = patches.reshape(&[width, count]).transpose(1, 2);
        let token = cx.parameter("class", &[1, width], Initializer::Zeros).expand(Lead::Sample, &[1, width]);
        let positions = cx.parameter("positions", &[count + 1, width], Initializer::Normal(0.02));
        let mut x = token.concat(&[&patches], 1) + positions;
        for block in 0..blocks {
            x = cx.apply(&format!("block{block}"), &TransformerBlock::new(heads), &x);
        }
        let class = cx.apply("norm", &LayerNorm::new(), &x).slice(1, 0..1).reshape(&[width]);
        Outputs::new().with("output", &cx.apply("head", &Dense::new(classes), &class))
    })
}
