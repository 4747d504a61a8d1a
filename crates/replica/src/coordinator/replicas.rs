//! Replicas: several devices that act as one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_cluster::Cluster;
use unisono_gpu::{Adapter, Kind, Stopwatch};
use unisono_graph::{MAX_SHARDS, Program};

use crate::coordinator::exchange::Exchanged;
use crate::coordinator::in_flight::Flight;
use crate::coordinator::machines::{Machines, Shares};
use crate::coordinator::residents::Residents;
use crate::coordinator::witness::Witness;
use crate::error::ReplicaError;
use crate::known_answer;
use crate::observe::intervals::Intervals;
use crate::observe::report::{Left, ReplicaReport};
use crate::observe::timeline::Interval;
use crate::options::Options;
use crate::owners::Owners;
use crate::schedule::{Action, AuditSchedule, Event, Policy, Scheduler};
use crate::sums::overlap::Overlap;
use crate::sums::values::HostMemory;
use crate::worker::message::{Context, Failure, Reply};
use crate::worker::threads::Threads;

/// The shortest deadline for loading: compiling takes long, also where steps are short.
const LOADING: Duration = Duration::from_secs(300);
/// The most steps in flight: a plan has staging for two.
const LANES: usize = 2;
/// The shortest deadline for opening a device.
pub(crate) const OPENING: Duration = Duration::from_secs(60);

/// Several devices that run programs as one. Each holds the whole state, and all hold the same bytes.
#[derive(Debug)]
pub struct Replicas {
    pub(crate) threads: Threads,
    pub(crate) scheduler: Scheduler,
    /// The actions that the scheduler wants and that are not done yet.
    pub(crate) actions: VecDeque<Action>,
    /// The last reply of each replica.
    pub(crate) replies: BTreeMap<usize, Reply>,
    /// The last failure of each replica in the step under way.
    pub(crate) failures: BTreeMap<usize, Failure>,
    pub(crate) overlap: Overlap,
    /// The time from which intervals are counted.
    pub(crate) started: Instant,
    /// The scheduler's clock: deadlines and paces do not count time in which the process was stopped.
    pub(crate) watch: Stopwatch,
    pub(crate) context: Context,
    /// The caller's programs by number, and that of the known-answer test once it was first needed.
    pub(crate) programs: BTreeMap<usize, Ready>,
    /// The number of the next program. Numbers are not given out again.
    pub(crate) next_program: usize,
    pub(crate) options: Options,
    /// Whether the pending order is a diagnostic and no part of the run: a replica without memory for it
    /// stays.
    pub(crate) is_diagnosing: bool,
    pub(crate) audits: AuditSchedule,
    /// The state before the next step, if the caller has read it for an audit.
    pub(crate) audited_from: Option<Arc<Vec<Vec<u8>>>>,
    /// The number of calls of [`Replicas::step`] so far.
    pub(crate) steps: u64,
    /// The replicas that left since the last outcome.
    pub(crate) untold: Vec<Left>,
    /// All replicas that left.
    pub(crate) left: Vec<Left>,
    pub(crate) memory: HostMemory,
    pub(crate) timeline: Intervals,
    /// The steps that were begun and not finished, the oldest first.
    pub(crate) in_flight: VecDeque<Flight>,
    /// The most steps in flight, which may turn out to be one.
    pub(crate) most_in_flight: usize,
    /// The time at which a step in flight was last finished.
    pub(crate) finished: Instant,
    /// The other machines of the run.
    pub(crate) cluster: Cluster,
    /// The number of replicas that each rank was started with, or how fast it is beside the others.
    pub(crate) weights: Vec<usize>,
    /// The rows of each batch that are this machine's.
    pub(crate) shares: Shares,
    pub(crate) machines: Machines,
    /// What was exchanged with other machines in this step.
    pub(crate) exchanged: Exchanged,
    /// The replicas that keep what the optimizer keeps, where it is shared out.
    pub(crate) owners: Arc<Owners>,
    /// Which samples' resident memory each replica has.
    pub(crate) residents: Residents,
    /// The adapter that recomputes some steps to check the replicas.
    pub(crate) witness: Option<Witness>,
}

/// A program, and what the scheduler must know of it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub program: Arc<Program>,
    /// Whether the program changes the state.
    pub changes_state: bool,
    /// Whether a replica may run its shards a few at once, see [`can_run_few_at_once`].
    pub few_at_once: bool,
}

impl Ready {
    fn new(program: Arc<Program>) -> Self {
        let (changes_state, few_at_once) =
            (!program.graph().updates.is_empty(), can_run_few_at_once(&program));
        Self { program, changes_state, few_at_once }
    }
}

impl Replicas {
    /// Opens a device for each entry of `adapters`, each on a thread of its own, all at once. An adapter may
    /// occur several times.
    ///
    /// The programs share one state: the states of each program are the first states of program 0. The state
    /// starts as zeros.
    ///
    /// # Errors
    /// Errors of the arguments, and [`ReplicaError::Start`] for the first device that does not open, or
    /// [`ReplicaError::OutOfMemory`] if it has no memory for the state.
    pub fn start(
        adapters: &[Adapter],
        programs: Vec<Arc<Program>>,
        options: Options,
    ) -> Result<Self, ReplicaError> {
        Self::start_in(Cluster::alone(), Vec::new(), adapters, programs, options)
    }

    /// Opens devices as [`Replicas::start`] does, as one of several machines that run the same steps. All
    /// ranks call the same functions with the same arguments in the same order. Each passes the whole batch
    /// and computes its share of it. `weights` is the number of replicas of each rank. A rank without an
    /// entry counts as one replica.
    ///
    /// # Errors
    /// As [`Replicas::start`].
    pub fn start_in(
        cluster: Cluster,
        mut weights: Vec<usize>,
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
        if cluster.size() > 1 {
            weights.resize(cluster.size().max(weights.len()), 1);
        }
        let owners = Arc::new(match options.owners {
            Some(copies) => Owners::new(&programs, &of_ranks(&weights, adapters), copies),
            None => Owners::default(),
        });
        if !owners.is_empty() && !each_has_a_buffer(&programs) {
            return Err(ReplicaError::StateLayout { program: 0 });
        }
        let policy = Policy {
            assignment: options.assignment,
            patience: options.patience,
            grace: options.grace,
            deadline: options.deadline,
            loading: LOADING,
            shards_at_once: options.shards_at_once,
            one_updates: options.one_updates,
        };
        let mut replicas = Self {
            threads: Threads::new(&programs, &options, (Arc::clone(&owners), cluster.rank())),
            owners,
            scheduler: Scheduler::new(0, policy),
            actions: VecDeque::new(),
            replies: BTreeMap::new(),
            failures: BTreeMap::new(),
            overlap: Overlap::default(),
            started: Instant::now(),
            watch: Stopwatch::start(),
            context: Context::default(),
            next_program: programs.len(),
            programs: programs.into_iter().map(Ready::new).enumerate().collect(),
            audits: AuditSchedule::new(options.audits),
            audited_from: None,
            options,
            is_diagnosing: false,
            steps: 0,
            untold: Vec::new(),
            left: Vec::new(),
            memory: HostMemory::new(),
            timeline: Intervals::default(),
            in_flight: VecDeque::new(),
            most_in_flight: 1,
            finished: Instant::now(),
            cluster,
            weights,
            shares: Shares::default(),
            machines: Machines::default(),
            exchanged: Exchanged::default(),
            residents: Residents::default(),
            witness: None,
        };
        replicas.open(adapters)?;
        replicas.most_in_flight =
            replicas.options.steps_in_flight.unwrap_or_else(|| most_in_flight(adapters)).min(LANES);
        Ok(replicas)
    }

    /// Adds programs between two steps, for example for samples of another length. They share the state: the
    /// states of each are the first states of program 0. Returns the number of the first of them; the others
    /// follow it.
    ///
    /// # Errors
    /// [`ReplicaError::States`] if a program has other states; nothing is added then.
    pub fn add_programs(&mut self, programs: Vec<Arc<Program>>) -> Result<usize, ReplicaError> {
        let first = Arc::clone(&self.ready(0)?.program);
        check_states(&[vec![first], programs.clone()].concat())?;
        let index = self.next_program;
        self.next_program += programs.len();
        self.insert_programs(index, programs);
        Ok(index)
    }

    /// Makes programs known to all replicas by their numbers, which begin with `first`.
    pub(crate) fn insert_programs(&mut self, first: usize, programs: Vec<Arc<Program>>) {
        self.threads.add_programs(first, &programs);
        self.programs.extend((first..).zip(programs.into_iter().map(Ready::new)));
    }

    /// Forgets programs between two steps, by their numbers, which are not given out again. Replicas drop
    /// their plans and kernels before they load their next plan, and nothing else is left of them.
    ///
    /// # Errors
    /// [`ReplicaError::NoProgram`] if one of them is not there, or is program 0, whose state all programs
    /// share; nothing is forgotten then. [`ReplicaError::InFlight`].
    pub fn forget_programs(&mut self, programs: Range<usize>) -> Result<(), ReplicaError> {
        self.none_in_flight()?;
        for program in programs.clone() {
            self.ready(program)?;
        }
        if programs.contains(&0) {
            return Err(self.no_program(0));
        }
        self.threads.forget_programs(&programs);
        self.programs.retain(|program, _| !programs.contains(program));
        self.audits.forget(&programs);
        self.machines.forget(&programs);
        self.notify(Event::Forgotten(programs));
        Ok(())
    }

    /// Returns the number of replicas that have not left.
    pub fn len(&self) -> usize {
        self.scheduler.present().len()
    }

    /// Returns whether all replicas have left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what each replica did with its time since it was taken, if [`Options::timeline`] is set. At
    /// most 500,000 stretches are kept, in some 32 MB: where there would be more, the steps of the older half
    /// are summed up, many in one, by replica and activity.
    pub fn timeline(&self) -> &[Interval] {
        self.timeline.all()
    }

    /// Returns whether [`Options::timeline`] is set.
    pub fn records_timeline(&self) -> bool {
        self.options.timeline
    }

    /// Takes what each replica did with its time since the last call, if [`Options::timeline`] is set.
    pub fn take_timeline(&mut self) -> Vec<Interval> {
        self.timeline.take()
    }

    /// Returns the machines of the run.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns a report of each replica, those that left included, in the order in which they were started.
    pub fn reports(&self) -> Vec<ReplicaReport> {
        self.threads.reports().cloned().collect()
    }

    /// Returns all replicas that left so far.
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    pub(crate) fn adapter(&mut self, replica: usize) -> String {
        self.threads.report(replica).adapter.clone()
    }

    pub(crate) fn ready(&self, program: usize) -> Result<&Ready, ReplicaError> {
        let own = self.programs.get(&program).filter(|_| program != known_answer::PROGRAM_NUMBER);
        own.ok_or_else(|| self.no_program(program))
    }

    /// Returns the programs of the caller.
    pub(crate) fn own_programs(&self) -> impl Iterator<Item = &Arc<Program>> {
        let own = self.programs.iter().filter(|(number, _)| **number != known_answer::PROGRAM_NUMBER);
        own.map(|(_, ready)| &ready.program)
    }

    fn no_program(&self, program: usize) -> ReplicaError {
        ReplicaError::NoProgram { program, programs: self.own_programs().count() }
    }

    pub(crate) fn sizes(&self, rows: usize) -> Vec<usize> {
        crate::batch::shards::sizes(self.options.global_batch, self.options.shards, rows)
    }

    /// Returns the error that no replica is left.
    pub(crate) fn none_left(&self) -> ReplicaError {
        ReplicaError::NoneLeft { step: self.steps.saturating_sub(1), left: self.left.clone() }
    }
}

/// Returns the most steps in flight. A software driver computes on the thread that submits, and the
/// CPU on the cores that the host needs as well, so that a second step would only delay the first one's
/// results.
fn most_in_flight(adapters: &[Adapter]) -> usize {
    if adapters.iter().any(|adapter| adapter.kind == Kind::Cpu) { 1 } else { 2 }
}

/// Returns whether a replica may run its shards a few at once, see [`Options::shards_at_once`]: this holds
/// where the program has one cut at most, the segment that changes the state needs nothing of a sample, and
/// nothing of the samples stays on devices.
pub fn can_run_few_at_once(program: &Program) -> bool {
    match program.segments() {
        _ if program.is_resident() => false,
        1 => program.graph().updates.is_empty(),
        2 => program.commits_globally(),
        _ => false,
    }
}

/// Returns the number of replicas of each rank.
fn of_ranks(weights: &[usize], adapters: &[Adapter]) -> Vec<usize> {
    if weights.is_empty() { vec![adapters.len()] } else { weights.to_vec() }
}

/// Returns whether each tensor of the state has a buffer of its own.
fn each_has_a_buffer(programs: &[Arc<Program>]) -> bool {
    let is_own = |(index, slice): (usize, &unisono_graph::plan::Slice)| slice.buffer == index;
    programs.iter().all(|program| program.state_layout().tensors.iter().enumerate().all(is_own))
}

/// Checks that the states of each program are the first states of program 0, and lie where those lie.
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
        if !first.state_layout().begins_with(other.state_layout()) {
            return Err(ReplicaError::StateLayout { program });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_are_in_flight_on_a_gpu_and_one_on_a_cpu_adapter() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let of = |kind| Adapter { kind, ..adapter.clone() };
        for gpu in [Kind::Discrete, Kind::Integrated] {
            assert_eq!(most_in_flight(&[of(gpu)]), 2);
            assert_eq!(most_in_flight(&[of(gpu), of(Kind::Cpu)]), 1);
        }
    }
}
