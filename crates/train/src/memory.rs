//! How much memory a training step takes, known before any is asked for.

use std::fmt;

use unisono_gpu::Adapter;
use unisono_graph::plan::{Plan, Role};
use unisono_graph::{Program, Run};
use unisono_replica::shards;

use crate::Error;

/// How many of the largest tensors are named.
const NAMED: usize = 3;

/// What a training step takes of a device's memory, on a replica with an even share of it: all of its tensors and its peak of
/// values that are alive together. Staging memory of the host and the driver's own come on top. Prints as a line.
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
}

impl Memory {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.state + self.scratch
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { global_batch, samples, state, scratch, largest } = self;
        write!(f, "{samples} of {global_batch} samples take {} of state", bytes(*state))?;
        write!(f, " and {} of scratch; largest: {}", bytes(*scratch), named(largest))
    }
}

/// What there is to run steps on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// One for each replica.
    pub adapters: Vec<Adapter>,
    pub shards: usize,
}

impl Room {
    /// What a step of the program takes, at most on any replica.
    ///
    /// # Errors
    /// [`Error::TooLarge`], for the first adapter that it does not fit.
    pub fn memory(&self, program: &Program, global_batch: usize) -> Result<Memory, Error> {
        if global_batch == 0 {
            return Err(Error::setting("global batch", "a step needs at least one sample"));
        }
        let mut most: Option<Memory> = None;
        for (index, adapter) in self.adapters.iter().enumerate() {
            if self.adapters[..index].contains(adapter) {
                continue;
            }
            let memory = match self.on(program, adapter, global_batch) {
                Ok(memory) => memory,
                Err(problem) => return Err(self.too_large(program, adapter, global_batch, problem)),
            };
            if most.as_ref().is_none_or(|most| most.total() < memory.total()) {
                most = Some(memory);
            }
        }
        most.ok_or_else(|| Error::setting("replicas", "a run needs at least one"))
    }

    fn on(&self, program: &Program, adapter: &Adapter, global_batch: usize) -> Result<Memory, String> {
        let run = self.run(global_batch);
        let plan = program.plan(&run, &adapter.target()).map_err(|error| error.to_string())?;
        let [state, scratch] = sizes(&plan);
        let (samples, largest) = (run.rows(), program.largest_tensors(&run, NAMED));
        let memory = Memory { global_batch, samples, state, scratch, largest };
        let replicas = self.adapters.iter().filter(|other| *other == adapter).count() as u64;
        match adapter.memory_bytes() {
            Some(there) if there < replicas * memory.total() => Err(format!(
                "{replicas} times {} of state and scratch, and there are {}",
                bytes(memory.total()),
                bytes(there)
            )),
            _ => Ok(memory),
        }
    }

    fn too_large(&self, program: &Program, adapter: &Adapter, global_batch: usize, problem: String) -> Error {
        let (mut fits, mut fails) = (0, global_batch);
        while fits + 1 < fails {
            let between = fits + (fails - fits) / 2;
            match self.on(program, adapter, between) {
                Ok(_) => fits = between,
                Err(_) => fails = between,
            }
        }
        let largest = named(&program.largest_tensors(&self.run(global_batch), NAMED));
        let advice = match fits {
            0 => "no global batch would fit".to_owned(),
            _ => format!("a global batch of {fits} would fit"),
        };
        Error::TooLarge { adapter: adapter.label(), global_batch, problem, largest, advice }
    }

    /// The shards of a replica that has as many as any.
    fn run(&self, global_batch: usize) -> Run {
        let mut sizes = shards::sizes(global_batch, self.shards, global_batch);
        let shards = sizes.len();
        sizes.truncate(shards.div_ceil(self.adapters.len().max(1)));
        Run { first: 0, sizes, shards }
    }
}

/// State, and all else.
fn sizes(plan: &Plan) -> [u64; 2] {
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
