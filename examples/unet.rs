//! A U-Net (Ronneberger et al. 2015, with batch norms), a sixteenth as wide, that finds the pixels of discs
//! in noise, and none of those of rings.
//!
//!     cargo run --release -p unisono-examples --bin unet -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Draws, Memory, Values};
use unisono::{
    AdamW, BatchNorm, Conv2d, ConvTranspose2d, Iou, MaxPool2d, Model, Outputs, Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, Run, ids, numbers, published};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 32, shards: 8, seed: 42 };
/// The rows and columns of a picture.
const SIDE: usize = 32;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a U-Net to find discs", unet)
}

fn unet(run: Run) -> Result<(), Error> {
    let picture = [numbers("x", &[3, 64, 64]), ids("y", &[64, 64])];
    published(&Trainer::builder(network(64, 2)), &picture, 31_037_698)?;

    let (train, held_out) = (run.loader(discs(512, 1)?).shuffle(run.seed), run.loader(discs(128, 2)?));
    let builder = Trainer::builder(network(4, 2)).optimizer(AdamW::new(3e-3)).metric(Iou::macro_average(2));
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "iou (macro)", 0.85)
}

/// The first convolution has `width` channels.
fn network(width: usize, classes: usize) -> Model {
    Model::new(move |cx, x| {
        let (mut x, mut skips) = (cx.apply("stem", &double(width), &x["x"]), vec![]);
        for times in [2, 4, 8, 16] {
            skips.push(x.clone());
            let half = cx.apply(&format!("pool{times}"), &MaxPool2d::new(2), &x);
            x = cx.apply(&format!("down{times}"), &double(times * width), &half);
        }
        for (times, skip) in [8, 4, 2, 1].into_iter().zip(skips.into_iter().rev()) {
            let up = ConvTranspose2d::new(times * width, 2).stride(2);
            let up = cx.apply(&format!("up{times}"), &up, &x);
            x = cx.apply(&format!("join{times}"), &double(times * width), &skip.concat(&[&up], 1));
        }
        let classes = cx.apply("out", &Conv2d::new(classes, 1), &x);
        Outputs::new().with("output", &classes.permute(&[1, 2, 0]))
    })
}

fn double(channels: usize) -> Sequential {
    (0..2).fold(Sequential::new(), |twice, _| {
        let conv = Conv2d::new(channels, 3).padding(1).no_bias();
        twice.add(conv).add(BatchNorm::new()).add(Relu)
    })
}

/// Draws pictures of a disc and a ring in noise, and for each pixel whether it is the disc's.
fn discs(count: usize, seed: u64) -> Result<Memory, DataError> {
    let mut draws = Draws::of(seed, "example", "discs", 0, 0);
    let (mut x, mut y) = (vec![], vec![]);
    for _ in 0..count {
        let [disc, ring] = [0, 1].map(|_| [0, 1, 2].map(|_| draws.range(0.0, 1.0)));
        for at in 0..SIDE * SIDE {
            let far = |[top, left, size]: [f32; 3]| {
                let [row, column] = [at / SIDE, at % SIDE].map(|place| place as f32);
                (row - 6.0 - 20.0 * top).hypot(column - 6.0 - 20.0 * left) - 3.0 - 3.0 * size
            };
            let is_disc = far(disc) < 0.0;
            let bright = is_disc || far(ring).abs() < 1.0;
            x.push(f32::from(u8::from(bright)) + 0.3 * draws.normal());
            y.push(i32::from(is_disc));
        }
    }
    Memory::new("x", [1, SIDE, SIDE], Values::F32(x))?.with("y", [SIDE, SIDE], Values::I32(y))
}
