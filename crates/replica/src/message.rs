//! What the coordinator and the workers say to each other. Each request has exactly one answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_gpu::GpuError;
use unisono_graph::{GraphError, Run};

use crate::digest::Digest;
use crate::feed::Feed;

/// From the coordinator to one worker.
#[derive(Debug)]
pub(crate) enum Request {
    /// Make plans ready. Answer: [`Reply::Done`].
    Load { program: usize, runs: Vec<Arc<Run>> },
    /// Run some segments of a step. Answer: [`Reply::Harvest`].
    Run(Work),
    /// Set a tensor of the state. Answer: [`Reply::Done`].
    WriteState { index: usize, bytes: Arc<[u8]> },
    /// Answer: [`Reply::State`].
    ReadState(usize),
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
    /// What the first of the segments waits for: buckets with their sums.
    pub sums: Sums,
    /// Memory that the worker had filled with blocks, to be filled again.
    pub spare: Vec<Vec<f32>>,
}

/// From a worker to the coordinator.
#[derive(Debug)]
pub(crate) struct Answer {
    pub replica: usize,
    pub result: Result<Reply, Failure>,
    pub spent: Spent,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Harvest(Harvest),
    State(Vec<u8>),
    Digest(Digest),
}

/// What segments gave.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    /// By index.
    pub outputs: Vec<(usize, Vec<u32>)>,
    /// Buckets, summed over the run's blocks.
    pub blocks: Vec<(usize, Vec<f32>)>,
    /// The first cut with a sum that is not finite, where sums stay on the device.
    pub bad_cut: Option<usize>,
}

/// Where a worker's time went since its last answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// The device worked, or the driver for it.
    pub compute: Duration,
    /// Into and out of staging memory.
    pub moving: Duration,
    /// In a step, without work.
    pub peers: Duration,
    /// Between steps.
    pub idle: Duration,
}

/// Why a worker could not do what it was asked to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    Graph(GraphError),
    Gpu(GpuError),
    Panic(String),
    /// It did not answer.
    Silent(Duration),
}

impl Failure {
    /// Whether the plan is at fault: another device like this one would say the same.
    pub fn is_the_plans(&self) -> bool {
        use GpuError::{Limit, Plan, Validation};
        matches!(self, Self::Graph(_) | Self::Gpu(Limit { .. } | Plan { .. } | Validation { .. }))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
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
