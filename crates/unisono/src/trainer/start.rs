//! Starting the replicas of a trainer, within the memory of their devices.

use unisono_graph::Program;
use unisono_replica::{Assignment, Audits, Classes, ReplicaError, Replicas, can_run_few_at_once};

use crate::compile::memory::Budget;
use crate::compile::programs::Programs;
use crate::run::settings::RunSettings;
use crate::trainer::agree::compare_ways;
use crate::trainer::builder::Builder;
use crate::trainer::replica_set::ReplicaSet;
use crate::{Error, MemoryEstimate};

impl Builder {
    /// Starts the replicas of this machine, and gives every state its start value. Returns them with what a
    /// step takes of each device's memory.
    ///
    /// # Errors
    /// A model that does not fit a device; an initializer that cannot work; of the replicas.
    pub(super) fn replica_set(
        &mut self,
        programs: &Programs,
        mut budget: Budget,
        settings: &RunSettings,
        mixed: bool,
        weights: &[usize],
    ) -> Result<(ReplicaSet, MemoryEstimate), Error> {
        if !self.cluster.is_alone() {
            compare_ways(&self.cluster, &self.options, self.digest_every)?;
            self.options.fault_scope = format!("rank-{}:{}", self.cluster.rank(), self.options.fault_scope);
        }
        self.options.audits = self.settled_audits()?;
        let (mut replicas, mut memory) = self.start(programs, &mut budget, settings, mixed, weights)?;
        give_start_values(programs, &mut replicas, settings.seed)?;
        let is_audited = !mixed && is_audited(self.options.audits);
        if !is_audited {
            memory.audits = 0;
        }
        let replica_set = ReplicaSet {
            replicas,
            classes: Classes::new(budget.adapters),
            mixed,
            is_audited,
            digest_every: self.digest_every,
            compared: None,
            left_told: 0,
            non_finite: None,
            pending: None,
        };
        Ok((replica_set, memory))
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
            let (cluster, weights) = (self.cluster.clone(), weights.to_vec());
            let mut replicas =
                Replicas::start_in(cluster, weights, &budget.adapters, programs.all(), options)?;
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

/// Returns what training takes, the largest number of shards that may run at once in all phases, and the
/// program of a step that takes as much, if possible one that can run fewer shards at once.
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
        let rank = |memory: &MemoryEstimate, program| (memory.total(), can_run_few_at_once(program));
        if largest.as_ref().is_none_or(|(most, other)| rank(most, other) < rank(&memory, program)) {
            largest = Some((memory, program));
        }
    }
    let (memory, program) = largest.unwrap_or_else(|| (MemoryEstimate::default(), programs.train()));
    Ok((memory, at_once, program))
}

/// Returns whether a rule audits any step.
pub(super) fn is_audited(rule: Audits) -> bool {
    match rule {
        Audits::Never | Audits::Every(0) => false,
        Audits::Share(share) => share > 0.0,
        _ => true,
    }
}

/// Writes the start value of every state to the replicas, which are new. What has none starts with zeros, as
/// the buffers of a new replica do.
fn give_start_values(programs: &Programs, replicas: &mut Replicas, seed: u64) -> Result<(), Error> {
    for (index, initializer) in programs.initializers.iter().enumerate() {
        let Some(initializer) = initializer else { continue };
        let state = &programs.train().states()[index];
        let values = initializer.values(seed, &state.name, &state.ty.dims);
        let values = values.map_err(|problem| Error::setting("initializer", problem))?;
        replicas.write_state(index, bytemuck::cast_slice(&values))?;
    }
    Ok(())
}

/// Writes the start values of all states, zeros too, to replicas that have other values.
///
/// # Errors
/// Of the replicas.
pub(super) fn write_start_values(
    programs: &Programs,
    replicas: &mut Replicas,
    seed: u64,
) -> Result<(), Error> {
    give_start_values(programs, replicas, seed)?;
    let states = programs.train().states().iter().enumerate();
    for (index, state) in states.filter(|(index, _)| programs.initializers[*index].is_none()) {
        replicas.write_state(index, &vec![0; 4 * state.ty.count()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use unisono_gpu::Device;
    use unisono_graph::Run;

    use crate::compile::programs::ProgramId;
    use crate::{Adam, Dense, MeanSquaredError, Model, Outputs, Phase, Sequential, Sgd, Trainer};
    use unisono_data::{Field, FieldSpec, Sample};

    /// A wide step and a deep one share their buffers with each other and with evaluations.
    #[test]
    fn the_estimate_is_what_a_device_holds_for_all_plans() {
        let adapter = unisono_gpu::adapters(&[]).into_iter().next().expect("no adapter");
        let wide = Sequential::new().add(Dense::new(300)).add(Dense::new(1));
        let deep = (0..4).fold(Sequential::new(), |model, _| model.add(Dense::new(90)).add(crate::Tanh));
        let deep = deep.add(Dense::new(1));
        let model = Model::new(move |cx, x| {
            let [wide, deep] =
                [("wide", &wide), ("deep", &deep)].map(|(name, model)| cx.apply(name, model, &x["x"]));
            Outputs::new().with("wide", &wide).with("deep", &deep)
        });
        let phase = |name: &'static str| {
            let phase = Phase::new(name).trains(move |of| of.starts_with(name));
            phase.loss_of(name, MeanSquaredError, 1.0)
        };
        let builder = Trainer::builder(model).phase(phase("wide").optimizer(Sgd::new(0.1)));
        let builder = builder.phase(phase("deep").optimizer(Adam::new(0.1))).global_batch(64).shards(4);
        let sample = ["x", "wide", "deep"]
            .into_iter()
            .fold(Sample::new(), |sample, name| sample.with(name, Field::f32([1], [0.0])));
        let fields: Vec<FieldSpec> = sample.specs();
        let trainer = builder.replicas(1).adapter(&adapter.name).build(&fields).unwrap();
        let programs = &trainer.plan.programs;
        let mut device = Device::open(&adapter).unwrap();
        let (mut own, mut alone) = (0, 0);
        for program in programs.trains().chain([programs.get(ProgramId::Evaluate)]) {
            for size in [16, 3] {
                let run = Run { first: 0, sizes: vec![size; 4], shards: 4 };
                let plan = program.plan(&run, &adapter.target()).unwrap();
                device.load(&plan).unwrap();
                alone = plan.scratch_bytes().max(alone);
                let is_own = |role: &unisono_graph::plan::Role| {
                    use unisono_graph::plan::Role;
                    !matches!(role, Role::Scratch | Role::State(_))
                };
                let bytes: u64 = plan
                    .buffers
                    .iter()
                    .filter(|buffer| is_own(&buffer.role))
                    .map(|buffer| buffer.bytes)
                    .sum();
                own += if size == 16 { bytes } else { 0 };
            }
        }
        let memory = trainer.summary().memory.unwrap();
        let held = device.memory();
        assert_eq!((memory.state, memory.scratch), (held.state, held.scratch + own));
        assert!(held.scratch > alone, "no plan alone takes as much: {held:?}, {alone}");
    }
}
