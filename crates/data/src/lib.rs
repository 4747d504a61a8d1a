#![doc = include_str!("../README.md")]

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
pub use loading::hashing::Hashing;
pub use loading::loader::Loader;
pub use loading::prefetch::Batches;
pub use loading::seen::{Seen, StageTime};
pub use order::buckets::Buckets;
pub use sample::Sample;
pub use sample::batch::Batch;
pub use sample::content::{ContentHash, Coverage};
pub use sample::effects::{Effects, MovedApart, Scaled};
pub use sample::error::{BoxError, DataError};
pub use sample::field::{Field, FieldDType, FieldSpec, Values};
pub use sample::fingerprint::Fingerprint;
pub use sample::part::Part;
pub use sample::position::{LoaderState, Position};
pub use sample::source::Source;
pub use sample::tree::Content;
pub use sources::budget::DECODED_BYTES;
#[cfg(feature = "parquet")]
pub use sources::columnar::{Columnar, ColumnarSource};
#[cfg(feature = "csv")]
pub use sources::csv::columns::Missing;
#[cfg(feature = "csv")]
pub use sources::csv::schema::TableSchema;
#[cfg(feature = "csv")]
pub use sources::csv::{Column, Csv};
pub use sources::episodes::{Environment, Episodes, Turn};
#[cfg(feature = "pictures")]
pub use sources::files::ImageFolder;
pub use sources::files::{Array, Arrays, Cifar, Element, Tokens, Width};
pub use sources::memory::Memory;
pub use sources::replay::Replay;
pub use sources::sequences::Sequences;
pub use sources::shards::{Lines, TarSample, TarShards};
pub use sources::sounds::WavFolder;
#[cfg(feature = "tokenizers")]
pub use sources::tokenizer::Tokenizer;
pub use sources::vocabulary::{Bag, Vocabulary, VocabularyBuilder};
pub use sources::windows::Windows;
pub use transforms::augment;
pub use transforms::padding::{mask, pad};
pub use transforms::preprocess::{Pretrained, preprocess};
pub use transforms::spectrum::Spectrogram;
pub use transforms::standard::{Transform, cast, channels_first, normalize, one_hot, rescale};
pub use transforms::statistics::{Per, Statistics};
/// The random numbers that a transform draws, keyed by seed, stage, epoch and position.
pub use unisono_random::Draws;
