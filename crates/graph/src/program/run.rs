//! Runs of shards, and what goes up to a device and down from it in one.

use crate::fuse::Extent;
use crate::trace::OutputKind;
use crate::values::{Type, tree};

/// Bytes that travel together between devices, unless told.
pub const BUCKET_BYTES: usize = 25 << 20;

/// Most shards of a batch.
pub const MAX_SHARDS: usize = 1024;

/// Consecutive shards that one device computes, out of the non-empty shards of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// First shard.
    pub first: usize,
    /// Samples of each shard of the run; none is zero.
    pub sizes: Vec<usize>,
    /// Non-empty shards of the batch.
    pub shards: usize,
}

impl Run {
    /// All shards of a batch.
    pub fn whole(sizes: &[usize]) -> Self {
        Self { first: 0, sizes: sizes.to_vec(), shards: sizes.len() }
    }

    /// Samples of the run.
    pub fn rows(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Whether it is all shards of the batch: then nothing has to travel.
    pub fn is_whole(&self) -> bool {
        self.sizes.len() == self.shards
    }

    /// The subtrees of the sum over shards that lie in the run, in order.
    pub fn blocks(&self) -> Vec<std::ops::Range<usize>> {
        tree::blocks(self.first..self.first + self.sizes.len(), self.shards)
    }

    /// Returns what the sizes of values depend on.
    pub(crate) fn extent(&self) -> Extent {
        Extent { rows: self.rows(), shards: self.sizes.len(), blocks: self.blocks().len() }
    }
}

/// What a step shows.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputDecl {
    /// The output's name. Names are unique among the outputs of a kind.
    pub name: String,
    /// What the output is for.
    pub kind: OutputKind,
    /// The output's type. Values with samples have a row for each.
    pub ty: Type,
    /// The segment at whose end it is there.
    pub segment: usize,
    /// For a sum over shards: its bucket and its first element there. Only a plan of all shards downloads it.
    pub sum: Option<(usize, usize)>,
}

/// What a transfer of a [`Plan`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// Up: all scalar inputs, see [`Program::scalars`].
    Scalars,
    /// Up: an input; the run's rows of it where it has samples.
    Input(usize),
    /// Up: a bucket summed over all shards.
    Sums(usize),
    /// Down: an output; the run's rows of it where it has samples.
    Output(usize),
    /// Down: a bucket summed over each of [`Run::blocks`].
    Blocks(usize),
    /// Down: one word, not 0 if a sum of this cut is not finite. Only a plan of all shards has it.
    Flag(usize),
}

impl Slot {
    /// As the number that a plan holds.
    pub fn code(self) -> usize {
        let (kind, index) = match self {
            Self::Scalars => (0, 0),
            Self::Input(i) => (1, i),
            Self::Sums(i) => (2, i),
            Self::Output(i) => (3, i),
            Self::Blocks(i) => (4, i),
            Self::Flag(i) => (5, i),
        };
        kind + 6 * index
    }

    /// From the number that a plan holds.
    pub fn decode(code: usize) -> Self {
        let index = code / 6;
        match code % 6 {
            0 => Self::Scalars,
            1 => Self::Input(index),
            2 => Self::Sums(index),
            3 => Self::Output(index),
            4 => Self::Blocks(index),
            _ => Self::Flag(index),
        }
    }
}
