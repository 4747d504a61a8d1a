//! Where a run comes from, if it is not one from its start: the runs that it was made of by force.

use serde::{Deserialize, Serialize};

/// A run that another run continues: by a forced resume with other settings or data, or from a checkpoint
/// that does not contain its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Ancestor {
    /// The identity of the run until then, as hexadecimal digits. `None` where it is not known.
    pub identity: Option<String>,
    /// The SHA-256 over the state of the checkpoint that the run came out of, as hexadecimal digits, where
    /// `identity` is not known. It tells runs of unknown identity from each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_sha256: Option<String>,
    /// The number of steps that were done then.
    pub step: u64,
    /// What differs since then.
    pub differs: Vec<String>,
}
