//! Runs of shards, and what goes up to a device and down from it in one.

use crate::fuse::Extent;
use crate::trace::OutputKind;
use crate::values::{Type, tree};

/// The default of [`crate::Layout::bucket_bytes`]: 25 MiB.
pub const BUCKET_BYTES: usize = 25 << 20;

/// The most shards of a batch.
pub const MAX_SHARDS: usize = 1 << 16;

/// Consecutive shards that one device computes, out of the non-empty shards of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// The number of the first shard.
    pub first: usize,
    /// The number of samples of each shard of the run. None is zero.
    pub sizes: Vec<usize>,
    /// The number of non-empty shards of the batch.
    pub shards: usize,
}

impl Run {
    /// Returns the run of all shards of a batch, given the samples of each.
    pub fn whole(sizes: &[usize]) -> Self {
        Self { first: 0, sizes: sizes.to_vec(), shards: sizes.len() }
    }

    /// Returns the number of samples of the run.
    pub fn rows(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Returns whether the run has all shards of the batch. Then no sum has to travel.
    pub fn is_whole(&self) -> bool {
        self.sizes.len() == self.shards
    }

    /// Returns the subtrees of the sum over shards that lie in the run, in order.
    pub fn blocks(&self) -> Vec<std::ops::Range<usize>> {
        tree::blocks(self.first..self.first + self.sizes.len(), self.shards)
    }

    /// Returns what the sizes of values depend on.
    pub(crate) fn extent(&self) -> Extent {
        Extent { rows: self.rows(), shards: self.sizes.len(), blocks: self.blocks().len() }
    }
}

/// An output of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputDecl {
    /// The output's name. Names are unique among the outputs of a kind.
    pub name: String,
    /// What the output is for.
    pub kind: OutputKind,
    /// The output's type. Values with samples have a row for each.
    pub ty: Type,
    /// The segment at whose end the output is there.
    pub segment: usize,
    /// The bucket of an output that is a sum over shards, and its first element there. `None` for other
    /// outputs. Only a plan of all shards downloads such a sum.
    pub sum: Option<(usize, usize)>,
}

/// The conditions on a step's outputs under which the step commits. In addition, all sums must be finite. A
/// device that has all shards decides by these conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The outputs, by their index, that must be finite.
    pub finite: Vec<usize>,
    /// The output, by its index, that must not be 0: a sum of weights.
    pub nonzero: Option<usize>,
}

/// What a transfer of a [`crate::Plan`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// All scalar inputs go up, see [`crate::Program::scalars`].
    Scalars,
    /// Input `.0` goes up, or the run's rows of it where it has samples.
    Input(usize),
    /// Bucket `.0`, summed over all shards, goes up.
    Sums(usize),
    /// Output `.0` comes down, or the run's rows of it where it has samples.
    Output(usize),
    /// Bucket `.0`, summed over each of [`Run::blocks`], comes down.
    Blocks(usize),
    /// One word comes down, which is not 0 if a sum of cut `.0` is not finite. Only a plan of all shards has
    /// it.
    Flag(usize),
    /// One word comes down, which is not 0 if a new value of a state is not finite. The last segment has it,
    /// if it changes the state.
    StateFlag,
    /// One word goes up, which is not 0 if an earlier step is in flight: if that step turns out to be bad,
    /// this one changes nothing. A plan that decides on the device has it.
    Chained,
    /// One word comes down: 0 if the step has committed, 1 if it changed nothing because an output is 0, and
    /// 2 if it changed nothing because a number is not finite, so that the steps in flight behind it change
    /// nothing either. A plan that decides on the device has it.
    Skipped,
}

impl Slot {
    /// Returns the number that a plan holds for the slot.
    pub fn code(self) -> usize {
        let (kind, index) = match self {
            Self::Scalars => (0, 0),
            Self::Input(i) => (1, i),
            Self::Sums(i) => (2, i),
            Self::Output(i) => (3, i),
            Self::Blocks(i) => (4, i),
            Self::Flag(i) => (5, i),
            Self::StateFlag => (6, 0),
            Self::Chained => (7, 0),
            Self::Skipped => (8, 0),
        };
        kind + 9 * index
    }

    /// Returns the slot of a number that a plan holds.
    pub fn decode(code: usize) -> Self {
        let index = code / 9;
        match code % 9 {
            0 => Self::Scalars,
            1 => Self::Input(index),
            2 => Self::Sums(index),
            3 => Self::Output(index),
            4 => Self::Blocks(index),
            5 => Self::Flag(index),
            6 => Self::StateFlag,
            7 => Self::Chained,
            _ => Self::Skipped,
        }
    }
}
