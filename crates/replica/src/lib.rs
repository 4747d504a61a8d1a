#![doc = include_str!("../README.md")]

mod aside;
mod attempt;
mod audit;
mod class;
mod digest;
mod drive;
mod early;
mod error;
mod exchange;
mod fault;
mod feed;
mod join;
mod message;
mod options;
mod outputs;
mod reduce;
mod replicas;
mod report;
mod schedule;
pub mod shards;
mod state;
mod step;
mod team;
mod timeline;
mod worker;

pub use class::{Class, machine, probe};
pub use digest::Digest;
pub use error::ReplicaError;
pub use feed::Feed;
pub use options::Options;
pub use outputs::Outputs;
pub use replicas::{Replicas, in_pieces};
pub use report::{Left, ReplicaReport};
pub use schedule::{Assignment, Verdict};
pub use step::Outcome;
pub use timeline::{Activity, Interval, Span};
