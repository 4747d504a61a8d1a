//! The memory that a training step takes, estimated before any is allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use unisono_gpu::Adapter;
use unisono_graph::plan::{Plan, Role};
use unisono_graph::{Program, Run};
use unisono_replica::{Owners, can_run_few_at_once, shards};

use crate::Error;

/// The number of the largest tensors that an error names.
const NAMED: usize = 3;

/// The device memory that training needs, on a replica with an even share of each step. It includes all of
/// the replica's tensors, and buffers for intermediate values, which the steps of all phases and evaluations
/// share. It does not include the host's staging memory, the driver's own memory, predictions, and samples of
/// other lengths. `audits` is the host memory for audits. Prints as one line.
///
/// A replica computes all its shards at once if memory allows. Otherwise it computes groups of shards one
/// after another, each group the largest power of two that fits. Fewer shards at once take less memory and
/// more time. Never changes the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// The number of samples in the step.
    pub global_batch: usize,
    /// The number of samples that the replica computes.
    pub samples: usize,
    /// The bytes of parameters, statistics and optimizer state.
    pub state: u64,
    /// The bytes for everything else. Values that are not needed at the same time share them.
    pub scratch: u64,
    /// The bytes of host memory for the last trusted state, or 0 without audits. During an audit, the state
    /// before the step takes as many bytes again. Before the first audit of a new run, audits keep nothing.
    pub audits: u64,
    /// The largest tensors with their bytes, the largest first.
    pub largest: Vec<(String, u64)>,
    /// The number of the replica's shards.
    pub shards: usize,
    /// The number of shards that run at once.
    pub shards_at_once: usize,
    /// The reason why not all shards of the replica run at once, or `None` if all do.
    pub limited_by: Option<String>,
}

impl MemoryEstimate {
    /// Returns the bytes of state and scratch together, which a device has. On a CPU they are the host's
    /// memory, and those of [`MemoryEstimate::audits`] come on top.
    pub fn total(&self) -> u64 {
        self.state + self.scratch
    }

    /// Says how many of its shards a replica runs at once and why, such as `2 of a replica's 4 shards at
    /// once: together they need ...`.
    pub fn how(&self) -> String {
        let Self { shards, shards_at_once, .. } = self;
        match &self.limited_by {
            Some(why) => format!("{shards_at_once} of a replica's {shards} shards at once: {why}"),
            None => format!("a replica's {shards} shards at once"),
        }
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { global_batch, samples, state, scratch, audits, largest, .. } = self;
        write!(f, "{} of state and {} of scratch", bytes(*state), bytes(*scratch))?;
        write!(f, " for {samples} of {global_batch} samples; largest tensors: {}", named(largest))?;
        if *audits > 0 {
            write!(f, "; audits keep {} on the host, and twice that during an audit", bytes(*audits))?;
        }
        match &self.limited_by {
            Some(_) => write!(f, "; {}", self.how()),
            None => Ok(()),
        }
    }
}

/// The devices that steps run on, and the memory of them that a step may take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    /// The adapter of each replica.
    pub adapters: Vec<Adapter>,
    /// The number of shards of a step.
    pub shards: usize,
    /// The largest number of shards that may run at once, and why no more. `None` means all shards of a
    /// replica.
    pub at_once: Option<(usize, &'static str)>,
    /// The bytes that a replica may take of its device. `None` means the memory that the device has.
    pub limit: Option<u64>,
    /// The bytes of state that even the replica with the most of it does without, because others keep them.
    pub kept_by_others: u64,
    /// The bytes of the host's memory in which audits keep a state.
    pub audits: u64,
    /// The programs that share the memory of a device.
    pub programs: Vec<Arc<Program>>,
}

impl Budget {
    /// Returns the most memory that a step of the program takes on any replica, and the largest number of
    /// shards that may run at once on every replica.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for the first adapter on which not even one shard at a time fits.
    pub fn memory(
        &self,
        program: &Program,
        global_batch: usize,
    ) -> Result<(MemoryEstimate, Option<usize>), Error> {
        if global_batch == 0 {
            return Err(Error::setting("global batch", "a step needs at least one sample"));
        }
        let mut most: Option<MemoryEstimate> = None;
        let mut at_once = None;
        for (index, adapter) in self.adapters.iter().enumerate() {
            if self.adapters[..index].contains(adapter) {
                continue;
            }
            let (memory, own) = match self.choose(program, adapter, global_batch) {
                Ok(chosen) => chosen,
                Err(problem) => return Err(self.too_large(program, adapter, global_batch, problem)),
            };
            at_once = at_once.into_iter().chain(own).min();
            if most.as_ref().is_none_or(|most| most.total() < memory.total()) {
                most = Some(memory);
            }
        }
        let most = most.ok_or_else(|| Error::setting("replicas", "a run needs at least one"))?;
        Ok((most, at_once))
    }

    /// Allows fewer shards at once than an estimate for which a driver had no memory. Returns whether fewer
    /// are possible.
    pub fn fewer(&mut self, program: &Program, memory: &MemoryEstimate) -> bool {
        let less = can_run_few_at_once(program) && memory.shards_at_once > 1;
        if less {
            self.at_once =
                Some((1 << (memory.shards_at_once - 1).ilog2(), "the driver has no memory for more"));
        }
        less
    }

    /// Chooses how many shards run at once on an adapter: all shards of the step if they fit, since other
    /// replicas may leave; otherwise an even share; otherwise the largest power of two that fits. Where a
    /// program has to run all shards of a replica at once, as many more than an even share as fit. Returns
    /// the estimate for an even share, and the largest number that may run at once unless that is all.
    fn choose(
        &self,
        program: &Program,
        adapter: &Adapter,
        global_batch: usize,
    ) -> Result<(MemoryEstimate, Option<usize>), String> {
        let sizes = shards::sizes(global_batch, self.shards, global_batch);
        let share = self.share(sizes.len());
        let mut why = self.at_once.map_or("", |(_, why)| why).to_owned();
        let mut problem = String::new();
        for most in self.candidates(program, sizes.len()) {
            match self.bytes(adapter, &sizes, most) {
                Ok(bytes) => {
                    let at_once = most.min(share);
                    let [state, scratch] =
                        if at_once < most { self.bytes(adapter, &sizes, at_once)? } else { bytes };
                    let memory = MemoryEstimate {
                        global_batch,
                        samples: sizes[..share].iter().sum(),
                        state,
                        scratch,
                        audits: self.audits,
                        largest: self.largest_tensors(adapter, &sizes, at_once),
                        shards: share,
                        shards_at_once: at_once,
                        limited_by: (at_once < share).then_some(why),
                    };
                    return Ok((memory, (most < sizes.len()).then_some(most)));
                }
                Err(needs) => {
                    if most == share {
                        why = format!("together they need {needs}");
                    }
                    problem = needs;
                }
            }
        }
        Err(problem)
    }

    /// Lists the numbers of shards at once that are tried for a step of so many shards, the best first.
    fn candidates(&self, program: &Program, shards: usize) -> Vec<usize> {
        let share = self.share(shards);
        if !can_run_few_at_once(program) {
            let more = shards - share;
            return (0..=more.checked_ilog2().map_or(0, |log| log + 1))
                .map(|k| share + (more >> k))
                .collect();
        }
        let powers = (0..=share.ilog2()).rev().map(|power| 1 << power);
        let asked = self.at_once.map_or(usize::MAX, |(most, _)| most.max(1));
        let mut counts: Vec<usize> =
            [shards, share].into_iter().chain(powers).map(|n| n.min(asked)).collect();
        counts.dedup();
        counts
    }

    /// Returns the largest tensors of all programs with their bytes, for the first shards of a batch.
    fn largest_tensors(&self, adapter: &Adapter, sizes: &[usize], shards: usize) -> Vec<(String, u64)> {
        let (run, target) = (run(sizes, shards), adapter.target());
        let each = self.programs.iter().map(|program| program.largest_tensors(&run, &target, NAMED));
        let mut largest: Vec<(String, u64)> = each.flatten().collect();
        largest.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let mut named = BTreeSet::new();
        largest.retain(|(name, _)| named.insert(name.clone()));
        largest.truncate(NAMED);
        largest
    }

    /// Returns the bytes of state and of everything else for the first shards of a batch.
    ///
    /// # Errors
    /// The bytes that the shards need and the reason why they do not fit.
    fn bytes(&self, adapter: &Adapter, sizes: &[usize], shards: usize) -> Result<[u64; 2], String> {
        let mut held = Held::default();
        for program in &self.programs {
            // What a program that cannot run few of them needs is its even share at least.
            let least = if can_run_few_at_once(program) { 1 } else { self.share(sizes.len()) };
            let run = run(sizes, shards.max(least));
            held.add(&program.plan(&run, &adapter.target()).map_err(|error| error.to_string())?);
        }
        let [state, scratch] = held.bytes();
        let state = state - self.kept_by_others.min(state);
        let (needs, replicas) = (state + scratch, self.adapters.iter().filter(|a| *a == adapter).count());
        if let Some(limit) = self.limit.filter(|limit| *limit < needs) {
            return Err(format!("{} of state and scratch, and the limit is {}", bytes(needs), bytes(limit)));
        }
        if let Some(there) = adapter.memory_bytes().filter(|there| *there < replicas as u64 * needs) {
            let (needs, there) = (bytes(needs), bytes(there));
            return Err(format!("{replicas} times {needs} of state and scratch, and there are {there}"));
        }
        Ok([state, scratch])
    }

    /// Returns the error of a batch that does not fit, with the largest global batch that would.
    fn too_large(&self, program: &Program, adapter: &Adapter, global_batch: usize, problem: String) -> Error {
        let (mut fits, mut fails) = (0, global_batch);
        while fits + 1 < fails {
            let between = fits + (fails - fits) / 2;
            match self.choose(program, adapter, between) {
                Ok(_) => fits = between,
                Err(_) => fails = between,
            }
        }
        let sizes = shards::sizes(global_batch, self.shards, global_batch);
        let least = if can_run_few_at_once(program) { 1 } else { self.share(sizes.len()) };
        let largest = named(&self.largest_tensors(adapter, &sizes, least));
        let advice = match fits {
            0 => "no global batch would fit".to_owned(),
            _ => format!("a global batch of {fits} would fit"),
        };
        Error::TooLarge { adapter: adapter.label(), global_batch, problem, largest, advice }
    }

    /// Returns the largest number of shards that a replica has.
    fn share(&self, shards: usize) -> usize {
        shards.div_ceil(self.adapters.len().max(1))
    }
}

/// Returns the run of the first shards of a batch.
fn run(sizes: &[usize], shards: usize) -> Run {
    Run { first: 0, sizes: sizes[..shards].to_vec(), shards: sizes.len() }
}

/// The memory that a device holds for plans that it has loaded. They take turns, so that their scratch
/// buffers are the same ones: the largest of each, the second largest of each, and so on.
#[derive(Debug, Default, PartialEq)]
struct Held {
    /// The bytes of each state.
    states: BTreeMap<usize, u64>,
    /// The bytes of the scratch buffers, the largest first.
    scratch: Vec<u64>,
    /// The bytes of what plans have for themselves.
    own: u64,
}

impl Held {
    /// Adds a plan.
    fn add(&mut self, plan: &Plan) {
        let mut scratch = Vec::new();
        for buffer in &plan.buffers {
            match buffer.role {
                Role::State(index) => {
                    let state = self.states.entry(index).or_default();
                    *state = (*state).max(buffer.bytes);
                }
                Role::Scratch => scratch.push(buffer.bytes),
                _ => self.own += buffer.bytes,
            }
        }
        self.add_scratch(scratch);
    }

    fn add_scratch(&mut self, mut bytes: Vec<u64>) {
        bytes.sort_by_key(|&bytes| Reverse(bytes));
        self.scratch.resize(self.scratch.len().max(bytes.len()), 0);
        for (held, bytes) in self.scratch.iter_mut().zip(bytes) {
            *held = (*held).max(bytes);
        }
    }

    /// Returns the bytes of state and of everything else.
    fn bytes(&self) -> [u64; 2] {
        [self.states.values().sum(), self.scratch.iter().sum::<u64>() + self.own]
    }
}

fn named(tensors: &[(String, u64)]) -> String {
    let each = tensors.iter().map(|(name, size)| format!("{name} ({})", bytes(*size)));
    each.collect::<Vec<_>>().join(", ")
}

/// Writes a number of bytes as in `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    let value = count as f64 / (1u64 << (10 * unit)) as f64;
    format!("{value:.*} {}", usize::from(unit > 0), UNITS[unit])
}
/// Returns the bytes of state that even the replica with the most of it does without, given the programs,
/// the number of replicas of each machine, and the number of owners of what the optimizer keeps.
pub(crate) fn kept_by_others(programs: &[Arc<Program>], replicas: &[usize], copies: usize) -> u64 {
    let owners = Owners::new(programs, replicas, copies);
    let all = replicas.iter().enumerate();
    let all = all.flat_map(|(rank, count)| (0..*count).map(move |replica| (rank, replica)));
    let most = all.map(|(rank, replica)| owners.state_bytes(rank, replica)).max();
    owners.all_bytes() - most.unwrap_or(owners.all_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_share_the_largest_buffers_of_each() {
        let mut held = Held::default();
        held.add_scratch(vec![1, 100, 1]);
        assert_eq!(held.bytes(), [0, 102]);
        held.add_scratch(vec![40, 40, 40]);
        assert_eq!(held.scratch, [100, 40, 40]);
        held.add_scratch(vec![7]);
        assert_eq!(held.bytes(), [0, 180]);
    }
}
