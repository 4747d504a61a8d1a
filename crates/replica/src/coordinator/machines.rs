//! Which part of each batch this machine computes, where several machines share it: by their numbers of
//! replicas at first, and then as fast as each has been.
//!
//! All machines compute the same from the same records, so that they agree without a coordinator.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use unisono_cluster::cuts;
use unisono_graph::Program;

use crate::batch::feed::Feed;
use crate::coordinator::check::check_inputs;
use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::schedule::pace::{Cost, Pace};
use crate::schedule::{Assignment, Job};

/// After so many steps the cuts between machines may move: what was loaded ahead is then loaded again.
const EVERY: u64 = 32;
/// Cuts move if the slowest machine is then done so much earlier.
const GAIN: f64 = 0.9;
/// Cuts do not move for less than so many seconds a step.
const LEAST: f64 = 0.5e-3;
/// The weights of all machines together, once they follow the measured speed.
const PARTS: f64 = 4096.0;

/// The rows of each batch that this machine computes. Clones follow when they change.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<RwLock<Now>>);

/// The cuts as they are now.
#[derive(Clone, Debug, Default)]
struct Now {
    global_batch: usize,
    shards: usize,
    /// The weight of each machine that is left.
    weights: Vec<usize>,
    /// This machine's place among them.
    place: usize,
}

impl Shares {
    /// Returns the rows of a batch of so many samples that this machine computes: all of them where there is
    /// no other machine.
    pub fn rows(&self, samples: usize) -> Range<usize> {
        let now = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        if now.weights.len() < 2 {
            return 0..samples;
        }
        let sizes = crate::batch::shards::sizes(now.global_batch, now.shards, samples);
        let run = cuts(sizes.len(), &now.weights).get(now.place).cloned().unwrap_or_default();
        let first = sizes[..run.start].iter().sum();
        first..first + sizes[run].iter().sum::<usize>()
    }
}

/// How fast machines are.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    /// The time from which this machine's work in a step counts.
    since: Option<Instant>,
    /// The time that this machine has worked in this step, without waiting for others.
    spent: Duration,
    /// The times of each rank, by program.
    paces: BTreeMap<usize, Vec<Pace>>,
    /// The number of steps that all machines have agreed on.
    agreed: u64,
    /// What was decided of the last step: 2 to commit it, 1 to skip it, 0 before the first step. Machines
    /// compare it in the next step.
    pub decided: u8,
}

impl Machines {
    /// This machine begins to work, at the start of a step or after a sum over all machines.
    pub fn works(&mut self) {
        self.since = Some(Instant::now());
    }

    /// This machine has done its part up to a sum.
    pub fn waits(&mut self) {
        self.spent += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// A step begins, or begins again.
    pub fn begin(&mut self) {
        self.spent = Duration::ZERO;
        self.works();
    }

    /// Forgets the times of programs.
    pub fn forget(&mut self, programs: &Range<usize>) {
        self.paces.retain(|program, _| !programs.contains(program));
    }

    /// Returns the microseconds that this machine has worked in this step.
    pub fn micros(&self) -> u32 {
        self.spent.as_micros().try_into().unwrap_or(u32::MAX)
    }
}

impl Replicas {
    /// Returns the rows of each batch that this machine computes, also when that changes.
    pub fn shares(&self) -> Shares {
        self.follow();
        self.shares.clone()
    }

    /// Returns the shards of each machine that is left.
    pub(crate) fn runs(&self, shards: usize) -> Vec<Range<usize>> {
        self.cluster.runs(shards, &self.weights)
    }

    /// Tells those that load data which rows are this machine's.
    pub(crate) fn follow(&self) {
        let weight = |rank: &usize| self.weights.get(*rank).copied().unwrap_or(1).max(1);
        let now = Now {
            global_batch: self.options.global_batch,
            shards: self.options.shards,
            weights: self.cluster.present().iter().map(weight).collect(),
            place: self.cluster.place(),
        };
        *self.shares.0.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Returns the rows of the batch that a job of this machine reads.
    pub(crate) fn rows_of(job: &Job) -> Range<usize> {
        let first = job.share.map_or(0, |share| share.first_row);
        first..first + job.sizes.iter().sum::<usize>()
    }

    /// Takes the times of all machines in a step that they have agreed on: for each rank the microseconds.
    /// From time to time the cuts follow them. `all` has the samples of each shard of the batch.
    pub(crate) fn took(&mut self, program: usize, all: &[usize], micros: &[(usize, u32)]) {
        // Those that have agreed: others may have been lost since, which not all know yet.
        let weight = |(rank, _): &(usize, u32)| self.weights.get(*rank).copied().unwrap_or(1).max(1);
        let runs = cuts(all.len(), &micros.iter().map(weight).collect::<Vec<_>>());
        let paces = self.machines.paces.entry(program).or_default();
        paces.resize_with(self.cluster.size(), Pace::default);
        for ((rank, micros), run) in micros.iter().zip(&runs) {
            let samples = all[run.clone()].iter().sum();
            paces[*rank].add(samples, Duration::from_micros(u64::from(*micros)));
        }
        self.machines.agreed += 1;
        let follows = matches!(self.options.assignment, Assignment::Speed);
        if !follows || !self.machines.agreed.is_multiple_of(EVERY) {
            return;
        }
        let ranks: Vec<usize> = micros.iter().map(|(rank, _)| *rank).collect();
        let paces = &self.machines.paces[&program];
        let costs: Option<Vec<Cost>> = ranks.iter().map(|rank| paces[*rank].cost()).collect();
        let Some(weights) = costs.and_then(|costs| by_speed(all, &costs, &runs)) else { return };
        for (rank, weight) in ranks.into_iter().zip(weights) {
            self.weights[rank] = weight;
        }
        self.follow();
    }
}

/// Makes sure that these rows of a batch for a program are there.
///
/// # Errors
/// [`ReplicaError::Rest`].
pub(crate) fn hold(program: &Program, feed: &Feed, rows: Range<usize>) -> Result<(), ReplicaError> {
    let count = rows.len();
    let check =
        |inputs: &[Arc<[u8]>]| check_inputs(program, inputs, count).map_err(|error| error.to_string());
    feed.hold(rows, &check).map_err(|why| ReplicaError::Rest { why })
}

/// Returns weights with which the slowest machine is done noticeably earlier than with these runs.
fn by_speed(all: &[usize], costs: &[Cost], runs: &[Range<usize>]) -> Option<Vec<usize>> {
    let samples: usize = all.iter().sum();
    // All are done at the same time: the sum of what each does until then is the batch.
    let rate: f64 = costs.iter().map(|cost| 1.0 / cost.sample).sum();
    let ahead: f64 = costs.iter().map(|cost| cost.fixed / cost.sample).sum();
    let end = (samples as f64 + ahead) / rate;
    let shares: Vec<f64> = costs.iter().map(|cost| ((end - cost.fixed) / cost.sample).max(0.0)).collect();
    let sum: f64 = shares.iter().sum();
    if !sum.is_finite() || sum <= 0.0 {
        return None;
    }
    let weights: Vec<usize> =
        shares.iter().map(|share| ((PARTS * share / sum).round() as usize).max(1)).collect();
    let slowest = |runs: &[Range<usize>]| {
        let seconds = runs.iter().zip(costs).map(|(run, cost)| cost.seconds(all[run.clone()].iter().sum()));
        seconds.fold(0.0, f64::max)
    };
    let (before, after) = (slowest(runs), slowest(&cuts(all.len(), &weights)));
    (after < GAIN * before && before - after > LEAST).then_some(weights)
}

#[cfg(test)]
mod tests {
    use unisono_graph::{Tape, Type};

    use super::*;
    use crate::batch::held::Held;

    #[test]
    fn a_slow_machine_gets_less_and_small_differences_move_nothing() {
        let all = [4; 64];
        let cost = |sample| Cost { fixed: 0.01, sample };
        let even = cuts(64, &[1, 1]);
        let weights = by_speed(&all, &[cost(0.001), cost(0.003)], &even).unwrap();
        assert_eq!(cuts(64, &weights), [0..48, 48..64]);
        assert_eq!(by_speed(&all, &[cost(0.001), cost(0.00105)], &even), None);
        assert_eq!(by_speed(&all, &[cost(0.001), cost(0.003)], &cuts(64, &weights)), None);
    }

    #[test]
    fn rows_that_are_brought_are_checked() {
        let tape = Tape::new();
        tape.output("y", &(tape.input("x", Type::sample(&[2])) * 2.0));
        let program = Program::compile(&tape.finish().unwrap()).unwrap();
        let inputs = |rows: usize| vec![Arc::from(vec![0; 8 * rows])];
        // Of rows beyond the sixth, one is always missing.
        let bring = move |rows: Range<usize>| Ok(inputs(rows.len() - usize::from(rows.end > 6)));
        let held = Some(Held::new(0..4, bring));
        let feed = Feed { rows: 8, inputs: inputs(4), held, ..Feed::default() };
        assert_eq!(hold(&program, &feed, 4..6), Ok(()));
        let why = "input x [B, 2]: 8 bytes given, 16 wanted".to_owned();
        assert_eq!(hold(&program, &feed, 6..8), Err(ReplicaError::Rest { why }));
    }

    #[test]
    fn rows_are_those_of_the_shards() {
        let shares = Shares::default();
        assert_eq!(shares.rows(7), 0..7);
        let now = Now { global_batch: 16, shards: 8, weights: vec![1, 3], place: 1 };
        *shares.0.write().unwrap() = now;
        assert_eq!((shares.rows(16), shares.rows(5)), (4..16, 2..5));
    }
}
