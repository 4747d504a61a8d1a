//! The tree of hashes over a data set: blocks of samples below, one hash at the root.

use std::ops::Range;

use crate::sample::check::guarded;
use crate::{ContentHash, DataError, Source};

/// The most blocks of a tree.
const MOST_BLOCKS: u64 = 1024;

/// The content of a data set: the hash of each block of samples, and one over all of them.
///
/// The number of samples in a block follows from the length of the data set: it is the smallest power of two
/// with which there are at most 1,024 blocks. It does not depend on threads, batches and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    samples: u64,
    block: u64,
    blocks: Vec<[u8; 32]>,
    root: [u8; 32],
}

impl Content {
    /// Hashes all samples of a source, whatever its [`Coverage`](crate::Coverage). After each block
    /// `proceed` is asked whether to go on; `None` means that it answered no.
    ///
    /// # Errors
    /// Of [`Source::hash_content`]. A panic of the source is an error.
    pub fn of(source: &dyn Source, proceed: impl FnMut() -> bool) -> Result<Option<Self>, DataError> {
        let blocks = Self::some_blocks(source, |_, _| true, proceed)?;
        Ok(blocks.and_then(|blocks| Self::of_blocks(source, blocks)))
    }

    /// Hashes the blocks of a source for which `which` is true, given the number of the block and that of all
    /// blocks. Several machines with the same data hash some of them each. `proceed` is asked after each.
    ///
    /// # Errors
    /// As [`Content::of`].
    pub fn some_blocks(
        source: &dyn Source,
        which: impl Fn(u64, u64) -> bool,
        mut proceed: impl FnMut() -> bool,
    ) -> Result<Option<Vec<Option<[u8; 32]>>>, DataError> {
        let samples = source.len();
        let block = block_samples(samples);
        let all = samples.div_ceil(block);
        let mut blocks = Vec::new();
        for at in 0..all {
            if !which(at, all) {
                blocks.push(None);
                continue;
            }
            let range = at * block..samples.min((at + 1) * block);
            let mut hash = ContentHash::new();
            hash.word(at);
            let named = || format!("samples {} to {}", range.start, range.end - 1);
            guarded(named, "hash_content", || Ok(source.hash_content(range.clone(), &mut hash)?))?;
            blocks.push(Some(hash.finish()));
            if !proceed() {
                return Ok(None);
            }
        }
        Ok(Some(blocks))
    }

    /// Returns the content of a source whose blocks have these hashes, or `None` if a hash is missing.
    pub fn of_blocks(source: &dyn Source, blocks: Vec<Option<[u8; 32]>>) -> Option<Self> {
        let samples = source.len();
        let block = block_samples(samples);
        let blocks: Vec<[u8; 32]> = blocks.into_iter().collect::<Option<_>>()?;
        let is_whole = blocks.len() as u64 == samples.div_ceil(block);
        let root = root_of(source, block, &blocks);
        is_whole.then_some(Self { samples, block, blocks, root })
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of samples in a block. The last block may have fewer.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Returns the hash of each block, in order.
    pub fn blocks(&self) -> &[[u8; 32]] {
        &self.blocks
    }

    /// Returns the hash over the number of samples, the fields and all blocks.
    pub fn root(&self) -> [u8; 32] {
        self.root
    }
}

/// Returns the samples of a block of a data set of this length.
fn block_samples(samples: u64) -> u64 {
    samples.div_ceil(MOST_BLOCKS).max(1).next_power_of_two()
}

fn root_of(source: &dyn Source, block: u64, blocks: &[[u8; 32]]) -> [u8; 32] {
    let mut hash = ContentHash::new();
    hash.text("content 1");
    hash.word(source.len());
    hash.word(block);
    hash.fields(source.fields());
    hash.bytes(&joined(blocks));
    hash.finish()
}

/// Joins hashes pairwise up to one. One without a partner is taken up as it is.
fn joined(hashes: &[[u8; 32]]) -> [u8; 32] {
    match hashes {
        [] => [0; 32],
        [one] => *one,
        more => {
            let (left, right) = more.split_at(more.len().next_power_of_two() / 2);
            let mut hash = ContentHash::new();
            hash.text("pair");
            hash.bytes(&joined(left));
            hash.bytes(&joined(right));
            hash.finish()
        }
    }
}

/// Hashes samples by fetching them. A sample that is bad, which a loader may skip, counts as such; a file
/// that cannot be read is an error.
pub(crate) fn hash_fetched(
    source: &(impl Source + ?Sized),
    samples: Range<u64>,
    hash: &mut ContentHash,
) -> Result<(), DataError> {
    for index in samples {
        match source.fetch(index) {
            Ok(sample) => hash.sample(&sample),
            Err(error @ DataError::Io { .. }) => return Err(error),
            Err(_) => hash.text("a bad sample"),
        }
    }
    Ok(())
}
