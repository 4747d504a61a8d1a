//! Replicas: several devices that act as one.

use std::collections::HashSet;
use std::sync::Arc;

use unisono_gpu::Adapter;
use unisono_graph::{MAX_SHARDS, Program, Run};

use crate::error::ReplicaError;
use crate::layout::Layout;
use crate::message::Failure;
use crate::options::Options;
use crate::report::{Left, ReplicaReport};
use crate::team::Team;

/// Several devices that run programs as one, each with the whole state, all with the same bytes.
#[derive(Debug)]
pub struct Replicas {
    pub(crate) team: Team,
    pub(crate) programs: Vec<Ready>,
    pub(crate) options: Options,
    /// Calls of [`Replicas::step`] so far.
    pub(crate) steps: u64,
    /// Those that left since the last outcome told of it.
    pub(crate) untold: Vec<Left>,
    /// All that left.
    pub(crate) left: Vec<Left>,
    /// What is loaded: replica, program, run.
    pub(crate) loaded: HashSet<(usize, usize, Arc<Run>)>,
    pub(crate) buffers: Buffers,
}

/// A program, and what the scheduler has to know of it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub program: Arc<Program>,
    /// Whether there is something to commit.
    pub changes_state: bool,
}

/// Memory for sums and blocks that steps use again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub threads: usize,
    pub sums: Vec<Arc<Vec<f32>>>,
    /// By replica.
    pub blocks: Vec<Vec<Vec<f32>>>,
}

impl Replicas {
    /// Opens a device for each entry of `adapters` on a thread of its own, all at once. An adapter may come several times.
    ///
    /// The programs share their state: that of program 0 begins with that of each other program. It starts as zeros.
    ///
    /// # Errors
    /// Everything that can be wrong with the arguments, and [`ReplicaError::Start`] for the first device that does not open.
    pub fn start(
        adapters: &[Adapter],
        programs: Vec<Arc<Program>>,
        options: Options,
    ) -> Result<Self, ReplicaError> {
        if adapters.is_empty() {
            return Err(ReplicaError::NoReplicas);
        }
        if options.global_batch == 0 {
            return Err(ReplicaError::GlobalBatch);
        }
        if !(1..=MAX_SHARDS).contains(&options.shards) {
            return Err(ReplicaError::Shards(options.shards));
        }
        check_states(&programs)?;
        let team = Team::start(adapters, &programs, &options)?;
        let ready =
            |program: Arc<Program>| Ready { changes_state: !program.graph().updates.is_empty(), program };
        let programs = programs.into_iter().map(ready).collect();
        let buffers = Buffers {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            sums: Vec::new(),
            blocks: vec![Vec::new(); adapters.len()],
        };
        Ok(Self {
            team,
            programs,
            options,
            steps: 0,
            untold: Vec::new(),
            left: Vec::new(),
            loaded: HashSet::new(),
            buffers,
        })
    }

    /// Replicas that have not left.
    pub fn len(&self) -> usize {
        self.team.present().len()
    }

    /// Whether all replicas have left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replicas that have no shard in a batch of `rows` samples.
    pub fn idle_replicas(&self, rows: usize) -> usize {
        self.len().saturating_sub(self.sizes(rows).len())
    }

    /// What each replica did so far, those that left included, in the order they were started.
    pub fn reports(&self) -> Vec<ReplicaReport> {
        self.team.reports().cloned().collect()
    }

    /// All that left so far.
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// How they were started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn adapter(&mut self, replica: usize) -> String {
        self.team.report(replica).adapter.clone()
    }

    pub(crate) fn ready(&self, program: usize) -> Result<&Ready, ReplicaError> {
        let programs = self.programs.len();
        self.programs.get(program).ok_or(ReplicaError::NoProgram { program, programs })
    }

    pub(crate) fn sizes(&self, rows: usize) -> Vec<usize> {
        crate::shards::sizes(self.options.global_batch, self.options.shards, rows)
    }

    pub(crate) fn layout(&self, program: &Ready, rows: usize, step: u64) -> Layout {
        let replicas = self.team.present();
        Layout::new(self.options.assignment, &self.sizes(rows), &replicas, step, program.changes_state)
    }

    /// Lets go of replicas that failed; an error if nobody is left.
    pub(crate) fn dismiss(&mut self, failures: &[(usize, Failure)]) -> Result<(), ReplicaError> {
        let step = self.steps.saturating_sub(1);
        for (replica, failure) in failures {
            let left = self.team.dismiss(*replica, step, failure);
            self.loaded.retain(|(of, ..)| of != replica);
            self.buffers.blocks[*replica].clear();
            self.untold.push(left.clone());
            self.left.push(left);
        }
        if self.is_empty() { Err(ReplicaError::NoneLeft { step, left: self.left.clone() }) } else { Ok(()) }
    }
}

/// Program 0 has all states, the others the first of them.
fn check_states(programs: &[Arc<Program>]) -> Result<(), ReplicaError> {
    let Some(first) = programs.first() else { return Err(ReplicaError::NoPrograms) };
    for (program, other) in programs.iter().enumerate() {
        for (index, state) in other.states().iter().enumerate() {
            let wanted = first.states().get(index);
            if wanted.is_none_or(|w| (&w.name, &w.ty) != (&state.name, &state.ty)) {
                let wanted = wanted.map_or_else(|| "absent".to_owned(), |w| format!("{} {}", w.name, w.ty));
                let found = format!("{} {}", state.name, state.ty);
                return Err(ReplicaError::States { program, index, found, wanted });
            }
        }
    }
    Ok(())
}
