//! Shards: many files that are read as one data set, by an index of where each sample lies.
//!
//! A stream has no length, and yields its samples from the start only. Files can do more: one pass over a
//! shard finds where its samples begin, without decoding them, and from then on each is read by position. So
//! shards are a source like any other, and order, split and resuming are the same arithmetic.

mod lines;
mod tar;
mod tar_headers;

use crate::DataError;
use crate::sources::files::Bytes;

pub use lines::Lines;
pub use tar::{TarSample, TarShards};

/// Some shards, and the number of samples up to the end of each.
#[derive(Clone, Debug)]
struct Shards {
    files: Vec<Bytes>,
    ends: Vec<u64>,
}

impl Shards {
    fn new() -> Self {
        Self { files: Vec::new(), ends: Vec::new() }
    }

    fn push(&mut self, file: Bytes, samples: usize) {
        self.ends.push(self.len() + samples as u64);
        self.files.push(file);
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the shard of a sample, and its number in the shard.
    fn locate(&self, index: u64) -> Result<(usize, usize), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let shard = self.ends.partition_point(|&end| end <= index);
        let before = shard.checked_sub(1).map_or(0, |before| self.ends[before]);
        Ok((shard, (index - before) as usize))
    }
}
