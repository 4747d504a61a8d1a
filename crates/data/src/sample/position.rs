//! A place in a run, and what a resumed loader needs.

/// A place in a run: the next sample is the one at position `sample` of epoch `epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The position within the epoch, from 0: the number of its samples already taken.
    pub sample: u64,
}

/// The state of a loader that a resumed run needs to go on with the same samples: a position, and the bad
/// samples skipped before it.
///
/// Whatever takes a `LoaderState` also takes a plain [`Position`], which is a state without skipped samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderState {
    /// The position of the next sample.
    pub position: Position,
    /// The index in the source of every sample found bad, ascending. They are not tried again.
    pub skipped: Vec<u64>,
}

impl From<Position> for LoaderState {
    fn from(position: Position) -> Self {
        Self { position, skipped: Vec::new() }
    }
}
