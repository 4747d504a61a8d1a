//! Cases that every adapter has to pass, as a library for tests and as programs for people.
//!
//! - [`conformance`]: ops, layers, losses, metrics, optimizers and short runs, held to PyTorch's numbers.
//! - [`vendors`]: the same and random graphs, compared byte by byte between adapters.

pub mod conformance;
pub mod vendors;

use unisono::data::{DataError, Memory};
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
