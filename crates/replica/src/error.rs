//! The errors between a batch and a committed step.

use unisono_gpu::GpuError;
use unisono_graph::{Bucket, MAX_SHARDS, NodeId, Program};

use crate::batch::outputs::Outputs;
use crate::observe::report::Left;

/// Why replicas could not do what they were asked to. The loss of a replica alone is no error, see
/// [`crate::Outcome::left`].
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The list of adapters is empty.
    #[error("no replicas: at least one adapter is needed")]
    NoReplicas,
    /// The list of programs is empty.
    #[error("no programs: at least one is needed")]
    NoPrograms,
    /// A batch cannot be cut into so many shards.
    #[error("{0} shards: the number must be from 1 to {MAX_SHARDS}")]
    Shards(usize),
    /// The global batch has no samples.
    #[error("a global batch of 0 samples: it needs at least 1")]
    GlobalBatch,
    /// Programs that share the state disagree about it.
    #[error("program {program}: its state {index} is {found}, in program 0 that is {wanted}")]
    States {
        /// The program that disagrees with program 0.
        program: usize,
        /// The index of the tensor.
        index: usize,
        /// The name and type in that program.
        found: String,
        /// The name and type in program 0.
        wanted: String,
    },
    /// Programs that share the state disagree about where its tensors lie.
    #[error("program {program} has its state in other places than program 0")]
    StateLayout {
        /// The program that disagrees with program 0.
        program: usize,
    },
    /// A device could not be opened, or its state could not be created.
    #[error("replica {replica} ({adapter}): {why}")]
    Start {
        /// The number of the replica.
        replica: usize,
        /// The label of its adapter.
        adapter: String,
        /// What happened.
        why: String,
    },
    /// The witness of a run could not be opened, or its state could not be created.
    #[error("the witness ({adapter}): {why}")]
    Witness {
        /// The label of its adapter.
        adapter: String,
        /// What happened.
        why: String,
    },
    /// A device has no memory for its state, or for a program before anything has run.
    #[error("replica {replica} ({adapter}): {}", without_memory(what, *bytes))]
    OutOfMemory {
        /// The number of the replica.
        replica: usize,
        /// The label of its adapter.
        adapter: String,
        /// What there was no memory for.
        what: String,
        /// The number of bytes that was asked for; 0 where it is not known.
        bytes: u64,
    },
    /// A program does not run on an adapter: it is too large, or the driver refuses it.
    #[error("program {program} on replica {replica} ({adapter}): {why}")]
    Load {
        /// The index of the program.
        program: usize,
        /// The number of the replica.
        replica: usize,
        /// The label of its adapter.
        adapter: String,
        /// What is refused and why.
        why: String,
    },
    /// Steps are in flight, which have to be finished first; or none is, and one was to be finished.
    #[error("{0} steps are in flight")]
    InFlight(usize),
    /// There is no program of this index.
    #[error("no program {program}: there are {programs}")]
    NoProgram {
        /// The index that was asked for.
        program: usize,
        /// The number of programs.
        programs: usize,
    },
    /// There is no tensor of this index.
    #[error("no state {index}: there are {states}")]
    NoState {
        /// The index that was asked for.
        index: usize,
        /// The number of tensors.
        states: usize,
    },
    /// A tensor of the state has another size.
    #[error("state {name} {ty}: {given} bytes given, {wanted} wanted")]
    StateBytes {
        /// The name of the tensor.
        name: String,
        /// The type of the tensor.
        ty: String,
        /// The number of bytes that was given.
        given: usize,
        /// The number of bytes that the tensor has.
        wanted: usize,
    },
    /// The host has no memory for a copy of something.
    #[error("{what}: the host has no memory for {bytes} bytes")]
    NoHostMemory {
        /// What is copied.
        what: String,
        /// The number of bytes that was asked for.
        bytes: usize,
    },
    /// A batch has no samples, or more than a full one.
    #[error("a batch of {rows} samples: the number must be from 1 to {global_batch}")]
    Rows {
        /// The number of its samples.
        rows: usize,
        /// The number of samples of a full batch.
        global_batch: usize,
    },
    /// A batch has too many or too few inputs.
    #[error("{given} inputs given, {wanted} wanted")]
    Inputs {
        /// The number of inputs that was given.
        given: usize,
        /// The number of inputs that the program has.
        wanted: usize,
    },
    /// An input has the wrong size.
    #[error("input {name} {ty}: {given} bytes given, {wanted} wanted")]
    Input {
        /// The name of the input.
        name: String,
        /// The type of the input.
        ty: String,
        /// The number of bytes that was given.
        given: usize,
        /// The number of bytes for the batch's rows.
        wanted: usize,
    },
    /// All replicas that kept a tensor of the optimizer's are lost. The state has to be resumed.
    #[error(
        "{tensor} is lost with {owners}: resume the run; with two owners for each tensor, it would have continued"
    )]
    OwnersLost {
        /// The name of the tensor, or of the first of several.
        tensor: String,
        /// The replicas that had it.
        owners: String,
    },
    /// The resident memory of some samples is not on the device that computes them: a replica was lost, a
    /// replica ran a step twice, a step failed, or nothing has filled the memory. It has to be filled again.
    #[error("resident memory is lost with a replica: it has to be filled again")]
    ResidentsLost,
    /// A machine was given other rows of a batch after it had loaded its own, because another machine was
    /// lost or the cuts between machines moved, and it cannot load these rows.
    #[error("the rest of the batch: {why}")]
    Rest {
        /// What happened.
        why: String,
    },
    /// A sum over the samples is infinite or not a number. The step committed nothing.
    #[error("step {step}: {what} is not finite{}", and_more(*.more))]
    NotFinite {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The name of the first such sum: an output, a gradient, or its layer and op.
        what: String,
        /// The node of that sum in the program's graph, where it was found.
        sum: Option<NodeId>,
        /// The number of other sums of the same cut that are not finite either.
        more: usize,
        /// The step's outputs up to that sum's cut, such as the samples' losses. They are the same for any
        /// number of replicas.
        outputs: Box<Outputs>,
    },
    /// A step gave a tensor of the state a value that is infinite or not a number. The state has changed: go
    /// back to an earlier one, with [`crate::Replicas::write_state`] for every tensor.
    #[error("step {step}: the new value of {tensor} is not finite{}", and_more(*.more))]
    StateNotFinite {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The name of the first such tensor.
        tensor: String,
        /// The number of other tensors that are not finite either.
        more: usize,
    },
    /// The machines of the run could not do something together.
    #[error(transparent)]
    Cluster(#[from] unisono_cluster::ClusterError),
    /// A rank has other results than the others for what all compute.
    #[error("step {step}: {rank} decided differently from the others")]
    Disagrees {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The rank, with its host.
        rank: String,
    },
    /// A block of a sum over shards did not arrive: a bug in this crate.
    #[error("step {step}: bucket {bucket}: a block of its sum is missing")]
    Incomplete {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The index of the bucket.
        bucket: usize,
    },
    /// All replicas have left.
    #[error("step {step}: no replica is left; {}", last_words(.left))]
    NoneLeft {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// All replicas, in the order in which they left.
        left: Vec<Left>,
    },
    /// The probe of an adapter does not compile: a bug in this crate.
    #[error("the probe of an adapter's numbers: {why}")]
    Probe {
        /// What is wrong.
        why: String,
    },
    /// An adapter does not compute what every adapter computes, so it is of no numeric class.
    #[error("{adapter}: does not compute: {what}")]
    Wrong {
        /// The adapter's label.
        adapter: String,
        /// What was wrong.
        what: String,
    },
    /// A step was made again from the same state, and gave other bytes. The replicas that are left have the
    /// state before the step; but what was wrong may have been wrong in earlier steps, so that a caller goes
    /// back to a state that it trusts.
    #[error("step {step} was recomputed and gave other bytes: {}; {why}", who(.wrong))]
    Audit {
        /// The call of [`crate::Replicas::step`], from 0.
        step: u64,
        /// The replicas that are wrong. They have left.
        wrong: Vec<usize>,
        /// How this was found out.
        why: String,
        /// Whether replicas differ each time and none is known to be wrong: making the steps again does not
        /// help.
        lasting: bool,
    },
    /// The states of the replicas differ, which should be equal. A caller goes back to a state that it
    /// trusts.
    #[error("the replicas' states differ: {}; {}; {why}", .groups.join("; "), who(.wrong))]
    Digests {
        /// The replicas of each digest, the largest group first.
        groups: Vec<String>,
        /// The replicas that are wrong. They have left.
        wrong: Vec<usize>,
        /// How this was found out.
        why: String,
    },
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for ReplicaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ReplicaError {
    /// Returns the error of a replica that left before it was part of the run.
    pub(crate) fn not_started(left: &Left) -> Self {
        let (replica, adapter) = (left.replica, left.adapter.clone());
        match left.out_of_memory.clone() {
            Some((what, bytes)) => Self::OutOfMemory { replica, adapter, what, bytes },
            None => Self::Start { replica, adapter, why: left.why.clone() },
        }
    }

    /// Returns what happened to the only replica of a run, without its number and its adapter.
    pub(crate) fn of_the_only_one(self) -> String {
        match self {
            Self::Start { why, .. } => why,
            Self::OutOfMemory { what, bytes, .. } => without_memory(&what, bytes),
            other => other.to_string(),
        }
    }

    /// Returns the error of sums that are not finite, by the first of them in the order of the step.
    pub(crate) fn of_sums(step: u64, bad: Vec<(NodeId, String)>) -> Result<(), Self> {
        let more = bad.len().saturating_sub(1);
        let Some((node, what)) = bad.into_iter().min() else { return Ok(()) };
        Err(Self::NotFinite { step, what, sum: Some(node), more, outputs: Box::default() })
    }

    /// Adds the outputs up to the cut of the sums that are not finite.
    pub(crate) fn showing(mut self, program: &Program, shown: &Outputs) -> Self {
        if let Self::NotFinite { outputs, sum, .. } = &mut self {
            let holds = |bucket: &&Bucket| bucket.values.iter().any(|(node, _)| Some(*node) == *sum);
            let cut = program.buckets().iter().find(holds).map_or(usize::MAX, |bucket| bucket.cut);
            **outputs = shown.until(program, cut);
        }
        self
    }
}

/// Says which replicas are wrong.
fn who(wrong: &[usize]) -> String {
    let names: Vec<String> = wrong.iter().map(usize::to_string).collect();
    match wrong {
        [] => "it is not known which replica is wrong".to_owned(),
        [one] => format!("replica {one} is wrong"),
        _ => format!("replicas {} are wrong", names.join(", ")),
    }
}

/// Says what a device has no memory for.
fn without_memory(what: &str, bytes: u64) -> String {
    GpuError::OutOfMemory { what: what.to_owned(), bytes }.to_string()
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

fn last_words(left: &[Left]) -> String {
    left.iter().map(Left::to_string).collect::<Vec<_>>().join("; ")
}
