//! Data and models that the whole-system tests share.

pub mod conformance;
#[cfg(any(test, doctest))]
mod guide;
pub mod isa;
pub mod vendors;

use unisono::data::{DataError, Loader, Memory};
use unisono::world::{Script, threads};
use unisono::{Accuracy, AdamW, Builder, Dense, Dropout, Relu, Sequential, Trainer, World};
use unisono_random::Draws;

/// The number of features of a sample of [`blobs`].
pub const FEATURES: usize = 6;
/// The number of classes of [`blobs`].
pub const CLASSES: usize = 3;

/// Returns `samples` points around the centres of their classes. They are easy to learn and differ from seed
/// to seed.
pub fn blobs(samples: usize, seed: u64) -> Result<Memory, DataError> {
    let mut draws = Draws::of(seed, "test", "blobs", 0, 0);
    let labels: Vec<i32> = (0..samples).map(|i| (i % CLASSES) as i32).collect();
    let feature = |(i, label): (usize, i32)| if i as i32 % CLASSES as i32 == label { 2.0 } else { 0.0 };
    let values = labels.iter().flat_map(|&label| (0..FEATURES).map(move |i| (i, label)));
    let features: Vec<f32> = values.map(|v| feature(v) + draws.normal()).collect();
    Memory::labelled(features, [FEATURES], labels)
}

/// Returns a shuffled loader over [`blobs`].
pub fn loader(samples: usize, seed: u64) -> Result<Loader, DataError> {
    Ok(Loader::new(blobs(samples, seed)?).shuffle(seed).threads(1))
}

/// Runs a function on each of some ranks, which are threads here, with the rank's world.
///
/// # Panics
/// A rank panicked.
pub fn on_ranks<T: Send>(ranks: usize, script: Script, run: impl Fn(World) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> =
            threads(ranks, script).into_iter().map(|world| scope.spawn(move || run(world))).collect();
        let end = |panic| std::panic::resume_unwind(panic);
        running.into_iter().map(|rank| rank.join().unwrap_or_else(end)).collect()
    })
}

/// Returns a builder for a perceptron with dropout that is trained with AdamW.
pub fn perceptron(hidden: usize) -> Builder {
    let model =
        Sequential::new().add(Dense::new(hidden)).add(Relu).add(Dropout::new(0.25)).add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(AdamW::new(0.01)).metric(Accuracy).seed(11)
}
