//! How much memory a training step takes, known before any is asked for.

use std::fmt;

use unisono_gpu::Adapter;
use unisono_graph::plan::{Plan, Role};
use unisono_graph::{Program, Run};
use unisono_replica::{can_run_few_at_once, shards};

use crate::Error;

/// How many of the largest tensors are named.
const NAMED: usize = 3;

/// What a training step takes of a device's memory, on a replica with an even share of it: all of its tensors and its peak of
/// values that are alive together. Staging memory of the host and the driver's own come on top. Prints as a line.
///
/// A replica runs its shards together where memory allows; else the most that fit, a power of two of them, one such piece after
/// another. That takes less memory and more time, and never changes the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Samples of the step.
    pub global_batch: usize,
    /// Samples of the replica.
    pub samples: usize,
    /// Bytes of parameters, statistics and what the optimizer keeps.
    pub state: u64,
    /// Bytes for everything else, shared by what is not needed at the same time.
    pub scratch: u64,
    /// The largest tensors and their bytes, the largest first.
    pub largest: Vec<(String, u64)>,
    /// Shards of the replica.
    pub shards: usize,
    /// As many of them run at once.
    pub at_once: usize,
    /// Why not all, where it is not so.
    pub pieces: Option<String>,
}

impl Memory {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.state + self.scratch
    }

    /// How a replica runs its shards, and why: `2 of a replica's 4 shards at once: together they need ...`.
    pub fn how(&self) -> String {
        let Self { shards, at_once, .. } = self;
        match &self.pieces {
            Some(why) => format!("{at_once} of a replica's {shards} shards at once: {why}"),
            None => format!("a replica's {shards} shards at once"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { global_batch, samples, state, scratch, largest, .. } = self;
        write!(f, "{samples} of {global_batch} samples take {} of state", bytes(*state))?;
        write!(f, " and {} of scratch; largest: {}", bytes(*scratch), named(largest))?;
        match &self.pieces {
            Some(_) => write!(f, "; {}", self.how()),
            None => Ok(()),
        }
    }
}

/// What there is to run steps on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// One for each replica.
    pub adapters: Vec<Adapter>,
    pub shards: usize,
    /// Most shards that may run at once, and why no more.
    pub at_once: Option<(usize, &'static str)>,
    /// Bytes that a replica may take of its device.
    pub limit: Option<u64>,
}

impl Room {
    /// What a step of the program takes, at most on any replica, and the most shards that may run at once wherever they are.
    ///
    /// # Errors
    /// [`Error::TooLarge`], for the first adapter that it does not fit, one shard at a time.
    pub fn memory(&self, program: &Program, global_batch: usize) -> Result<(Memory, Option<usize>), Error> {
        if global_batch == 0 {
            return Err(Error::setting("global batch", "a step needs at least one sample"));
        }
        let mut most: Option<Memory> = None;
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

    /// From now on fewer at once than in this: a driver has no memory for them. False where there are no fewer.
    pub fn fewer(&mut self, program: &Program, memory: &Memory) -> bool {
        let less = can_run_few_at_once(program) && memory.at_once > 1;
        if less {
            self.at_once = Some((1 << (memory.at_once - 1).ilog2(), "the driver has no memory for more"));
        }
        less
    }

    /// How many shards run at once on an adapter: all that there are, since others may leave; if these do not fit, an even
    /// share; else the largest power of two that fits. Where a replica has to run all it has at once, as many more than an even
    /// share as fit. With it the most that may run at once, unless that is all.
    fn choose(
        &self,
        program: &Program,
        adapter: &Adapter,
        global_batch: usize,
    ) -> Result<(Memory, Option<usize>), String> {
        let sizes = shards::sizes(global_batch, self.shards, global_batch);
        let share = self.share(sizes.len());
        let powers = (0..=share.ilog2()).rev().map(|power| 1 << power);
        let mut counts: Vec<usize> = [sizes.len(), share].into_iter().chain(powers).collect();
        if can_run_few_at_once(program) {
            let asked = self.at_once.map_or(usize::MAX, |(most, _)| most.max(1));
            counts.iter_mut().for_each(|count| *count = asked.min(*count));
            counts.dedup();
        } else {
            let more = sizes.len() - share;
            counts =
                (0..=more.checked_ilog2().map_or(0, |log| log + 1)).map(|k| share + (more >> k)).collect();
        }
        let mut why = self.at_once.map_or("", |(_, why)| why).to_owned();
        let mut problem = String::new();
        for most in counts {
            match self.bytes(program, adapter, &sizes, most) {
                Ok(bytes) => {
                    let at_once = most.min(share);
                    let [state, scratch] =
                        if at_once < most { self.bytes(program, adapter, &sizes, at_once)? } else { bytes };
                    let memory = Memory {
                        global_batch,
                        samples: sizes[..share].iter().sum(),
                        state,
                        scratch,
                        largest: program.largest_tensors(&run(&sizes, at_once), NAMED),
                        shards: share,
                        at_once,
                        pieces: (at_once < share).then_some(why),
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

    /// Bytes of state, and of all else, for the first shards of a batch.
    fn bytes(
        &self,
        program: &Program,
        adapter: &Adapter,
        sizes: &[usize],
        shards: usize,
    ) -> Result<[u64; 2], String> {
        let plan = program.plan(&run(sizes, shards), &adapter.target()).map_err(|error| error.to_string())?;
        let [state, scratch] = state_and_scratch(&plan);
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
        let largest = named(&program.largest_tensors(&run(&sizes, least), NAMED));
        let advice = match fits {
            0 => "no global batch would fit".to_owned(),
            _ => format!("a global batch of {fits} would fit"),
        };
        Error::TooLarge { adapter: adapter.label(), global_batch, problem, largest, advice }
    }

    /// The shards of a replica that has as many as any.
    fn share(&self, shards: usize) -> usize {
        shards.div_ceil(self.adapters.len().max(1))
    }
}

/// The first shards of a batch.
fn run(sizes: &[usize], shards: usize) -> Run {
    Run { first: 0, sizes: sizes[..shards].to_vec(), shards: sizes.len() }
}

/// State, and all else.
fn state_and_scratch(plan: &Plan) -> [u64; 2] {
    let of = |state: bool| {
        let own = |role: &Role| matches!(role, Role::State(_)) == state;
        plan.buffers.iter().filter(|buffer| own(&buffer.role)).map(|buffer| buffer.bytes).sum()
    };
    [of(true), of(false)]
}

fn named(tensors: &[(String, u64)]) -> String {
    let each = tensors.iter().map(|(name, size)| format!("{name} ({})", bytes(*size)));
    each.collect::<Vec<_>>().join(", ")
}

/// `1.5 MiB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    let value = count as f64 / (1u64 << (10 * unit)) as f64;
    format!("{value:.*} {}", usize::from(unit > 0), UNITS[unit])
}
