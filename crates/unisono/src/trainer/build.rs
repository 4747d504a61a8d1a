//! Building a trainer: its settings are checked, the model is compiled, the replicas are started.

use std::sync::Arc;

use unisono_data::FieldSpec;
use unisono_gpu::{Adapter, Kind};
use unisono_graph::{Layout, Precision, Program};
use unisono_replica::{
    Assignment, Audits, Classes, ReplicaError, Replicas, describe_classes, is_one_machine,
};

use crate::compile::advice::advice;
use crate::compile::fields::Fields;
use crate::compile::memory::Budget;
use crate::compile::parts::Parts;
use crate::compile::plan::{Plan, supports};
use crate::compile::programs::{ProgramId, Programs, Traced};
use crate::identity::part::Part;
use crate::observe::watch::Watch;
use crate::run::carries::Carries;
use crate::run::control::RunControl;
use crate::run::identity::RunIdentity;
use crate::run::limits::MAX_GLOBAL_BATCH;
use crate::run::settings::RunSettings;
use crate::run::state::RunState;
use crate::trainer::Trainer;
use crate::trainer::builder::Builder;
use crate::trainer::crew::Crew;
use crate::trainer::identity::DataHash;
use crate::trainer::trust::Trust;
use crate::{Epoch, Error, MemoryEstimate, Scaling};

impl Builder {
    /// Returns how values are laid out in memory: f16 storage is for mixed precision only.
    fn layout(&self) -> Layout {
        Layout { f16: self.layout.f16 && self.parts.precision == Precision::Mixed, ..self.layout }
    }

    /// Checks the settings that no other part of the trainer checks.
    fn check(&self) -> Result<(), Error> {
        if self.replicas == Some(0) {
            return Err(Error::setting("replicas", "a run needs at least one"));
        }
        let (shards, most) = (self.settings.shards, unisono_graph::MAX_SHARDS);
        if !(1..=most).contains(&shards) {
            return Err(Error::setting("shards", format!("{shards} is not in 1..={most}")));
        }
        self.parts.check()?;
        self.loss_scale.check().map_err(|problem| Error::setting("loss scale", problem))
    }

    /// Returns what a training step takes of each device's memory with these global batches, instead of the
    /// builder's own. Opens no device.
    ///
    /// # Errors
    /// As [`Builder::build`]; [`Error::TooLarge`] for the first batch that does not fit.
    pub fn memory(
        &self,
        fields: &[FieldSpec],
        global_batches: &[usize],
    ) -> Result<Vec<MemoryEstimate>, Error> {
        self.check()?;
        let programs = Programs::trace(&self.parts, &Fields::of(&self.parts, fields)?, self.layout())?;
        let budget = self.budget(spread(&self.chosen()?, self.replicas, self.settings.shards));
        let memory = |&batch: &usize| {
            check_batch(batch)?;
            Ok(budget.memory(programs.train(), batch)?.0)
        };
        global_batches.iter().map(memory).collect()
    }

    /// Compiles a program of the trainer for data with these fields. Opens no device and looks for none, so
    /// it works for models that no adapter of this machine could hold.
    ///
    /// # Errors
    /// As [`Builder::build`], as far as devices have no part in them.
    pub fn program(&self, id: ProgramId, fields: &[FieldSpec]) -> Result<Arc<Program>, Error> {
        self.check()?;
        let programs = Programs::trace(&self.parts, &Fields::of(&self.parts, fields)?, self.layout())?;
        Ok(Arc::clone(programs.get(id)))
    }

    /// Selects the adapters that replicas run on. What other adapters are like does not matter.
    fn chosen(&self) -> Result<Vec<Adapter>, Error> {
        let mut chosen = unisono_gpu::select(&self.adapters)?;
        chosen.truncate(self.replicas.unwrap_or(usize::MAX));
        chosen.iter().try_for_each(|adapter| supports(adapter, self.parts.precision))?;
        Ok(chosen)
    }

    fn budget(&self, adapters: Vec<Adapter>) -> Budget {
        let at_once = self.options.shards_at_once.map(|most| (most, "no more were asked for"));
        Budget { adapters, shards: self.settings.shards, at_once, limit: self.memory_limit }
    }

    /// Traces the model for data with these fields (those that it and its losses ask for, `x` and `y` for a
    /// layer, and `w` where samples have weights), opens the devices and gives every parameter its start
    /// value.
    ///
    /// # Errors
    /// Settings that make no sense; shapes that do not fit, naming the layer; no such adapter; a model that
    /// does not fit.
    pub fn build(mut self, fields: &[FieldSpec]) -> Result<Trainer, Error> {
        let mut fields = Fields::of(&self.parts, fields)?;
        self.check()?;
        self.parts.measure_losses();
        let callbacks = self.callbacks.kept(&Epoch::unmeasured(&self.parts.metrics))?;
        let control = RunControl::of(callbacks);
        let programs = Programs::trace(&self.parts, &fields, self.layout())?;
        fields.ids.clone_from(&programs.ids);
        let chosen = self.chosen()?;
        let mixed = !is_one_machine(&chosen);
        if mixed && !self.mixed {
            return Err(Error::Mixture { classes: describe_classes(&chosen) });
        }
        let adapters = spread(&chosen, self.replicas, self.settings.shards);
        let settings = self.settled(adapters.len());
        check_batch(settings.global_batch)?;
        let mut notes = notes(adapters.len(), settings.shards, settings.global_batch, self.per_replica);
        notes.extend(advice(&self.parts, &programs));
        let mut budget = self.budget(adapters);
        let (mut replicas, memory) = self.start(&programs, &mut budget, &settings, mixed)?;
        give_start_values(&programs, &mut replicas, settings.seed)?;
        let mut plan = Plan { parts: self.parts, programs, fields, memory };
        observe_nothing(&mut plan.parts)?;
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
        let lanes = |id| Carries::new(plan.program(id), settings.global_batch);
        let (carries, using) = (lanes(ProgramId::Train), lanes(ProgramId::Predict));
        let is_mixed = settings.precision == Precision::Mixed;
        let loss_scale = is_mixed.then(|| Scaling::new(self.loss_scale));
        let mut identity = identity(&plan, &settings, loss_scale.as_ref());
        self.callbacks.not_covered().for_each(|what| identity.not_covered.push(what));
        identity.of_trainer.clone_from(&identity.not_covered);
        let state = RunState { settings, loss_scale, carries, identity, control, ..RunState::default() };
        let watch = Watch { observers: self.observers, notes, ..Watch::default() };
        let (data_hash, trust) = (DataHash::default(), Trust::default());
        let callbacks = self.callbacks;
        Ok(Trainer {
            plan,
            crew,
            state,
            using,
            saver: None,
            watch,
            callbacks,
            data_hash,
            trust,
            doubted: None,
        })
    }

    /// Returns the run's settings on so many replicas.
    fn settled(&self, replicas: usize) -> RunSettings {
        let Parts { optimizer, precision, .. } = &self.parts;
        RunSettings {
            global_batch: self
                .per_replica
                .map_or(self.settings.global_batch, |samples| samples.saturating_mul(replicas)),
            precision: *precision,
            loss: self.parts.loss_name(),
            optimizer: optimizer.name().into(),
            metrics: self.parts.metric_names(),
            ..self.settings.clone()
        }
    }

    /// Starts the replicas, with fewer shards at once where a driver has no memory for more. Returns them and
    /// what a step takes.
    fn start(
        &self,
        programs: &Programs,
        budget: &mut Budget,
        settings: &RunSettings,
        mixed: bool,
    ) -> Result<(Replicas, MemoryEstimate), Error> {
        let &RunSettings { global_batch, shards, .. } = settings;
        let mut options = self.options.clone().with(|o| (o.global_batch, o.shards) = (global_batch, shards));
        if mixed {
            // An audit would only find that the adapters differ, which is known.
            options = options
                .with(|o| (o.one_updates, o.assignment, o.audits) = (true, Assignment::Even, Audits::Never));
        }
        loop {
            let (memory, shards_at_once) = budget.memory(programs.train(), global_batch)?;
            let options = options.clone().with(|o| o.shards_at_once = shards_at_once);
            let mut replicas = Replicas::start(&budget.adapters, programs.all(), options)?;
            match replicas.prepare(ProgramId::Train.index(), &[global_batch]) {
                Ok(()) => return Ok((replicas, memory)),
                Err(ReplicaError::OutOfMemory { .. }) if budget.fewer(programs.train(), &memory) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns whether a rule audits any step.
fn is_audited(rule: Audits) -> bool {
    match rule {
        Audits::Never | Audits::Every(0) => false,
        Audits::Share(share) => share > 0.0,
        _ => true,
    }
}

/// Refuses a number of samples that no step can have.
fn check_batch(samples: usize) -> Result<(), Error> {
    if (1..=MAX_GLOBAL_BATCH).contains(&samples) {
        return Ok(());
    }
    Err(Error::setting("global batch", format!("{samples} samples a step are not in 1..={MAX_GLOBAL_BATCH}")))
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

/// Returns the run's identity as far as it is known without data.
fn identity(plan: &Plan, settings: &RunSettings, scaling: Option<&Scaling>) -> RunIdentity {
    let Traced { model, start, training } = plan.programs.identity.clone();
    let optimizer = plan.parts.optimizer.settings();
    let mut entries = optimizer.entries().to_vec();
    if !optimizer.not_covered().is_empty() {
        // What is not covered shows in the first step at least.
        let first = plan.parts.optimizer.scalars(0).into_iter();
        entries.extend(first.map(|s| (format!("scalar {:?} of step 0", s.name), s.value.to_string())));
    }
    RunIdentity {
        model,
        start,
        training,
        optimizer: Part::of_settings(entries),
        settings: Part::of_settings(settings.named(scaling)),
        not_covered: optimizer.not_covered().to_vec(),
        of_trainer: optimizer.not_covered().to_vec(),
        ..RunIdentity::default()
    }
}

/// Shows the optimizer an epoch of zeros, so that it can say before the run what it needs and is not
/// measured, and then the empty history.
fn observe_nothing(parts: &mut Parts) -> Result<(), Error> {
    let unknown = |problem| Error::setting("optimizer", problem);
    parts.optimizer.observe(&[Epoch::unmeasured(&parts.metrics)]).map_err(unknown)?;
    parts.optimizer.observe(&[]).map_err(unknown)
}

/// Returns one adapter for each replica.
fn spread(chosen: &[Adapter], replicas: Option<usize>, shards: usize) -> Vec<Adapter> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let own = |a: &Adapter| if a.kind == Kind::Cpu { cores.min(shards) } else { 1 };
    match replicas {
        Some(n) => chosen.iter().cycle().take(n).cloned().collect(),
        None => chosen.iter().flat_map(|a| std::iter::repeat_n(a.clone(), own(a))).collect(),
    }
}

/// Returns what a user should know of the settings.
fn notes(replicas: usize, shards: usize, global_batch: usize, per_replica: Option<usize>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(n) = per_replica {
        notes.push(format!(
            "{n} samples a replica on {replicas} replicas make a global batch of {global_batch}: the answer depends on the \
             number of replicas"
        ));
    }
    let working = shards.min(global_batch);
    if replicas > working {
        notes.push(format!(
            "{} of {replicas} replicas have nothing to do: {working} shards",
            replicas - working
        ));
    } else if !working.is_multiple_of(replicas) {
        let most = working.div_ceil(replicas);
        notes.push(format!(
            "{working} shards do not divide among {replicas} replicas: a step takes as long as {most} shards on one"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_and_idle_replicas_are_noted() {
        assert!(notes(2, 8, 128, None).is_empty());
        assert!(notes(3, 8, 128, None)[0].contains("8 shards do not divide among 3"));
        assert!(notes(10, 8, 128, None)[0].contains("2 of 10 replicas have nothing to do"));
        assert!(notes(2, 8, 64, Some(32))[0].contains("depends on the number of replicas"));
    }
}
