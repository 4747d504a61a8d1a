//! Building a trainer: its settings are checked, the model is compiled, the replicas are started
//! (`start.rs`).

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use unisono_data::FieldSpec;
use unisono_gpu::{Adapter, Backend, Kind};
use unisono_graph::{Layout, MAX_SHARDS, Program, StateKind};
use unisono_replica::{AuditReport, Audits, describe_classes, is_one_class};

use crate::compile::feed::InputMemory;
use crate::compile::fields::Fields;
use crate::compile::memory::{Budget, kept_by_others};
use crate::compile::parts::Parts;
use crate::compile::plan::{Plan, check_units, in_precision, selected, unit_notes};
use crate::compile::programs::{ProgramId, Programs, Traced};
use crate::error::caught;
use crate::identity::part::Part;
use crate::observe::monitor::Monitor;
use crate::run::carries::Carries;
use crate::run::control::RunControl;
use crate::run::identity::RunIdentity;
use crate::run::limits::MAX_GLOBAL_BATCH;
use crate::run::settings::RunSettings;
use crate::run::state::RunState;
use crate::trainer::Trainer;
use crate::trainer::agree::{agree, compare_start, replicas_of_ranks};
use crate::trainer::builder::Builder;
use crate::trainer::export::check_attached;
use crate::trainer::first_notes::{slow_fma_note, unoptimized_note};
use crate::trainer::held_out::KnownData;
use crate::trainer::identity::DataHash;
use crate::trainer::lbfgs::check_all_samples;
use crate::trainer::start::{is_audited, largest_step};
use crate::trainer::trust::Trust;
use crate::{Epoch, Error, MemoryEstimate, Reduction, Scaling};

impl Builder {
    /// Returns how values are laid out in memory: f16 storage is for mixed precision only.
    fn layout(&self) -> Layout {
        Layout { f16: self.layout.f16 && self.parts.precision.is_mixed(), ..self.layout }
    }

    /// Checks the settings that no other part of the trainer checks.
    fn check(&self) -> Result<(), Error> {
        if self.replicas == Some(0) {
            return Err(Error::setting("replicas", "a run needs at least one"));
        }
        check_shards(self.settings.shards)?;
        if let Some(Audits::Share(share)) = self.audits
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Error::setting("audits", format!("the share of {share} is not in 0..=1")));
        }
        if self.options.shards_at_once == Some(0) {
            return Err(Error::setting("shards at once", "0 shards compute nothing: the least is 1"));
        }
        if self.options.steps_in_flight.is_some_and(|steps| !(1..=2).contains(&steps)) {
            return Err(Error::setting("steps in flight", "a run has 1 or 2 steps in flight"));
        }
        if self.options.deadline.is_zero() {
            return Err(Error::setting("deadline", "no replica answers within no time"));
        }
        self.check_accumulation()?;
        self.parts.check()?;
        check_attached(&self.parts)?;
        self.loss_scale.check().map_err(|problem| Error::setting("loss scale", problem))
    }

    /// Traces and compiles all programs.
    fn traced(&self, fields: &[FieldSpec]) -> Result<Programs, Error> {
        let fields = Fields::of(&self.parts, fields)?;
        self.check()?;
        Programs::trace(&self.parts, &fields, self.layout())
    }

    /// Returns the number of the model's parameters (Keras's `count_params`, of the weights that are
    /// trained), without statistics and optimizer state. Opens no device.
    ///
    /// # Errors
    /// Settings that make no sense; shapes that do not fit, naming the layer.
    pub fn count_parameters(&self, fields: &[FieldSpec]) -> Result<u64, Error> {
        let programs = self.traced(fields)?;
        let states = programs.train().states().iter();
        let parameters = states.filter(|state| state.kind == StateKind::Parameter);
        Ok(parameters.map(|state| state.ty.count() as u64).sum())
    }

    /// Returns how much memory of each device a training step takes, for each of these global batches instead
    /// of the builder's own. Opens no device.
    ///
    /// # Errors
    /// As [`Builder::build`]; [`Error::TooLarge`] for the first batch that does not fit.
    pub fn memory(
        &self,
        fields: &[FieldSpec],
        global_batches: &[usize],
    ) -> Result<Vec<MemoryEstimate>, Error> {
        let programs = self.traced(fields)?;
        let adapters = self.spread(&self.chosen()?);
        let replicas = [adapters.len()];
        let budget = self.budget(adapters, &replicas, &programs);
        let memory = |&batch: &usize| {
            check_batch("global batch", batch)?;
            Ok(largest_step(&programs, &budget, batch)?.0)
        };
        global_batches.iter().map(memory).collect()
    }

    /// Compiles a program of the trainer for data with these fields. Opens no device and looks for none, so
    /// it works for models that no adapter of this machine could hold.
    ///
    /// # Errors
    /// As [`Builder::build`], except those of devices.
    pub fn program(&self, id: ProgramId, fields: &[FieldSpec]) -> Result<Arc<Program>, Error> {
        let programs = self.traced(fields)?;
        Ok(Arc::clone(programs.get(id)))
    }

    /// Selects the adapters that replicas run on. What other adapters are like does not matter.
    fn chosen(&self) -> Result<Vec<Adapter>, Error> {
        self.chosen_of(selected(&self.adapters, self.arithmetic)?)
    }

    /// Returns those of the selected adapters that replicas run on.
    fn chosen_of(&self, mut chosen: Vec<Adapter>) -> Result<Vec<Adapter>, Error> {
        let (place, here) = self.cluster.local();
        if here > 1 && chosen.len() >= here && chosen.iter().all(|adapter| adapter.kind != Kind::Cpu) {
            chosen = chosen.into_iter().skip(place).step_by(here).collect();
        }
        chosen.truncate(self.replicas.unwrap_or(usize::MAX));
        let chosen: Result<Vec<Adapter>, Error> =
            chosen.iter().map(|adapter| in_precision(adapter, self.parts.precision)).collect();
        let chosen = chosen?;
        check_units(&chosen)?;
        Ok(chosen)
    }

    /// Returns one adapter for each replica.
    fn spread(&self, chosen: &[Adapter]) -> Vec<Adapter> {
        spread(chosen, self.replicas, self.settings.shards, self.cluster.local().1)
    }

    /// Returns what plans may take, given the number of replicas of each machine.
    fn budget(&self, adapters: Vec<Adapter>, replicas: &[usize], programs: &Programs) -> Budget {
        let accumulated = self
            .accumulated
            .map(|parts| self.settings.shards.div_ceil(adapters.len().max(1)).div_ceil(parts));
        let asked = self.options.shards_at_once.into_iter().chain(accumulated).min();
        let at_once = asked.map(|most| (most, "no more were asked for"));
        let kept_by_others =
            self.options.owners.map_or(0, |copies| kept_by_others(&programs.all(), replicas, copies));
        let (shards, limit) = (self.settings.shards, self.memory_limit);
        let states = programs.train().states().iter();
        let audits = match self.settled_audits().is_ok_and(is_audited) {
            true => states.map(|state| 4 * state.ty.count() as u64).sum(),
            false => 0,
        };
        let programs = programs.trains().chain([programs.get(ProgramId::Evaluate)]).cloned().collect();
        Budget { adapters, shards, at_once, limit, kept_by_others, audits, programs }
    }

    /// Makes the trainer: traces the model for data with these fields, opens the devices and gives every
    /// parameter its initial value. The model and its losses decide which fields they need: `x` and `y` for a
    /// layer, and `w` if samples have weights.
    ///
    /// # Errors
    /// Settings that make no sense; shapes that do not fit, naming the layer; no such adapter; a model that
    /// does not fit.
    pub fn build(self, fields: &[FieldSpec]) -> Result<Trainer, Error> {
        let cluster = self.cluster.clone();
        agree(&cluster, self.build_here(fields))
    }

    /// Builds the trainer of this machine.
    fn build_here(mut self, there: &[FieldSpec]) -> Result<Trainer, Error> {
        let mut fields = Fields::of(&self.parts, there)?;
        self.check()?;
        let control =
            RunControl::of(self.callbacks.kept(&Epoch::unmeasured(&self.parts.objective().metrics))?);
        let layout = self.layout();
        // To load drivers takes as long as to trace and compile a model.
        let find = || selected(&self.adapters, self.arithmetic);
        let (programs, selected) = both(|| Programs::trace(&self.parts, &fields, layout), find);
        let programs = programs?;
        fields.ids.clone_from(&programs.ids);
        let chosen = self.chosen_of(selected??)?;
        let mixed = self.is_mixture(&chosen)?;
        let adapters = self.spread(&chosen);
        let weights = replicas_of_ranks(&self.cluster, adapters.len())?;
        let settings = self.settled(weights.iter().sum());
        check_batch("global batch", settings.global_batch)?;
        if self.most_lengths == 0 {
            return Err(Error::setting("lengths", "one length of samples at least must be ready"));
        }
        let is_mixed = settings.precision.is_mixed();
        let loss_scale = is_mixed.then(|| Scaling::new(self.loss_scale));
        let mut notes = self.notes(&programs, &settings, weights.iter().sum());
        notes.extend(unoptimized_note(&chosen).into_iter().chain(slow_fma_note(&chosen)));
        notes.extend(unit_notes(&chosen));
        notes.extend(fields.unread_note(there));
        notes.extend(self.callbacks.wrong_ways(&self.parts.objective().metrics)?);
        let budget = self.budget(adapters, &weights, &programs);
        self.check_owners(mixed)?;
        check_all_samples(&self.parts, &programs, self.options.owners.is_some())?;
        let mut identity = identity(&self.parts, &programs, &settings, loss_scale.as_ref());
        compare_start(&self.cluster, &settings, &identity, &budget.adapters)?;
        let (mut replica_set, memory) = self.replica_set(&programs, budget, &settings, mixed, &weights)?;
        self.start_witness(&mut replica_set, &chosen)?;
        let Self { parts, callbacks, observers, cluster, most_lengths, .. } = self;
        let mut plan = Plan {
            parts,
            programs,
            fields,
            layout,
            lengths: Vec::new(),
            most_lengths,
            dropped: AuditReport::default(),
            memory,
            inputs: InputMemory::default(),
        };
        observe_nothing(&mut plan.parts)?;
        let lanes = |id| Carries::new(plan.program(id), settings.global_batch);
        let (carries, using) = (lanes(ProgramId::Train), lanes(ProgramId::Predict));
        identity.not_covered.extend(callbacks.not_covered.iter().cloned());
        identity.of_trainer.clone_from(&identity.not_covered);
        Ok(Trainer {
            plan,
            replica_set,
            state: RunState { settings, loss_scale, carries, identity, control, ..RunState::default() },
            using,
            saver: None,
            monitor: Monitor::new(observers, notes, !cluster.is_first())?,
            callbacks,
            data_hash: DataHash::default(),
            trust: Trust::New,
            doubted: None,
            known_data: KnownData::default(),
        })
    }

    /// Returns whether the adapters are of several numeric classes.
    ///
    /// # Errors
    /// They are, and the run does not allow it.
    fn is_mixture(&self, chosen: &[Adapter]) -> Result<bool, Error> {
        let mixed = !is_one_class(chosen)?;
        if mixed && !self.cluster.is_alone() {
            return Err(Error::setting("mixed", "a run on several machines takes one numeric class"));
        }
        if mixed && !self.mixed {
            return Err(Error::Mixture { classes: describe_classes(chosen) });
        }
        Ok(mixed)
    }

    /// Returns the run's settings on so many replicas.
    fn settled(&self, replicas: usize) -> RunSettings {
        let Parts { precision, .. } = &self.parts;
        RunSettings {
            global_batch: self
                .per_replica
                .map_or(self.settings.global_batch, |samples| samples.saturating_mul(replicas)),
            precision: *precision,
            loss: self.parts.loss_name(),
            optimizer: self.parts.optimizer_name(),
            metrics: self.parts.metric_names(),
            ..self.settings.clone()
        }
    }
}

/// Returns the results of two functions. The second one, which looks for adapters, runs on a thread of its
/// own, if there can be one. A driver may panic there: that is an error.
fn both<A, B: Send>(here: impl FnOnce() -> A, there: impl Fn() -> B + Sync) -> (A, Result<B, Error>) {
    let there = || {
        let panicked = |message| Error::Panic { what: "the search for adapters".into(), message };
        caught(&there).map_err(panicked)
    };
    thread::scope(|scope| {
        let other = thread::Builder::new().name("unisono-adapters".into()).spawn_scoped(scope, there);
        let here = here();
        let there = match other.map(ScopedJoinHandle::join) {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => there(),
        };
        (here, there)
    })
}

/// Refuses a number of shards that no run can have.
pub(crate) fn check_shards(shards: usize) -> Result<(), Error> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(());
    }
    Err(Error::setting("shards", format!("{shards} is not in 1..={MAX_SHARDS}")))
}

/// Refuses a number of samples that no step can have, by the name of the setting.
pub(crate) fn check_batch(setting: &'static str, samples: usize) -> Result<(), Error> {
    if (1..=MAX_GLOBAL_BATCH).contains(&samples) {
        return Ok(());
    }
    Err(Error::setting(setting, format!("{samples} samples a step are not in 1..={MAX_GLOBAL_BATCH}")))
}

/// Returns the run's identity as far as it is known without data.
fn identity(
    parts: &Parts,
    programs: &Programs,
    settings: &RunSettings,
    scaling: Option<&Scaling>,
) -> RunIdentity {
    let Traced { model, start, training } = programs.identity.clone();
    let optimizer = parts.optimizer_settings();
    let mut entries = optimizer.entries().to_vec();
    if !optimizer.not_covered().is_empty() {
        // What is not covered shows in the first step at least.
        let phases = (0..parts.phases.len().max(1)).map(Some);
        let first = phases.flat_map(|phase| parts.optimizer_of(phase).scalars(0));
        entries.extend(first.map(|s| (format!("scalar {:?} of step 0", s.name), s.value.to_string())));
    }
    let mut named = settings.named(scaling);
    let mut not_covered = optimizer.not_covered().to_vec();
    // Of the losses that are measured, the settings are in the graph.
    for metric in &parts.objective().metrics[parts.objective().measured_losses..] {
        match metric.reduction().map(Reduction::settings) {
            Some(Some(settings)) => named.push((format!("metric {:?}", metric.name()), settings)),
            Some(None) => not_covered.push(format!("the reduction of the metric {:?}", metric.name())),
            None => {}
        }
    }
    RunIdentity {
        model,
        start,
        training,
        optimizer: Part::of_settings(entries),
        settings: Part::of_settings(named),
        of_trainer: not_covered.clone(),
        not_covered,
        ..RunIdentity::default()
    }
}

/// Shows the optimizer an epoch of zeros, so that it can say before the run what it needs and is not
/// measured, and then the empty history.
fn observe_nothing(parts: &mut Parts) -> Result<(), Error> {
    let unknown = |problem| Error::setting("optimizer", problem);
    let unmeasured = [Epoch::unmeasured(&parts.objective().metrics)];
    parts.observe_each(|_| &unmeasured).map_err(unknown)?;
    parts.observe(&[]).map_err(unknown)
}

/// Returns one adapter for each replica. So many ranks share the cores of this machine.
pub(crate) fn spread(
    chosen: &[Adapter],
    replicas: Option<usize>,
    shards: usize,
    ranks: usize,
) -> Vec<Adapter> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = (cores / ranks.max(1)).max(1);
    // The CPU computes on all cores, and so does the software adapter of DX12, which cannot be asked
    // for less.
    let computes_on_one =
        |a: &Adapter| a.kind == Kind::Cpu && !matches!(a.backend, Backend::Dx12 | Backend::Cpu);
    let own = |a: &Adapter| if computes_on_one(a) { cores.min(shards) } else { 1 };
    match replicas {
        Some(n) => chosen.iter().cycle().take(n).cloned().collect(),
        None => chosen.iter().flat_map(|a| std::iter::repeat_n(a.clone(), own(a))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_software_adapter_that_computes_on_all_cores_has_one_replica() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let software = |backend| Adapter { kind: Kind::Cpu, backend, ..adapter.clone() };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let replicas = |backend| spread(&[software(backend)], None, cores, 1).len();
        assert_eq!([Backend::Vulkan, Backend::Dx12].map(replicas), [cores, 1]);
    }
}
