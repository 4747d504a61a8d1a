//! What the coordinator and the workers say to each other. Each order has exactly one answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_gpu::GpuError;
use unisono_graph::{GraphError, Run};

use crate::batch::feed::Feed;
use crate::observe::timeline::Span;
use crate::sums::values::Values;
use crate::worker::digest::Digest;

/// From the coordinator to one worker.
#[derive(Debug)]
pub(crate) struct Order {
    /// The answer has the same.
    pub ticket: u64,
    pub request: Request,
    pub context: Context,
}

/// What the coordinator did meanwhile: tells a worker what it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    /// When the step began, within one.
    pub began: Option<Instant>,
    /// When it last added sums of all.
    pub added: Option<(Instant, Instant)>,
}

#[derive(Debug)]
pub(crate) enum Request {
    /// Make a plan ready. Answer: [`Reply::Done`].
    Load { program: usize, run: Arc<Run> },
    /// Run some segments of a step. Answer: [`Reply::Results`].
    Run(Work),
    /// Set a tensor of the state. Answer: [`Reply::Done`].
    WriteState { index: usize, bytes: Arc<[u8]> },
    /// Set all tensors of the state. Answer: [`Reply::Done`].
    WriteStates(Arc<Vec<Vec<u8>>>),
    /// Read some tensors of the state, into memory that may be there already. Answer: [`Reply::States`].
    ReadStates { indices: Vec<usize>, into: Vec<Vec<u8>> },
    /// Answer: [`Reply::Digest`].
    Digest,
}

/// Buckets with their sums.
pub(crate) type Sums = Vec<(usize, Arc<Vec<f32>>)>;

/// Some segments of a step.
#[derive(Debug)]
pub(crate) struct Work {
    pub program: usize,
    pub run: Arc<Run>,
    pub step: u64,
    pub segments: Range<usize>,
    pub feed: Arc<Feed>,
    pub first_row: usize,
    /// What the segments wait for: buckets with their sums.
    pub sums: Sums,
}

/// From a worker to the coordinator.
#[derive(Debug)]
pub(crate) struct Answer {
    pub replica: usize,
    pub ticket: u64,
    pub result: Result<Reply, Failure>,
    /// Its time since its last answer.
    pub spans: Vec<Span>,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Results(SegmentResults),
    /// Buckets that are there while the device goes on: the results of the same order has the others.
    Early(Vec<(usize, Values)>),
    States(Vec<Vec<u8>>),
    Digest(Digest),
}

/// What segments gave.
#[derive(Debug, Default)]
pub(crate) struct SegmentResults {
    /// By index.
    pub outputs: Vec<(usize, Vec<u32>)>,
    /// Buckets, summed over the run's blocks.
    pub blocks: Vec<(usize, Values)>,
    /// The first cut with a sum that is not finite, where sums stay on the device.
    pub bad_cut: Option<usize>,
}

/// Why a worker could not do what it was asked to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The plan is at fault: another device like this one would say the same.
    Plan(String),
    Graph(GraphError),
    Gpu(GpuError),
    Panic(String),
    /// It did not answer.
    Silent(Duration),
}

impl Failure {
    /// A failure to load something.
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
            Self::Silent(after) => write!(f, "no answer after {after:?}"),
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
