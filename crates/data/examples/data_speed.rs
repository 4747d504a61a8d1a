//! Measures how fast an input pipeline is on its own, and which of its stages is the slowest.
//!
//!     cargo run --release -p unisono-data --example data_speed -- [images] [seconds] [threads]
//!
//! `images` is a directory with a directory of JPEG or PNG files for each class; without it, pictures are
//! made up. Each is cropped and resized to 224 x 224, flipped and normalised, in batches of 64. A `-` keeps
//! an argument's default.

use std::time::{Duration, Instant};

use unisono_data::{DataError, ImageFolder, Loader, Memory, Position, Statistics, augment, normalize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| (argument != "-").then_some(argument));
    let images = arguments.next().flatten();
    let seconds: f64 = arguments.next().flatten().map_or(Ok(5.0), |text| text.parse())?;
    let threads: Option<usize> = arguments.next().flatten().map(|text| text.parse()).transpose()?;

    let loader = match images {
        Some(root) => Loader::new(ImageFolder::open(root)?),
        None => Loader::new(made_up()?),
    };
    // These are ImageNet's statistics, for values 0 to 255.
    let statistics = Statistics {
        count: 1,
        mean: [0.485, 0.456, 0.406].map(|mean| mean * 255.0).to_vec(),
        deviation: [0.229, 0.224, 0.225].map(|deviation| deviation * 255.0).to_vec(),
    };
    let mut loader = loader
        .batch(64)
        .shuffle(42)
        .try_map("resized_crop", augment::resized_crop("x", [224, 224], [0.08, 1.0], [0.75, 4.0 / 3.0]))
        .try_map("flip", augment::flip_horizontal("x", 0.5))
        .try_map("normalise", normalize("x", &statistics));
    if let Some(threads) = threads {
        loader = loader.threads(threads);
    }

    let mut batches = loader.epochs_from(Position::default())?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs_f64(seconds) {
        if let Some(batch) = batches.next().transpose()? {
            batches.recycle(batch);
        }
    }
    let seen = batches.seen();
    println!("{seen}");
    assert!(seen.consumed > 0, "a pipeline gives samples");
    Ok(())
}

/// Returns 64 pictures of 256 x 320 with something in them.
fn made_up() -> Result<Memory, DataError> {
    let pixel = |i: usize| ((i * i / 977) % 256) as f32;
    Memory::labelled((0..64 * 256 * 320 * 3).map(pixel).collect::<Vec<_>>(), [256, 320, 3], vec![0; 64])
}
