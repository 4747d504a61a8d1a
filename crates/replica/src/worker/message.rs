//! The messages between the coordinator and the workers. Each order has exactly one answer.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_gpu::{Counters, GpuError};
use unisono_graph::{GraphError, Run};

use crate::batch::feed::Feed;
use crate::observe::timeline::Span;
use crate::sums::overlap::Sent;
use crate::sums::places::Places;
use crate::worker::digest::Digest;

/// An order from the coordinator to one worker.
#[derive(Debug)]
pub(crate) struct Order {
    /// The number of the order. The answer has the same.
    pub ticket: u64,
    pub request: Request,
    pub context: Context,
}

/// What the coordinator did since the worker's last answer: from it the worker knows what it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    /// The time at which the step began; none outside of a step.
    pub began: Option<Instant>,
    /// The stretch in which it last added sums of all replicas.
    pub added: Option<(Instant, Instant)>,
}

#[derive(Debug)]
pub(crate) enum Request {
    /// Makes a plan ready. The answer is [`Reply::Done`].
    Load { program: usize, run: Arc<Run> },
    /// Runs some segments of a step. The answer is [`Reply::Results`].
    Run(Work),
    /// Submits all segments of a step that the device decides about, and does not wait for it. If another
    /// step is in flight, `chained` says so: this one then changes nothing if that one is bad. The answer is
    /// [`Reply::Done`], or [`Reply::NoRoom`].
    Submit { work: Work, chained: bool },
    /// Waits for the oldest step in flight. The answer is [`Reply::Results`].
    Collect,
    /// Drops the resident memory. The answer is [`Reply::Done`].
    DropResidents,
    /// Fills the memory that a step computes in with NaN. The answer is [`Reply::Done`].
    PoisonScratch,
    /// Sets a tensor of the state. The answer is [`Reply::Done`].
    WriteState { index: usize, bytes: Arc<Vec<u8>> },
    /// Sets all tensors of the state. The answer is [`Reply::Done`].
    WriteStates(Arc<Vec<Vec<u8>>>),
    /// Sets those of these tensors that another replica updates for this one. The answer is [`Reply::Done`].
    TakeStates(Arc<Vec<(usize, Vec<u8>)>>),
    /// Reads some tensors of the state into memory that may be used again. The answer is [`Reply::States`].
    ReadStates { indices: Vec<usize>, into: Vec<Vec<u8>> },
    /// Computes a digest of the state. The answer is [`Reply::Digest`].
    Digest,
}

/// Buckets, each with its sums over all shards.
pub(crate) type Sums = Vec<(usize, Arc<Vec<f32>>)>;

/// Some segments of a step, for a worker to run.
#[derive(Debug)]
pub(crate) struct Work {
    pub program: usize,
    pub run: Arc<Run>,
    pub step: u64,
    pub segments: Range<usize>,
    pub feed: Arc<Feed>,
    pub first_row: usize,
    /// The sums for which the segments wait.
    pub sums: Sums,
    /// The buckets whose sums are already in the memory that the worker has lent.
    pub in_place: BTreeSet<usize>,
}

/// An answer from a worker to the coordinator.
#[derive(Debug)]
pub(crate) struct Answer {
    pub replica: usize,
    pub ticket: u64,
    pub result: Result<Reply, Failure>,
    /// What the worker did with its time since its last answer.
    pub spans: Vec<Span>,
    /// How often its device was given work and waited for, since it was opened.
    pub counters: Counters,
    /// The plans that the worker has dropped since its last answer, to make room for others.
    pub unloaded: Vec<Key>,
}

/// A program and a run: what a plan is for.
pub(crate) type Key = (usize, Arc<Run>);

#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    /// The device is open; so many bytes of state are on it.
    Opened {
        state_bytes: u64,
    },
    /// The device has no memory for a second step in flight. Nothing was submitted.
    NoRoom,
    Results(SegmentResults),
    /// The blocks of buckets that are ready while the device goes on. The [`Reply::Results`] of the same
    /// order has the others. The first such answer brings memory for sums, if a segment comes next that waits
    /// for any.
    Early {
        blocks: Sent,
        places: Option<Places>,
    },
    States(Vec<Vec<u8>>),
    Digest(Digest),
}

/// The results of segments.
#[derive(Debug, Default)]
pub(crate) struct SegmentResults {
    /// The outputs, by their index.
    pub outputs: Vec<(usize, Vec<u32>)>,
    /// The blocks of buckets: sums over the subtrees that lie in the run.
    pub blocks: Sent,
    /// The first cut with a sum that is not finite, where sums stay on the device; none if all are finite.
    pub bad_cut: Option<usize>,
    /// Whether the last segment gave a tensor of the state a value that is not finite.
    pub bad_state: bool,
    /// Whether the device decided that the step changes nothing. Those in flight behind it change nothing
    /// either.
    pub skipped: bool,
}

/// Why a worker could not do what it was ordered to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The plan is at fault: another device of the same kind would fail as well.
    Plan(String),
    Graph(GraphError),
    Gpu(GpuError),
    Panic(String),
    /// The system gave the worker no thread.
    NoThread(String),
    /// The worker did not answer for so long.
    Silent(Duration),
    /// The worker's results are wrong.
    Wrong(String),
}

impl Failure {
    /// Returns the failure of a worker that does not have what it needs: a bug in this crate.
    pub fn missing(what: &str) -> Self {
        Self::Gpu(GpuError::Plan { what: what.to_owned(), message: "is not there".to_owned() })
    }

    /// Classifies a failure to load: a plan that no such device takes is [`Failure::Plan`].
    pub fn of_loading(self) -> Self {
        use GpuError::{Limit, Plan, Validation};
        match self {
            Self::Graph(_) | Self::Gpu(Limit { .. } | Plan { .. } | Validation { .. }) => {
                Self::Plan(self.to_string())
            }
            other => other,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plan(message) => f.write_str(message),
            Self::Graph(error) => error.fmt(f),
            Self::Gpu(error) => error.fmt(f),
            Self::Panic(message) => write!(f, "its thread panicked: {message}"),
            Self::NoThread(message) => write!(f, "no thread: {message}"),
            Self::Silent(after) => write!(f, "no answer after {after:?}"),
            Self::Wrong(message) => f.write_str(message),
        }
    }
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}
