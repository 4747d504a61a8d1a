//! The builder of a trainer: its settings, checked before any work is done.

use std::time::Duration;

use unisono_data::FieldSpec;
use unisono_gpu::{Adapter, Kind};
use unisono_graph::{Layout, Precision};
use unisono_replica::{
    Assignment, Classes, Options, ReplicaError, Replicas, describe_classes, is_one_machine,
};

use crate::compile::fields::Fields;
use crate::compile::memory::Budget;
use crate::compile::plan::{Plan, supports};
use crate::compile::programs::{Parts, ProgramId, Programs};
use crate::observe::observer::Observer;
use crate::observe::watch::Watch;
use crate::run::carries::Carries;
use crate::run::settings::RunSettings;
use crate::run::state::RunState;
use crate::trainer::Trainer;
use crate::trainer::crew::Crew;
use crate::{
    Chain, CrossEntropy, Epoch, Error, Layer, Loss, LossScale, MemoryEstimate, Metric, Scaling, Sgd,
};

/// Builds a [`Trainer`]. Made by [`Trainer::builder`].
pub struct Builder {
    parts: Parts,
    /// The global batch, the shards and the seed; the rest follows from the parts.
    settings: RunSettings,
    /// The samples of a step for each replica, where these decide the global batch.
    per_replica: Option<usize>,
    adapters: Vec<String>,
    replicas: Option<usize>,
    digest_every: u64,
    options: Options,
    layout: Layout,
    mixed: bool,
    loss_scale: LossScale,
    memory_limit: Option<u64>,
    observers: Vec<Box<dyn Observer>>,
}

impl Trainer {
    /// Starts the settings for training `model`.
    pub fn builder(model: impl Layer + 'static) -> Builder {
        Builder::new(Box::new(model))
    }
}

impl Builder {
    fn new(model: Box<dyn Layer>) -> Self {
        let parts = Parts {
            model,
            loss: Box::new(CrossEntropy::new()),
            optimizer: Sgd::new(0.01).into(),
            metrics: vec![],
            precision: Precision::F32,
        };
        Self {
            parts,
            settings: RunSettings::default(),
            per_replica: None,
            adapters: vec![],
            replicas: None,
            digest_every: 100,
            options: Options::default().with(|options| options.audit_every = 1000),
            layout: Layout { f16: true, ..Layout::default() },
            mixed: false,
            loss_scale: LossScale::default(),
            memory_limit: None,
            observers: vec![],
        }
    }

    /// Sets the loss. Default: [`CrossEntropy`].
    pub fn loss(mut self, loss: impl Loss + 'static) -> Self {
        self.parts.loss = Box::new(loss);
        self
    }

    /// Sets the optimizer. Default: [`Sgd`] with a learning rate of 0.01.
    pub fn optimizer(mut self, optimizer: impl Into<Chain>) -> Self {
        self.parts.optimizer = optimizer.into();
        self
    }

    /// Adds a metric. Default: there are none.
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.parts.metrics.push(Box::new(metric));
        self
    }

    /// Sets the precision of products, forward and backward, in evaluation and in prediction. The answer depends on it. Default:
    /// [`Precision::F32`].
    ///
    /// [`Precision::Mixed`] rounds the operands and results of products to f16, adds in f32, and scales the loss, see
    /// [`Builder::loss_scale`]. Parameters, norms, softmax, losses, metrics, statistics and optimizers stay f32.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let data = unisono::data::Loader::new(unisono::data::Memory::labelled([0.0; 64], [64], [0])?);
    /// use unisono::{Dense, LossScale, Precision, Trainer};
    ///
    /// let builder = Trainer::builder(Dense::new(10)).precision(Precision::Mixed).loss_scale(LossScale::Fixed(1024.0));
    /// let mut trainer = builder.build(&data.fields()?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn precision(mut self, precision: Precision) -> Self {
        self.parts.precision = precision;
        self
    }

    /// Sets how the loss is scaled in mixed precision. The answer depends on it. Default: [`LossScale::default`].
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// Sets the number of samples in a step over all replicas together. The answer depends on it. Default: 32
    /// ([`GLOBAL_BATCH`](crate::GLOBAL_BATCH)).
    ///
    /// It replaces the batch size of the loaders that the trainer is given.
    pub fn global_batch(mut self, samples: usize) -> Self {
        (self.settings.global_batch, self.per_replica) = (samples, None);
        self
    }

    /// Sets the number of samples in a step for each replica. **The answer then depends on the number of replicas**, because the
    /// global batch does; [`Trainer::notes`] says so too. Whoever wants the same answer everywhere sets
    /// [`Builder::global_batch`].
    pub fn samples_per_replica(mut self, samples: usize) -> Self {
        self.per_replica = Some(samples);
        self
    }

    /// Sets the number of shards that a global batch is cut into. The answer depends on it, and up to as many replicas share the
    /// work. Default: 8 ([`SHARDS`](crate::SHARDS)).
    pub fn shards(mut self, shards: usize) -> Self {
        self.settings.shards = shards;
        self
    }

    /// Sets the seed of initial weights and dropout. The loader has a seed of its own. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Trains on the adapters whose name holds `name` (see [`unisono_gpu::select`]). It may be called several times. Default: every
    /// hardware adapter, or the software one where there is none.
    pub fn adapter(mut self, name: &str) -> Self {
        self.adapters.push(name.into());
        self
    }

    /// Sets the number of replicas. More replicas than adapters share these. Default: one for each adapter, and on a CPU adapter
    /// one for each core.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Sets the interval in steps at which the replicas' states are compared. They are compared before each checkpoint too. 0
    /// compares them never. Default: 100.
    pub fn digest_every(mut self, steps: u64) -> Self {
        self.digest_every = steps;
        self
    }

    /// Sets which replica computes which shards. Never changes the answer. Default: by measured speed.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.options.assignment = assignment;
        self
    }

    /// Sets the interval in steps at which some shards are run again by another replica and must give the same bytes. This finds a
    /// GPU that computes wrongly, and names it. 0 runs none again. Default: 1000.
    pub fn audit_every(mut self, steps: u64) -> Self {
        self.options.audit_every = steps;
        self
    }

    /// Sets the time after which a replica that does not answer has left. Once its pace is known, a replica has also left that takes
    /// more than twenty times as long as usual, and more than half a minute. Default: five minutes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// Sets the largest number of shards that a replica runs at once. Fewer take less memory and more time, and never change the
    /// answer. Default: all that the replica has, or the largest power of two of them that fits its device's memory.
    ///
    /// A model with batch norm runs all shards of a replica at once all the same. There a fast replica is given no more shards than
    /// fit its device's memory.
    pub fn shards_at_once(mut self, shards: usize) -> Self {
        self.options.shards_at_once = Some(shards);
        self
    }

    /// Sets the largest number of bytes of its device's memory that a replica's state and scratch may take. Never changes the
    /// answer. Default: what the device has, where it says so.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Remembers what each replica does with its time, for [`Trainer::write_trace`]. Default: it is not remembered.
    pub fn timeline(mut self) -> Self {
        self.options.timeline = true;
        self
    }

    /// Allows adapters of different numeric classes, whose numbers may differ in the last bits. Then one replica updates the
    /// parameters and the others receive its bytes, so that replicas never drift apart, and shards stay where they are, so that a
    /// run repeats on the same mixture; but another mixture, the loss of a replica, or one that joins, gives other bits. Default:
    /// such adapters are an error.
    pub fn mixed(mut self, allowed: bool) -> Self {
        self.mixed = allowed;
        self
    }

    /// Sets the size in bytes of a bucket of sums, which travel together between devices. Never changes the answer. Default:
    /// 25 MB.
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.layout.bucket_bytes = bytes;
        self
    }

    /// Sets whether values that f16 holds take two bytes in mixed precision. Never changes the answer, which is what the project's
    /// tests show with it. Default: they do.
    #[cfg(feature = "testing")]
    pub fn f16_storage(mut self, stored: bool) -> Self {
        self.layout.f16 = stored;
        self
    }

    /// Sets whether sums leave a device while it goes on computing. Never changes the answer. Default: they do.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.options.overlap = overlap;
        self
    }

    /// Sets what the names of this run's fault points begin with, for drills with the feature `faults` of `unisono_replica`.
    /// Default: nothing.
    pub fn fault_scope(mut self, scope: &str) -> Self {
        self.options.fault_scope = scope.into();
        self
    }

    /// Adds an observer that is told of every step and epoch, for example [`crate::Progress`]. Default: there are none.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Returns how values are laid out in memory: f16 storage is for mixed precision only.
    fn layout(&self) -> Layout {
        Layout { f16: self.layout.f16 && self.parts.precision == Precision::Mixed, ..self.layout }
    }

    /// Checks the settings that are nobody else's to check.
    fn check(&self) -> Result<(), Error> {
        if self.replicas == Some(0) {
            return Err(Error::setting("replicas", "a run needs at least one"));
        }
        let (shards, most) = (self.settings.shards, unisono_graph::MAX_SHARDS);
        if !(1..=most).contains(&shards) {
            return Err(Error::setting("shards", format!("{shards} is not in 1..={most}")));
        }
        self.loss_scale.check().map_err(|problem| Error::setting("loss scale", problem))
    }

    /// Returns what a training step takes of each device's memory with these global batches, instead of the builder's own. Opens
    /// no device.
    ///
    /// # Errors
    /// As [`Builder::build`]; [`Error::TooLarge`] for the first batch that does not fit.
    pub fn memory(
        &self,
        fields: &[FieldSpec],
        global_batches: &[usize],
    ) -> Result<Vec<MemoryEstimate>, Error> {
        self.check()?;
        let programs = Programs::trace(&self.parts, &Fields::supervised(fields)?, self.layout())?;
        let budget = self.budget(spread(&self.chosen()?, self.replicas, self.settings.shards));
        let memory = |&batch: &usize| Ok(budget.memory(programs.train(), batch)?.0);
        global_batches.iter().map(memory).collect()
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

    /// Traces the model for data with these fields (`x` and `y`, and `w` where samples have weights), opens the devices and
    /// gives every parameter its start value.
    ///
    /// # Errors
    /// Settings that make no sense; shapes that do not fit, naming the layer; no such adapter; a model that does not fit.
    pub fn build(self, fields: &[FieldSpec]) -> Result<Trainer, Error> {
        let mut fields = Fields::supervised(fields)?;
        self.check()?;
        let programs = Programs::trace(&self.parts, &fields, self.layout())?;
        fields.ids.clone_from(&programs.ids);
        let chosen = self.chosen()?;
        let mixed = !is_one_machine(&chosen);
        if mixed && !self.mixed {
            return Err(Error::Mixture { classes: describe_classes(&chosen) });
        }
        let adapters = spread(&chosen, self.replicas, self.settings.shards);
        let settings = self.settled(adapters.len());
        let notes = notes(adapters.len(), settings.shards, settings.global_batch, self.per_replica);
        let mut budget = self.budget(adapters);
        let (mut replicas, memory) = self.start(&programs, &mut budget, &settings, mixed)?;
        give_start_values(&programs, &mut replicas, settings.seed)?;
        let mut plan = Plan { parts: self.parts, programs, fields, memory };
        observe_nothing(&mut plan.parts)?;
        let crew = Crew {
            replicas,
            classes: Classes::new(budget.adapters),
            mixed,
            digest_every: self.digest_every,
            compared: None,
            left_told: 0,
        };
        let lanes = |id| Carries::new(plan.program(id), settings.global_batch);
        let (carries, using) = (lanes(ProgramId::Train), lanes(ProgramId::Predict));
        let is_mixed = settings.precision == Precision::Mixed;
        let loss_scale = is_mixed.then(|| Scaling::new(self.loss_scale));
        let state = RunState { settings, loss_scale, carries, ..RunState::default() };
        let watch = Watch { observers: self.observers, notes, ..Watch::default() };
        Ok(Trainer { plan, crew, state, using, saver: None, watch })
    }

    /// Returns the run's settings on so many replicas.
    fn settled(&self, replicas: usize) -> RunSettings {
        let Parts { loss, optimizer, precision, .. } = &self.parts;
        RunSettings {
            global_batch: self.per_replica.map_or(self.settings.global_batch, |n| n * replicas),
            precision: *precision,
            loss: loss.name().into(),
            optimizer: optimizer.name().into(),
            metrics: self.parts.metric_names(),
            ..self.settings.clone()
        }
    }

    /// Starts the replicas, with fewer shards at once where a driver has no memory for more. Returns them and what a step takes.
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
            options =
                options.with(|o| (o.one_updates, o.assignment, o.audit_every) = (true, Assignment::Even, 0));
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

/// Shows the optimizer an epoch of zeros, so that it can say before the run what it needs and is not measured, and then the empty
/// history.
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
