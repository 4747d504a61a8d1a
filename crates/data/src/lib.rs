//! Deterministic, resumable input pipelines: sources, transforms, shuffle, batch, prefetch, position.
//!
//! Every sample that a [`Loader`] gives is a function of (source, seed, epoch, position in the epoch). Which thread made
//! it, how many threads there were and how far they ran ahead never shows; and since the order is arithmetic, not a
//! list, a run starts again at any [`Position`] at once.
//!
//! ```
//! use unisono_data::{Csv, Column, Loader, Per, Statistics, normalise, split};
//! # fn main() -> Result<(), unisono_data::DataError> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("digits.csv");
//! # std::fs::write(&path, (0..30).map(|i| format!("{},{},{}\n", i, i * 7 % 5, i % 3)).collect::<String>()).unwrap();
//! let digits = Csv::new(&path).label(Column::Last).read()?;
//! let [train, held_out] = split(digits, 24, 42)?;
//! let statistics = Statistics::of(&train, "x", Per::All, 2)?;
//!
//! let loader = Loader::new(train)
//!     .batch(10)
//!     .shuffle(42)
//!     .try_map("normalise", normalise("x", &statistics))
//!     .map("noise", |sample, draws| {
//!         for x in sample.f32_mut("x").into_iter().flatten() {
//!             *x += 0.01 * draws.normal();
//!         }
//!     })
//!     .require_finite()
//!     .threads(2);
//!
//! let mut sizes = Vec::new();
//! for batch in loader.epoch(0)? {
//!     let batch = batch?;
//!     assert_eq!(batch.field("x").unwrap().shape, [batch.len(), 2]);
//!     sizes.push(batch.len());
//! }
//! assert_eq!(sizes, [10, 10, 4]);
//! # assert_eq!(unisono_data::Source::len(&held_out), 6);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | what | where |
//! |---|---|
//! | the trait to implement for data of one's own | [`Source`] |
//! | in memory | [`Memory`], [`Sequences`], [`Csv`] (reads into a `Memory`) |
//! | arrays in files | [`Arrays`] of [`Array::idx`], [`Array::npy`], [`Array::npz`], [`Array::safetensors`]; [`Cifar`] |
//! | text and tokens | [`Tokens`] |
//! | pictures | [`ImageFolder`] |
//! | sources of sources | [`Subset`], [`split`], [`Concat`], [`Interleave`], [`balance`], [`Cache`] |
//! | values | [`Sample`], [`Batch`], [`Field`], [`Values`], [`FieldSpec`] |
//! | over a whole source | [`Statistics`], [`class_counts`] |
//! | transforms | closures given to [`Loader::map`]; [`normalise`], [`one_hot`], [`cast`], [`rescale`], [`channels_first`], [`augment`] |
//! | order, batches, threads | [`Loader`], [`Buckets`], [`Batches`], [`Position`], [`LoaderState`] |
//! | where the time went | [`Seen`], and `cargo run --release -p unisono-data --example data_speed` |
//!
//! **This crate never** pads a batch, repeats a sample unasked, lets timing change an order, queues without a bound,
//! allocates what a file merely declares, or panics on bad input.

mod compose;
mod loading;
mod order;
mod sample;
mod sources;
mod transforms;

pub use compose::balance::{Balance, balance, class_counts};
pub use compose::cache::Cache;
pub use compose::join::{Concat, Interleave};
pub use compose::subset::{Subset, split, split_fraction};
pub use loading::loader::Loader;
pub use loading::prefetch::Batches;
pub use loading::seen::{Seen, StageTime};
pub use order::buckets::Buckets;
pub use sample::Sample;
pub use sample::batch::Batch;
pub use sample::error::{BoxError, DataError};
pub use sample::field::{Field, FieldDType, FieldSpec, Values};
pub use sample::fingerprint::Fingerprint;
pub use sample::position::{LoaderState, Position};
pub use sample::source::Source;
#[cfg(feature = "csv")]
pub use sources::csv::{Column, Csv};
#[cfg(feature = "pictures")]
pub use sources::files::ImageFolder;
pub use sources::files::{Array, Arrays, Cifar, Element, Tokens, Width};
pub use sources::memory::Memory;
pub use sources::sequences::Sequences;
pub use transforms::augment;
pub use transforms::standard::{Transform, cast, channels_first, normalise, one_hot, rescale};
pub use transforms::statistics::{Per, Statistics};
/// What transforms draw from, keyed by seed, stage, epoch and position.
pub use unisono_random::Draws;
