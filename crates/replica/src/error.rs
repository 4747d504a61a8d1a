//! What can go wrong between a batch and a committed step.

use unisono_graph::{Bucket, MAX_SHARDS, NodeId, Program};

use crate::outputs::Outputs;
use crate::report::Left;

/// Why replicas could not do what they were asked to. A lost replica alone is no error, see [`crate::Outcome::left`].
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum ReplicaError {
    /// Nobody to work.
    #[error("no replicas: at least one adapter is needed")]
    NoReplicas,
    /// Nothing to do.
    #[error("no programs: at least one is needed")]
    NoPrograms,
    /// A batch cannot be cut like this.
    #[error("{0} shards: from 1 to {MAX_SHARDS} are possible")]
    Shards(usize),
    /// An empty batch.
    #[error("a global batch of 0 samples")]
    GlobalBatch,
    /// Programs that share the state disagree about it.
    #[error("program {program}: its state {index} is {found}, in program 0 that is {wanted}")]
    States {
        /// The other program.
        program: usize,
        /// The tensor.
        index: usize,
        /// Name and type there.
        found: String,
        /// Name and type in program 0.
        wanted: String,
    },
    /// A device could not be opened, or its state not made.
    #[error("replica {replica} ({adapter}): {why}")]
    Start {
        /// Its number.
        replica: usize,
        /// Its adapter.
        adapter: String,
        /// What happened.
        why: String,
    },
    /// A device has no memory for its state, or for a program before anything has run.
    #[error("replica {replica} ({adapter}): {what}: out of memory ({bytes} bytes asked for)")]
    OutOfMemory {
        /// The replica.
        replica: usize,
        /// Its adapter.
        adapter: String,
        /// What there was no memory for.
        what: String,
        /// How much was asked for; 0 where it is not known.
        bytes: u64,
    },
    /// A program does not run on this adapter: too large, or its driver refuses it.
    #[error("program {program} on replica {replica} ({adapter}): {why}")]
    Load {
        /// The program.
        program: usize,
        /// The replica.
        replica: usize,
        /// Its adapter.
        adapter: String,
        /// What is refused and why.
        why: String,
    },
    /// There is no such program.
    #[error("no program {program}: there are {programs}")]
    NoProgram {
        /// Asked for.
        program: usize,
        /// How many there are.
        programs: usize,
    },
    /// There is no such tensor.
    #[error("no state {index}: there are {states}")]
    NoState {
        /// Asked for.
        index: usize,
        /// How many there are.
        states: usize,
    },
    /// A tensor of the state has another size.
    #[error("state {name} {ty}: {given} bytes given, {wanted} wanted")]
    StateBytes {
        /// The tensor.
        name: String,
        /// Its type.
        ty: String,
        /// Bytes given.
        given: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// A batch of no samples, or of more than a full one.
    #[error("a batch of {rows} samples: from 1 to {global_batch} are possible")]
    Rows {
        /// Its samples.
        rows: usize,
        /// Samples of a full batch.
        global_batch: usize,
    },
    /// A batch with too many or too few inputs.
    #[error("{given} inputs given, {wanted} wanted")]
    Inputs {
        /// Given.
        given: usize,
        /// Wanted.
        wanted: usize,
    },
    /// An input of the wrong size.
    #[error("input {name} {ty}: {given} bytes given, {wanted} wanted")]
    Input {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// Bytes given.
        given: usize,
        /// Bytes wanted for the batch's rows.
        wanted: usize,
    },
    /// A sum over the samples is infinite or not a number. Nothing was committed.
    #[error("step {step}: {what} is not finite{}", and_more(*.more))]
    NotFinite {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The first such sum: an output, a gradient, or its layer and op.
        what: String,
        /// That sum in the program's graph, where it was found again.
        sum: Option<NodeId>,
        /// Other sums that the step had to wait for at the same time and that are not finite either.
        more: usize,
        /// What the step had shown up to that sum's cut, such as the samples' losses: the same for any number of replicas.
        outputs: Box<Outputs>,
    },
    /// A block of a sum over shards did not arrive: a bug in this crate.
    #[error("step {step}: bucket {bucket}: a block of its sum is missing")]
    Incomplete {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The bucket.
        bucket: usize,
    },
    /// All replicas have left.
    #[error("step {step}: no replica is left; {}", last_words(.left))]
    NoneLeft {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// All of them, in the order they left.
        left: Vec<Left>,
    },
    /// The probe is wrong: a bug in this crate.
    #[error("the probe of an adapter's numbers: {why}")]
    Probe {
        /// What is wrong.
        why: String,
    },
    /// Two replicas made different sums of the same shards. Nothing was committed.
    #[error(
        "step {step}: {of} and {by} made different sums of shards {} to {}; {verdict}",
        shards.start, shards.end.saturating_sub(1)
    )]
    Audit {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The shards.
        shards: std::ops::Range<usize>,
        /// Whose sums were checked.
        of: String,
        /// Who ran the shards again.
        by: String,
        /// What asking once more told.
        verdict: String,
    },
    /// Replicas that should be equal are not.
    #[error("the replicas' states differ: {}", .groups.join("; "))]
    Digests {
        /// Who has which digest: the largest group first.
        groups: Vec<String>,
    },
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for ReplicaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ReplicaError {
    /// With what the step had shown when its sums went bad.
    pub(crate) fn showing(mut self, program: &Program, shown: &Outputs) -> Self {
        if let Self::NotFinite { outputs, sum, .. } = &mut self {
            let holds = |bucket: &&Bucket| bucket.values.iter().any(|(node, _)| Some(*node) == *sum);
            let cut = program.buckets().iter().find(holds).map_or(usize::MAX, |bucket| bucket.cut);
            **outputs = shown.until(program, cut);
        }
        self
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

fn last_words(left: &[Left]) -> String {
    left.iter().map(Left::to_string).collect::<Vec<_>>().join("; ")
}
