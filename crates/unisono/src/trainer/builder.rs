//! Settings of a trainer, checked before any work is done.

use std::time::Duration;

use unisono_data::FieldSpec;
use unisono_gpu::{Adapter, Kind};
use unisono_graph::{Layout, Precision};
use unisono_replica::{Assignment, Options, ReplicaError, Replicas, machine, probe};

use crate::compile::memory::Room;
use crate::compile::programs::{Fields, Parts, Programs};
use crate::observe::observer::Observer;
use crate::run::class::Classes;
use crate::trainer::{Settings, TRAIN, Trainer};
use crate::{Chain, CrossEntropy, Error, Layer, Loss, LossScale, Memory, Metric, Scaling, Sgd};

/// How many samples a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchSize {
    Global(usize),
    PerReplica(usize),
}

/// Builds a [`Trainer`]. Made by [`Trainer::builder`].
pub struct Builder {
    parts: Parts,
    batch: BatchSize,
    shards: usize,
    seed: u64,
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

impl Builder {
    pub(crate) fn new(model: Box<dyn Layer>) -> Self {
        let parts = Parts {
            model,
            loss: Box::new(CrossEntropy::new()),
            optimizer: Sgd::new(0.01).into(),
            metrics: vec![],
            precision: Precision::F32,
        };
        Self {
            parts,
            batch: BatchSize::Global(32),
            shards: 8,
            seed: 0,
            adapters: vec![],
            replicas: None,
            digest_every: 100,
            options: Options { audit_every: 1000, ..Options::default() },
            layout: Layout { f16: true, ..Layout::default() },
            mixed: false,
            loss_scale: LossScale::default(),
            memory_limit: None,
            observers: vec![],
        }
    }

    /// The loss; [`CrossEntropy`] unless told.
    pub fn loss(mut self, loss: impl Loss + 'static) -> Self {
        self.parts.loss = Box::new(loss);
        self
    }

    /// The optimizer; [`Sgd`] at 0.01 unless told.
    pub fn optimizer(mut self, optimizer: impl Into<Chain>) -> Self {
        self.parts.optimizer = optimizer.into();
        self
    }

    /// Adds a metric.
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.parts.metrics.push(Box::new(metric));
        self
    }

    /// The precision of products, forward and backward, in evaluation and in prediction; [`Precision::F32`] unless told. The
    /// answer depends on it. [`Precision::Mixed`] rounds the operands and results of products to f16, adds in f32, and scales the
    /// loss, see [`Builder::loss_scale`]; parameters, norms, softmax, losses, metrics, statistics and optimizers stay f32.
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

    /// How the loss is scaled in mixed precision; [`LossScale::default`] unless told. The answer depends on it.
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// Samples in a step over all replicas together; 32 unless told. The answer depends on it.
    pub fn global_batch(mut self, samples: usize) -> Self {
        self.batch = BatchSize::Global(samples);
        self
    }

    /// Samples in a step for each replica. **The answer then depends on the number of replicas**, because the global batch
    /// does; [`Trainer::notes`] says so too. Whoever wants the same answer everywhere sets [`Builder::global_batch`].
    pub fn samples_per_replica(mut self, samples: usize) -> Self {
        self.batch = BatchSize::PerReplica(samples);
        self
    }

    /// Parts that a global batch is cut into; 8 unless told. The answer depends on it; up to as many replicas share the work.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// The seed of initial weights and dropout. The loader has one of its own.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Trains on the adapters whose name holds `name` (see [`unisono_gpu::select`]); may be called several times. Unless
    /// told: every hardware adapter, else the software one.
    pub fn adapter(mut self, name: &str) -> Self {
        self.adapters.push(name.into());
        self
    }

    /// How many replicas; more than there are adapters share them. Unless told: one an adapter, one a core on a CPU adapter.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Compares the replicas' state every so many steps, and before each checkpoint; 100 unless told, 0 for never.
    pub fn digest_every(mut self, steps: u64) -> Self {
        self.digest_every = steps;
        self
    }

    /// Which replica computes which shards; never changes the answer.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.options.assignment = assignment;
        self
    }

    /// Every so many steps some shards are run again by another replica, and must give the same bytes; 1000 unless told, 0 for
    /// never. It finds a GPU that computes wrongly, and names it.
    pub fn audit_every(mut self, steps: u64) -> Self {
        self.options.audit_every = steps;
        self
    }

    /// A replica that does not answer for so long has left; five minutes unless told. Once its pace is known, so has one
    /// that takes more than twenty times as long as usual, and more than half a minute.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// Most shards that a replica runs at once; unless told, all it has, or the largest power of two of them that fits its device's
    /// memory. Fewer take less memory and more time, and never change the answer. A model with batch norm runs all that a replica has
    /// at once all the same; there a fast replica is given no more than fit its device's memory.
    pub fn shards_at_once(mut self, shards: usize) -> Self {
        self.options.shards_at_once = Some(shards);
        self
    }

    /// Most bytes of its device's memory that a replica's state and scratch may take; unless told, what the device has, where it
    /// says so. Never changes the answer.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Remembers what each replica does with its time, for [`Trainer::write_trace`].
    pub fn timeline(mut self) -> Self {
        self.options.timeline = true;
        self
    }

    /// Allows adapters of different numeric classes, whose numbers may differ in the last bits. Then one replica updates the
    /// parameters and the others receive its bytes, so that replicas never drift apart, and shards stay where they are, so that a
    /// run repeats on the same mixture; but another mixture, the loss of a replica, or one that joins, gives other bits.
    pub fn mixed(mut self, allowed: bool) -> Self {
        self.mixed = allowed;
        self
    }

    /// Bytes of sums that travel together between devices; 25 MB unless told. Never changes the answer.
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.layout.bucket_bytes = bytes;
        self
    }

    /// Whether values that f16 holds take two bytes, as they do unless told, in mixed precision. Never changes the answer: for
    /// tests of just that.
    #[doc(hidden)]
    pub fn f16_storage(mut self, stored: bool) -> Self {
        self.layout.f16 = stored;
        self
    }

    /// Whether sums leave a device while it goes on, as they do unless told. Never changes the answer.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.options.overlap = overlap;
        self
    }

    /// What the names of this run's fault points begin with, see `unisono_replica`'s feature `faults`: for drills.
    pub fn fault_scope(mut self, scope: &str) -> Self {
        self.options.fault_scope = scope.into();
        self
    }

    /// Tells `observer` of every step and epoch, for example [`crate::Progress`].
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    fn layout(&self) -> Layout {
        Layout { f16: self.layout.f16 && self.parts.precision == Precision::Mixed, ..self.layout }
    }

    fn check(&self) -> Result<(), Error> {
        if self.replicas == Some(0) {
            return Err(Error::setting("replicas", "a run needs at least one"));
        }
        let most = unisono_graph::MAX_SHARDS;
        if !(1..=most).contains(&self.shards) {
            return Err(Error::setting("shards", format!("{} is not in 1..={most}", self.shards)));
        }
        self.loss_scale.check().map_err(|problem| Error::setting("loss scale", problem))
    }

    /// What a training step takes of each device's memory with these global batches, instead of the builder's own. Opens no
    /// device.
    ///
    /// # Errors
    /// As [`Builder::build`]; [`Error::TooLarge`] for the first batch that does not fit.
    pub fn memory(&self, fields: &[FieldSpec], global_batches: &[usize]) -> Result<Vec<Memory>, Error> {
        self.check()?;
        let programs = Programs::trace(&self.parts, &Fields::of(fields)?, self.layout())?;
        let room = self.room(spread(&self.chosen()?, self.replicas, self.shards));
        let memory = |&batch: &usize| Ok(room.memory(&programs.train, batch)?.0);
        global_batches.iter().map(memory).collect()
    }

    /// The adapters that replicas run on: what others are like does not matter.
    fn chosen(&self) -> Result<Vec<Adapter>, Error> {
        let mut chosen = unisono_gpu::select(&self.adapters)?;
        chosen.truncate(self.replicas.unwrap_or(usize::MAX));
        chosen.iter().try_for_each(|adapter| can(adapter, self.parts.precision))?;
        Ok(chosen)
    }

    fn room(&self, adapters: Vec<Adapter>) -> Room {
        let at_once = self.options.shards_at_once.map(|most| (most, "no more were asked for"));
        Room { adapters, shards: self.shards, at_once, limit: self.memory_limit }
    }

    /// Traces the model for data with these fields (`x` and `y`, and `w` where samples have weights), opens the devices and
    /// gives every parameter its start value.
    ///
    /// # Errors
    /// Settings that make no sense; shapes that do not fit, naming the layer; no such adapter; a model that does not fit.
    pub fn build(self, fields: &[FieldSpec]) -> Result<Trainer, Error> {
        let fields = Fields::of(fields)?;
        self.check()?;
        let programs = Programs::trace(&self.parts, &fields, self.layout())?;
        let fields = Fields { ids: programs.ids.clone(), ..fields };
        let chosen = self.chosen()?;
        let adapters = spread(&chosen, self.replicas, self.shards);
        let (global_batch, per_replica) = match self.batch {
            BatchSize::Global(n) => (n, None),
            BatchSize::PerReplica(n) => (n * adapters.len(), Some(n)),
        };
        let notes = notes(adapters.len(), self.shards, global_batch, per_replica);
        let mut room = self.room(adapters);
        let mut options = Options { global_batch, shards: self.shards, ..self.options };
        if !of_one_class(&chosen) {
            if !self.mixed {
                return Err(Error::Mixture { classes: classes(&chosen) });
            }
            // Audits would find what everybody knows.
            options = Options { one_updates: true, assignment: Assignment::Even, audit_every: 0, ..options };
        }
        let graphs = vec![programs.train.clone(), programs.evaluate.clone(), programs.predict.clone()];
        let (replicas, memory) = loop {
            let (memory, shards_at_once) = room.memory(&programs.train, global_batch)?;
            let options = Options { shards_at_once, ..options.clone() };
            let mut replicas = Replicas::start(&room.adapters, graphs.clone(), options)?;
            match replicas.prepare(TRAIN, &[global_batch]) {
                Ok(()) => break (replicas, memory),
                Err(ReplicaError::OutOfMemory { .. }) if room.fewer(&programs.train, &memory) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let settings = Settings {
            global_batch,
            shards: self.shards,
            seed: self.seed,
            digest_every: self.digest_every,
            scaling: (self.parts.precision == Precision::Mixed).then(|| Scaling::new(self.loss_scale)),
            mixed: !of_one_class(&chosen),
        };
        let mut trainer =
            Trainer::start(self.parts, programs, fields, replicas, settings, notes, self.observers)?;
        (trainer.memory, trainer.classes) = (Some(memory), Classes::new(room.adapters));
        Ok(trainer)
    }
}

/// Whether an adapter computes in a precision.
pub(crate) fn can(adapter: &Adapter, precision: Precision) -> Result<(), Error> {
    if precision == Precision::Mixed && !adapter.features.f16 {
        return Err(Error::NoF16 { adapter: adapter.label() });
    }
    Ok(())
}

/// One adapter for each replica.
fn spread(chosen: &[Adapter], replicas: Option<usize>, shards: usize) -> Vec<Adapter> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let own = |a: &Adapter| if a.kind == Kind::Cpu { cores.min(shards) } else { 1 };
    match replicas {
        Some(n) => chosen.iter().cycle().take(n).cloned().collect(),
        None => chosen.iter().flat_map(|a| std::iter::repeat_n(a.clone(), own(a))).collect(),
    }
}

/// Whether adapters may give the same bits: those of different backends, devices or drivers never do for sure.
pub(crate) fn of_one_class(chosen: &[Adapter]) -> bool {
    chosen.iter().all(|adapter| machine(adapter) == machine(&chosen[0]))
}

/// Each adapter with its class.
pub(crate) fn classes(chosen: &[Adapter]) -> Vec<String> {
    let class = |adapter: &Adapter| match probe(adapter) {
        Ok(class) => format!("{} is of class {class}", adapter.label()),
        Err(error) => format!("{} cannot be probed ({error})", adapter.label()),
    };
    chosen.iter().map(class).collect()
}

/// What a user should know of the settings.
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
