//! Segmentation: a small encoder and decoder say for each pixel whether it is background, disc or square.
//! Pictures and masks are flipped and turned together.
//!
//!     cargo run --release -p unisono-examples --bin segment -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Draws, Memory, Values, augment, channels_first};
use unisono::{
    AdamW, BatchNorm, Conv2d, CrossEntropy, Iou, MaxPool2d, Model, Outputs, Relu, Sequential, Trainer,
    Upsample2d,
};
use unisono_examples::{Defaults, Error, Run};

const DEFAULTS: Defaults = Defaults { epochs: 10, global_batch: 16, shards: 8, seed: 42 };
/// The rows and columns of a picture.
const SIDE: usize = 32;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a network to find the pixels of discs and squares", segment)
}

fn segment(run: Run) -> Result<(), Error> {
    let train = run.loader(shapes(512, 1)?).shuffle(run.seed);
    // One transform of both fields draws once, so the mask stays on its picture.
    let train = train
        .try_map("flip", augment::flip_horizontal(["picture", "mask"], 0.5))
        .version("1")
        .try_map("turn", augment::rotation(["picture", "mask"], 20.0))
        .version("1")
        .try_map("brightness", augment::brightness("picture", 0.2))
        .version("1")
        .try_map("channels first", channels_first("picture"))
        .version("1");
    let held_out = run.loader(shapes(128, 2)?).try_map("channels first", channels_first("picture"));

    let model = Model::new(|cx, x| {
        let fine = cx.apply("fine", &block(8), &x["picture"]);
        let half = cx.apply("half", &MaxPool2d::new(2), &fine);
        let middle = cx.apply("middle", &block(16), &half);
        let quarter = cx.apply("quarter", &MaxPool2d::new(2), &middle);
        let coarse = cx.apply("coarse", &block(32), &quarter);
        let middle = cx.apply("up2", &Upsample2d::new(2), &coarse).concat(&[&middle], 1);
        let middle = cx.apply("join2", &block(16), &middle);
        let fine = cx.apply("up1", &Upsample2d::new(2), &middle).concat(&[&fine], 1);
        let fine = cx.apply("join1", &block(8), &fine);
        // Classes are the last axis of an output.
        let classes = cx.apply("classes", &Conv2d::new(3, 1), &fine).permute(&[1, 2, 0]);
        Outputs::new().with("classes", &classes)
    });
    let builder = Trainer::builder(model)
        .loss_between("classes", "mask", CrossEntropy::new(), 1.0)
        .metric_between("classes", "mask", Iou::macro_average(3))
        .optimizer(AdamW::new(3e-3));
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "classes iou (macro)", 0.8)
}

fn block(channels: usize) -> Sequential {
    Sequential::new().add(Conv2d::new(channels, 3).padding(1).no_bias()).add(BatchNorm::new()).add(Relu)
}

/// Draws pictures of a disc and a square in noise, of any brightness, and the class of each pixel.
fn shapes(count: usize, seed: u64) -> Result<Memory, DataError> {
    let mut draws = Draws::of(seed, "example", "shapes", 0, 0);
    let (mut pictures, mut masks) = (vec![], vec![]);
    for _ in 0..count {
        let [disc, square] = [0, 1].map(|_| [0, 1, 2].map(|_| draws.range(0.0, 1.0)));
        let bright = draws.range(0.7, 1.3);
        for at in 0..SIDE * SIDE {
            let from = |[row, column, _]: [f32; 3]| {
                [(at / SIDE) as f32 - 6.0 - 20.0 * row, (at % SIDE) as f32 - 6.0 - 20.0 * column]
                    .map(f32::abs)
            };
            let ([down, right], [below, beside]) = (from(disc), from(square));
            let is_disc = (down * down + right * right).sqrt() < 3.0 + 3.0 * disc[2];
            let class = if is_disc { 1 } else { 2 * i32::from(below.max(beside) < 2.5 + 3.0 * square[2]) };
            pictures.push(bright * f32::from(u8::from(class > 0)) + 0.3 * draws.normal());
            masks.push(class);
        }
    }
    let pictures = Memory::new("picture", [SIDE, SIDE, 1], Values::F32(pictures))?;
    pictures.with("mask", [SIDE, SIDE], Values::I32(masks))
}
