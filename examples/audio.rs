//! Sounds of four kinds, made up or from a folder of WAV files: mel spectrograms, SpecAugment and a small
//! convolutional network.
//!
//!     cargo run --release -p unisono-examples --bin audio -- --replicas 2

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use unisono::data::{
    DataError, Draws, Memory, Source, Spectrogram, WavFolder, augment, channels_first, split_fraction,
};
use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, Dense, Dropout, GlobalAvgPool2d, MaxPool2d, Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, Run};

const DEFAULTS: Defaults = Defaults { epochs: 16, global_batch: 32, shards: 8, seed: 42 };
/// The numbers of a sound, a quarter of a second, and how many there are in a second.
const LENGTH: usize = 2000;
const RATE: u32 = 8000;

#[derive(Args)]
struct Flags {
    /// Folder with other sounds: DIR/CLASS/*.wav, of 8,000 values a second [default: made-up sounds]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a network to tell sounds apart", audio)
}

fn audio(run: Run, flags: Flags) -> Result<(), Error> {
    let (all, classes): (Arc<dyn Source>, usize) = match &flags.data {
        None => (Arc::new(sounds(640)?), 4),
        Some(dir) => {
            let folder = WavFolder::open(dir)?.length(LENGTH);
            let classes = folder.class_names().len();
            (Arc::new(folder), classes)
        }
    };
    let [train, held_out] = split_fraction(all, 0.8, run.seed)?;
    let mel = || Spectrogram::new(128).hop(64).mel(RATE, 24).log();
    // Only what is trained on is shifted and masked.
    let train = run
        .loader(train)
        .shuffle(run.seed)
        .try_map("shift", augment::time_shift("x", 400))
        .version("1")
        .try_map("mel", mel().transform("x"))
        .version("1")
        .try_map("mask", augment::spec_augment("x", [1, 6], [1, 4], 0.0))
        .version("1")
        .try_map("channels first", channels_first("x"))
        .version("1");
    let held_out = run.loader(held_out).try_map("mel", mel().transform("x"));
    let held_out = held_out.try_map("channels first", channels_first("x"));

    let model = [16, 32, 32].into_iter().fold(Sequential::new(), |model, channels| {
        let conv = Conv2d::new(channels, 3).padding(1).no_bias();
        model.add(conv).add(BatchNorm::new()).add(Relu).add(MaxPool2d::new(2))
    });
    let model = model.add(GlobalAvgPool2d).add(Dropout::new(0.2)).add(Dense::new(classes));
    let builder = Trainer::builder(model).optimizer(AdamW::new(3e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;
    // What is claimed is claimed of the made-up sounds.
    if flags.data.is_none() { DEFAULTS.claim(&trainer, "accuracy", 0.95) } else { Ok(()) }
}

/// Makes sounds in noise: a steady tone, one that rises, one that falls, and one that comes and goes.
fn sounds(count: usize) -> Result<Memory, DataError> {
    let mut draws = Draws::of(1, "example", "sounds", 0, 0);
    let (mut x, mut y) = (vec![], vec![]);
    for class in (0..count).map(|sound| sound as i32 % 4) {
        let [hertz, change, loud] =
            [(500.0, 1500.0), (800.0, 1600.0), (0.3, 1.0)].map(|(low, high)| draws.range(low, high));
        let change = [0.0, change, -change / 2.0, 0.0][class as usize];
        let mut phase = draws.range(0.0, 1.0);
        for at in 0..LENGTH {
            let time = at as f32 / LENGTH as f32;
            phase = (phase + (hertz + change * time) / RATE as f32).fract();
            let heard = f32::from(u8::from(class < 3 || (8.0 * time).fract() < 0.5));
            x.push(loud * heard * libm::sinf(std::f32::consts::TAU * phase) + 0.2 * draws.normal());
        }
        y.push(class);
    }
    Ok(Memory::labelled(x, [LENGTH], y)?.with_classes("y", ["steady", "rising", "falling", "pulsed"]))
}
