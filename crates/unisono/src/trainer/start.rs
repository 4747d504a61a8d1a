//! Starting the replicas of a trainer, within the memory of their devices.

use unisono_graph::Program;
use unisono_replica::{Assignment, Audits, Classes, ReplicaError, Replicas};

use crate::compile::memory::Budget;
use crate::compile::programs::Programs;
use crate::run::settings::RunSettings;
use crate::trainer::builder::Builder;
use crate::trainer::crew::Crew;
use crate::trainer::together::{audits, compare_ways};
use crate::{Error, MemoryEstimate};

impl Builder {
    /// Starts the replicas of this machine, and gives every state its start value. Returns them with what a
    /// step takes of each device's memory.
    ///
    /// # Errors
    /// A model that does not fit a device; an initializer that cannot work; of the replicas.
    pub(super) fn crew(
        &mut self,
        programs: &Programs,
        mut budget: Budget,
        settings: &RunSettings,
        mixed: bool,
        weights: &[usize],
    ) -> Result<(Crew, MemoryEstimate), Error> {
        if !self.world.is_alone() {
            compare_ways(&self.world, &self.options, self.digest_every)?;
            self.options.fault_scope = format!("rank-{}:{}", self.world.rank(), self.options.fault_scope);
        }
        self.options.audits = audits(&self.world, self.options.audits)?;
        let (mut replicas, memory) = self.start(programs, &mut budget, settings, mixed, weights)?;
        give_start_values(programs, &mut replicas, settings.seed)?;
        let crew = Crew {
            replicas,
            classes: Classes::new(budget.adapters),
            mixed,
            is_audited: !mixed && is_audited(self.options.audits),
            digest_every: self.digest_every,
            compared: None,
            left_told: 0,
            spoiled: None,
        };
        Ok((crew, memory))
    }

    /// Starts the replicas, with fewer shards at once where a driver has no memory for more. Returns them and
    /// what a step takes.
    fn start(
        &self,
        programs: &Programs,
        budget: &mut Budget,
        settings: &RunSettings,
        mixed: bool,
        weights: &[usize],
    ) -> Result<(Replicas, MemoryEstimate), Error> {
        let &RunSettings { global_batch, shards, .. } = settings;
        let mut options = self.options.clone().with(|o| (o.global_batch, o.shards) = (global_batch, shards));
        if mixed {
            // An audit would only find that the adapters differ, which is known.
            options = options
                .with(|o| (o.one_updates, o.assignment, o.audits) = (true, Assignment::Even, Audits::Never));
        }
        loop {
            let (memory, shards_at_once, largest) = largest_step(programs, budget, global_batch)?;
            let options = options.clone().with(|o| o.shards_at_once = shards_at_once);
            let (world, weights) = (self.world.clone(), weights.to_vec());
            let mut replicas = Replicas::start_in(world, weights, &budget.adapters, programs.all(), options)?;
            let numbers = (0..programs.trains().count()).map(Programs::number_in);
            let prepared =
                numbers.into_iter().try_for_each(|number| replicas.prepare(number, &[global_batch]));
            match prepared {
                Ok(()) => return Ok((replicas, memory)),
                Err(ReplicaError::OutOfMemory { .. }) if budget.fewer(largest, &memory) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns what the training step takes that takes the most of all phases', the largest number of shards that
/// may run at once in all, and the step's program.
pub(super) fn largest_step<'a>(
    programs: &'a Programs,
    budget: &Budget,
    global_batch: usize,
) -> Result<(MemoryEstimate, Option<usize>, &'a Program), Error> {
    let mut largest: Option<(MemoryEstimate, &Program)> = None;
    let mut at_once: Option<usize> = None;
    for program in programs.trains() {
        let (memory, own) = budget.memory(program, global_batch)?;
        at_once = at_once.into_iter().chain(own).min();
        if largest.as_ref().is_none_or(|(most, _)| most.total() < memory.total()) {
            largest = Some((memory, program));
        }
    }
    let (memory, program) = largest.unwrap_or_else(|| (MemoryEstimate::default(), programs.train()));
    Ok((memory, at_once, program))
}

/// Returns whether a rule audits any step.
fn is_audited(rule: Audits) -> bool {
    match rule {
        Audits::Never | Audits::Every(0) => false,
        Audits::Share(share) => share > 0.0,
        _ => true,
    }
}

/// Writes the start value of every state to the replicas.
fn give_start_values(programs: &Programs, replicas: &mut Replicas, seed: u64) -> Result<(), Error> {
    for (index, initializer) in programs.initializers.iter().enumerate() {
        let state = &programs.train().states()[index];
        let values = match initializer {
            Some(initializer) => initializer
                .values(seed, &state.name, &state.ty.dims)
                .map_err(|problem| Error::setting("initializer", problem))?,
            None => vec![0.0; state.ty.count()],
        };
        replicas.write_state(index, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
    }
    Ok(())
}
