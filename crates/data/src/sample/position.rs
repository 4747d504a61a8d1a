//! Where a run is, with what it skipped on the way.

/// A place in a run: the next sample is the one at position `sample` of epoch `epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The position within the epoch, from 0: so many of its samples were taken.
    pub sample: u64,
}

/// A position and the record of bad samples skipped before it: what a resumed run needs to go on with the same samples.
///
/// Whatever takes a `LoaderState` takes a plain [`Position`] as well, which is a progress without skipped samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderState {
    /// The next sample.
    pub position: Position,
    /// The source's index of every sample found bad, ascending. They are not tried again.
    pub skipped: Vec<u64>,
}

impl From<Position> for LoaderState {
    fn from(position: Position) -> Self {
        Self { position, skipped: Vec::new() }
    }
}
