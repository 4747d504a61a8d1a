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
    /// How many of them changed nothing because all weights of their batch were 0. No optimizer counts them.
    pub weightless: u64,
    /// Where the next step starts in the data, and the samples skipped on the way there.
    pub data: LoaderState,
}

impl RunPosition {
    /// Adds samples to those that are left out of the run.
    pub fn skip(&mut self, samples: impl IntoIterator<Item = u64>) {
        for sample in samples {
            if let Err(place) = self.data.skipped.binary_search(&sample) {
                self.data.skipped.insert(place, sample);
            }
        }
    }
}

/// The section's value.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    step: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    weightless: u64,
    epoch: u32,
    sample: u64,
    skipped: Vec<u64>,
}

/// Checkpoints of runs without such steps, which earlier versions counted otherwise, have no number of them.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl From<RunPosition> for Written {
    fn from(RunPosition { step, weightless, data: LoaderState { position, skipped } }: RunPosition) -> Self {
        Self { step, weightless, epoch: position.epoch, sample: position.sample, skipped }
    }
}

impl From<Written> for RunPosition {
    fn from(Written { step, weightless, epoch, sample, skipped }: Written) -> Self {
        Self { step, weightless, data: LoaderState { position: Position { epoch, sample }, skipped } }
    }
}

impl Section for RunPosition {
    /// Appends epoch, sample, step and the skipped samples, and the weightless steps if there are any.
    /// Digests of earlier versions stay valid as long as this order does.
    fn digest(&self, bytes: &mut Vec<u8>) {
        let LoaderState { position: Position { epoch, sample }, skipped } = &self.data;
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(sample.to_le_bytes());
        bytes.extend(self.step.to_le_bytes());
        bytes.extend(skipped.iter().flat_map(|index| index.to_le_bytes()));
        if self.weightless > 0 {
            bytes.extend(b"weightless");
            bytes.extend(self.weightless.to_le_bytes());
        }
    }
}
