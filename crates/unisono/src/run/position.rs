//! The section `position`: the progress of a run.

use serde::{Deserialize, Serialize};
use unisono_data::{LoaderState, Position};

use crate::run::section::Section;

/// The steps done, and where the next step starts in the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub(crate) struct RunPosition {
    /// The number of steps done.
    pub step: u64,
    /// Where the next step starts in the data, and the samples skipped on the way there.
    pub data: LoaderState,
}

/// The section's value.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    step: u64,
    epoch: u32,
    sample: u64,
    skipped: Vec<u64>,
}

impl From<RunPosition> for Written {
    fn from(RunPosition { step, data: LoaderState { position, skipped } }: RunPosition) -> Self {
        Self { step, epoch: position.epoch, sample: position.sample, skipped }
    }
}

impl From<Written> for RunPosition {
    fn from(Written { step, epoch, sample, skipped }: Written) -> Self {
        Self { step, data: LoaderState { position: Position { epoch, sample }, skipped } }
    }
}

impl Section for RunPosition {
    /// Appends epoch, sample, step and the skipped samples. Digests of earlier versions stay valid as long
    /// as this order does.
    fn digest(&self, bytes: &mut Vec<u8>) {
        let LoaderState { position: Position { epoch, sample }, skipped } = &self.data;
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(sample.to_le_bytes());
        bytes.extend(self.step.to_le_bytes());
        bytes.extend(skipped.iter().flat_map(|index| index.to_le_bytes()));
    }
}
