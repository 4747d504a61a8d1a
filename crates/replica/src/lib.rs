#![doc = include_str!("../README.md")]

mod assign;
mod digest;
mod error;
mod exchange;
mod feed;
mod layout;
mod load;
mod message;
mod options;
mod outputs;
mod progress;
mod reduce;
mod replicas;
mod report;
pub mod shards;
mod state;
mod step;
mod team;
mod worker;

pub use assign::Assignment;
pub use digest::Digest;
pub use error::ReplicaError;
pub use feed::Feed;
pub use options::Options;
#[doc(hidden)]
pub use options::{Fault, FaultKind};
pub use outputs::Outputs;
pub use replicas::Replicas;
pub use report::{Left, ReplicaReport};
pub use step::{Outcome, Verdict};
