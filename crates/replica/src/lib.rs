#![doc = include_str!("../README.md")]

mod batch;
mod class;
mod coordinator;
mod error;
mod known_answer;
mod observe;
mod options;
mod owners;
mod schedule;
mod sums;
mod worker;

pub use batch::feed::Feed;
pub use batch::held::Held;
pub use batch::outputs::Outputs;
pub use batch::shards;
pub use class::{
    ARITHMETIC, Class, Classes, Rounding, UnitPace, cpus_of, describe_classes, is_one_class, is_one_machine,
    machine, probe, probe_now, unit_pace,
};
pub use coordinator::machines::Shares;
pub use coordinator::replicas::{Replicas, can_run_few_at_once};
pub use coordinator::step::{Audited, Outcome};
pub use coordinator::witness::WitnessReport;
pub use error::ReplicaError;
pub use observe::report::{Left, ReplicaReport};
pub use observe::timeline::{Activity, Interval, Span};
pub use options::{DEFAULT_GLOBAL_BATCH, DEFAULT_SHARDS, Options};
pub use owners::Owners;
pub use schedule::{Assignment, AuditReport, Audits, Verdict};
pub use worker::digest::Digest;
