//! Data and models that the whole-system tests share.

#[cfg(any(test, doctest))]
mod guide;
pub mod isa;

pub use unisono_cases::{CLASSES, FEATURES, blobs, conformance, vendors};

use unisono::cluster::{Script, threads};
use unisono::data::{DataError, Loader};
use unisono::{Accuracy, AdamW, Builder, Cluster, Dense, Dropout, Relu, Sequential, Trainer};

/// Returns a shuffled loader over [`blobs`].
pub fn loader(samples: usize, seed: u64) -> Result<Loader, DataError> {
    Ok(Loader::new(blobs(samples, seed)?).shuffle(seed).threads(1))
}

/// Runs a function on each of some ranks, which are threads here, with the rank's cluster.
///
/// # Panics
/// A rank panicked.
pub fn on_ranks<T: Send>(ranks: usize, script: Script, run: impl Fn(Cluster) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> =
            threads(ranks, script).into_iter().map(|cluster| scope.spawn(move || run(cluster))).collect();
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
