//! The builder of a trainer: its settings.

use std::sync::Arc;
use std::time::Duration;

use unisono_gpu::Arithmetic;
use unisono_graph::{Layout, Precision};
use unisono_replica::{Assignment, Audits, Options};
use unisono_world::World;

use crate::compile::parts::{LossOn, Named, On, Parts};
use crate::model::Model;
use crate::observe::observer::Observer;
use crate::observe::watch::Watched;
use crate::run::settings::{LENGTHS, RunSettings};
use crate::trainer::Trainer;
use crate::trainer::callback::{Callback, Callbacks};
use crate::trainer::witness::Witness;
use crate::{Chain, Loss, LossScale, Metric};

/// The default share of the time that audits take.
pub(super) const AUDIT_SHARE: f64 = 0.015;

/// Builds a [`Trainer`]. Made by [`Trainer::builder`].
#[doc(alias = "compile")]
pub struct Builder {
    pub(super) parts: Parts,
    /// Whether a loss was added for an output by name.
    has_losses: bool,
    /// Whether a loss was set at all.
    pub(super) is_loss_set: bool,
    /// The global batch, the shards and the seed; the rest follows from the parts.
    pub(super) settings: RunSettings,
    /// The samples of a step for each replica, where these decide the global batch.
    pub(super) per_replica: Option<usize>,
    pub(super) adapters: Vec<String>,
    pub(super) arithmetic: Option<Arithmetic>,
    pub(super) replicas: Option<usize>,
    pub(super) digest_every: u64,
    pub(super) options: Options,
    /// How often steps are audited. `None`: nothing was set.
    pub(super) audits: Option<Audits>,
    pub(super) layout: Layout,
    pub(super) mixed: bool,
    pub(super) loss_scale: LossScale,
    pub(super) memory_limit: Option<u64>,
    /// The number of parts of a step that a replica computes one after another, if that was set.
    pub(super) accumulated: Option<usize>,
    /// The most lengths of samples, beside the longest, whose programs are kept.
    pub(super) most_lengths: usize,
    pub(super) observers: Vec<Watched>,
    pub(super) callbacks: Callbacks,
    pub(super) world: World,
    pub(super) witness: Option<Witness>,
}

impl Trainer {
    /// Starts the settings for training a model: a [`Layer`](crate::Layer), which makes the output of the
    /// field `x` that is compared with the field `y`, or a [`Model`] of other fields and outputs.
    pub fn builder(model: impl Into<Model>) -> Builder {
        Builder::new(model.into())
    }
}

impl Builder {
    fn new(model: Model) -> Self {
        Self {
            parts: Parts::new(model),
            has_losses: false,
            is_loss_set: false,
            settings: RunSettings::default(),
            per_replica: None,
            adapters: vec![],
            arithmetic: None,
            replicas: None,
            digest_every: 100,
            options: Options::default(),
            audits: None,
            layout: Layout { f16: true, ..Layout::default() },
            mixed: false,
            loss_scale: LossScale::default(),
            memory_limit: None,
            accumulated: None,
            most_lengths: LENGTHS,
            observers: vec![],
            callbacks: Callbacks::default(),
            world: World::alone(),
            witness: None,
        }
    }

    /// Sets the loss of a model with one output, which is a [`Layer`](crate::Layer). Default:
    /// [`CrossEntropy`](crate::CrossEntropy).
    pub fn loss(mut self, loss: impl Loss + 'static) -> Self {
        (self.parts.losses, self.has_losses) = (vec![LossOn::only(loss)], false);
        self.is_loss_set = true;
        self.parts.settle_losses(true);
        self
    }

    /// Adds a loss of the model's output of this name, compared with the field of the same name. It counts
    /// `weight` times in the sum that is minimised (Keras's `loss_weights`). With several losses each is in
    /// the history too, as the metric `NAME loss`, unweighted. Of several losses of one output the metrics
    /// are `NAME as FIELD loss`, and where these are equal too, have the losses' names behind them.
    ///
    /// ```
    /// use unisono::{
    ///     BinaryAccuracy, BinaryCrossEntropyWithLogits, Dense, MeanSquaredError, Model, Outputs, Trainer,
    /// };
    ///
    /// let model = Model::new(|cx, x| {
    ///     let [price, sold] = ["price", "sold"].map(|name| cx.apply(name, &Dense::new(1), &x["house"]));
    ///     Outputs::new().with("price", &price).with("sold", &sold)
    /// });
    /// let builder = Trainer::builder(model)
    ///     .loss_of("price", MeanSquaredError, 1.0)
    ///     .loss_of("sold", BinaryCrossEntropyWithLogits, 0.3)
    ///     .metric_of("sold", BinaryAccuracy);
    /// ```
    #[doc(alias = "loss_weights")]
    pub fn loss_of(self, output: &str, loss: impl Loss + 'static, weight: f32) -> Self {
        self.loss_between(output, output, loss, weight)
    }

    /// Adds a loss as [`Builder::loss_of`] does, compared with a field of another name.
    pub fn loss_between(
        mut self,
        output: &str,
        target: &str,
        loss: impl Loss + 'static,
        weight: f32,
    ) -> Self {
        self.is_loss_set = true;
        if !std::mem::replace(&mut self.has_losses, true) {
            self.parts.losses.clear();
        }
        let on = On { output: output.into(), target: target.into() };
        self.parts.losses.push(LossOn { on, loss: Arc::new(loss), weight });
        self.parts.settle_losses(true);
        self
    }

    /// Sets the optimizer. Default: [`Sgd`](crate::Sgd) with a learning rate of 0.01.
    pub fn optimizer(mut self, optimizer: impl Into<Chain>) -> Self {
        self.parts.optimizer = optimizer.into();
        self
    }

    /// Adds a metric of a model with one output, which is a [`Layer`](crate::Layer). Default: there are none.
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.parts.measure(On::only(), Box::new(metric));
        self
    }

    /// Adds a metric of the model's output of this name, compared with the field of the same name. In the
    /// history it is called after both, such as `sold accuracy`.
    pub fn metric_of(self, output: &str, metric: impl Metric + 'static) -> Self {
        self.metric_between(output, output, metric)
    }

    /// Adds a metric as [`Builder::metric_of`] does, compared with a field of another name.
    pub fn metric_between(mut self, output: &str, target: &str, metric: impl Metric + 'static) -> Self {
        let on = On { output: output.into(), target: target.into() };
        let name = format!("{output} {}", metric.name());
        self.parts.measure(on, Box::new(Named { name, metric }));
        self
    }

    /// Sets the precision of products, forward and backward, in evaluation and in prediction. The answer
    /// depends on it. Default: [`Precision::F32`].
    ///
    /// [`Precision::Mixed`] rounds the operands and results of products to f16, adds in f32, and scales the
    /// loss, see [`Builder::loss_scale`]. Parameters, norms, softmax, losses, metrics, statistics and
    /// optimizers stay f32.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let data = unisono::data::Loader::new(unisono::data::Memory::labelled([0.0; 64], [64], [0])?);
    /// use unisono::{Dense, LossScale, Precision, Trainer};
    ///
    /// let builder = Trainer::builder(Dense::new(10)).precision(Precision::Mixed);
    /// let mut trainer = builder.loss_scale(LossScale::Fixed(1024.0)).build(&data.fields()?)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("autocast", "mixed_precision"))]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.parts.precision = precision;
        self
    }

    /// Sets how the loss is scaled in mixed precision. The answer depends on it. Default:
    /// [`LossScale::default`].
    #[doc(alias("GradScaler", "LossScaleOptimizer"))]
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// Sets the number of samples in a step over all replicas together. The answer depends on it. Default: 32
    /// ([`GLOBAL_BATCH`](crate::GLOBAL_BATCH)).
    ///
    /// It replaces the batch size of the loaders that the trainer is given.
    #[doc(alias = "batch_size")]
    pub fn global_batch(mut self, samples: usize) -> Self {
        (self.settings.global_batch, self.per_replica) = (samples, None);
        self
    }

    /// Sets the number of samples in a step for each replica. **The answer then depends on the number of
    /// replicas**, because the global batch does; [`Trainer::notes`] says so too. Whoever wants the same
    /// answer everywhere sets [`Builder::global_batch`].
    pub fn samples_per_replica(mut self, samples: usize) -> Self {
        self.per_replica = Some(samples);
        self
    }

    /// Sets the number of shards that a global batch is cut into. The answer depends on it, and up to as many
    /// replicas share the work. Default: 8 ([`SHARDS`](crate::SHARDS)).
    pub fn shards(mut self, shards: usize) -> Self {
        self.settings.shards = shards;
        self
    }

    /// Sets the seed of initial weights and dropout. The loader has a seed of its own. Default: 0.
    #[doc(alias("manual_seed", "set_random_seed"))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Trains on the adapters whose label ([`unisono_gpu::Adapter::label`]) holds `name`, or that are of this
    /// backend: `cpu` is the processor. See [`unisono_gpu::select`]. Of GPUs with the same name the second
    /// one has `#2` in its label. It may be called several times. Default: every GPU, or the processor where
    /// there is none.
    pub fn adapter(mut self, name: &str) -> Self {
        self.adapters.push(name.into());
        self
    }

    /// Computes on the CPU in this arithmetic: in that of a GPU, so that the CPU repeats the GPU's run to the
    /// bit, or in `split`, which is that of software drivers and of runs of version 0.1. The CPU must be
    /// among the adapters ([`unisono_gpu::select_in`]). Default: [`Arithmetic::default`], `fused`.
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = Some(arithmetic);
        self
    }

    /// Sets the number of replicas. More replicas than adapters share these. Default: one for each GPU, and
    /// one on the processor, which computes on all cores. On a software driver, where one is asked for, it is
    /// one for each core, up to the number of shards ([`Builder::shards`]): with more cores than shards, the
    /// other cores have nothing to do. (That of DX12 has one, because it computes on all cores by itself.)
    #[doc(alias("DistributedDataParallel", "MirroredStrategy"))]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Sets the interval in steps at which the replicas' states are compared. They are compared before each
    /// checkpoint too. 0 compares them never. Default: 100.
    pub fn digest_every(mut self, steps: u64) -> Self {
        self.digest_every = steps;
        self
    }

    /// Sets which replica computes which shards. Never changes the answer. Default: by measured speed.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.options.assignment = assignment;
        self
    }

    /// Sets how often a step is audited: made again by other replicas, which must give the same bytes. This
    /// finds a GPU that computes wrongly; the run then goes back to the last state that is trusted, without
    /// it. The last step of a fit is audited too. The bytes of the state that is trusted are kept in the
    /// host's memory ([`MemoryEstimate::audits`](crate::MemoryEstimate::audits)). Default: audits aim at 1.5
    /// % of the time ([`Audits::Share`]).
    ///
    /// A run on a mixture of numeric classes ([`Builder::mixed`]) audits nothing, nor does one on several
    /// machines, which refuses audits that are set here.
    pub fn audits(mut self, audits: Audits) -> Self {
        self.audits = Some(audits);
        self
    }

    /// Sets the machines of the run: all of them train as one, with the same bytes as one. Each process
    /// builds the same trainer and calls the same functions in the same order. Observers are called on the
    /// first rank, those with [`Observer::on_all_ranks`](crate::Observer::on_all_ranks) on all. Callbacks are
    /// called on all ranks. Default: [`World::alone`].
    pub fn world(mut self, world: World) -> Self {
        self.world = world;
        self
    }

    /// Sets the number of steps from one audit to the next, on average. 0 audits none. See
    /// [`Builder::audits`].
    pub fn audit_every(self, steps: u64) -> Self {
        self.audits(Audits::Every(steps))
    }

    /// Sets the time after which a replica that does not answer has left. Once its pace is known, a replica
    /// has also left that takes more than twenty times as long as usual, and more than half a minute. It has
    /// five minutes more where it has yet to compile kernels, such as in the first step. Default: five
    /// minutes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// Sets the largest number of shards that a replica runs at once. Fewer take less memory and more time,
    /// and never change the answer. Default: all that the replica has, or the largest power of two of them
    /// that fits its device's memory.
    ///
    /// A model with batch norm always runs all shards of a replica at once. There a fast replica is given no
    /// more shards than fit its device's memory.
    pub fn shards_at_once(mut self, shards: usize) -> Self {
        self.options.shards_at_once = Some(shards);
        self
    }

    /// Sets the largest number of steps in flight: 2 has a single replica submit a step while its device
    /// computes the one before it, which takes staging memory for a second batch. 1 has each step end before
    /// the next one begins, as several replicas always do. Never changes the answer. Default: 2 on a GPU, 1
    /// on a CPU adapter, whose kernels share the cores with the host.
    pub fn steps_in_flight(mut self, steps: usize) -> Self {
        self.options.steps_in_flight = Some(steps);
        self
    }

    /// Sets the largest number of bytes of its device's memory that a replica's state and scratch may take.
    /// Never changes the answer. Default: what the device has, where it says so.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Remembers what each replica does with its time, for [`Trainer::write_trace`]: at most 500,000
    /// stretches, in some 32 MB. In a longer run the steps of the older half are summed up, many in one.
    /// Default: it is not remembered.
    pub fn timeline(mut self) -> Self {
        self.options.timeline = true;
        self
    }

    /// Allows adapters of different numeric classes, whose numbers may differ in the last bits. Then one
    /// replica updates the parameters and the others receive its bytes, so that replicas never drift apart,
    /// and shards stay where they are, so that a run repeats on the same mixture; but another mixture, the
    /// loss of a replica, or one that joins, gives other bits. Default: such adapters are an error.
    pub fn mixed(mut self, allowed: bool) -> Self {
        self.mixed = allowed;
        self
    }

    /// Shares what the optimizer keeps out among the replicas of all machines: each tensor has so many owners
    /// (1, or 2 so that the loss of one replica or machine loses nothing), which update the parameter and
    /// give it to the others. A replica then needs the memory of all parameters, but only of a part of what
    /// the optimizer keeps; a step takes longer, since new parameters travel. Never changes the answer.
    /// Default: each replica keeps all of it.
    pub fn shard_optimizer(mut self, owners: usize) -> Self {
        self.options.owners = Some(owners.max(1));
        self.layout.states_apart = true;
        self
    }

    /// Sets the size in bytes of a bucket of sums, which travel together between devices. Never changes the
    /// answer. Default: 25 MB.
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.layout.bucket_bytes = bytes;
        self
    }

    /// Sets whether values that f16 holds take two bytes in mixed precision. Never changes the answer, which
    /// is what the project's tests show with it. Default: they do.
    #[cfg(feature = "testing")]
    pub fn f16_storage(mut self, stored: bool) -> Self {
        self.layout.f16 = stored;
        self
    }

    /// Sets whether sums leave a device while it goes on computing. Never changes the answer. Default: they
    /// do.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.options.overlap = overlap;
        self
    }

    /// Sets the prefix of the names of this run's fault points, for drills with the feature `faults` of
    /// `unisono_replica`. On several machines the names begin with the rank before that: `rank-1:`. Default:
    /// none.
    pub fn fault_scope(mut self, scope: &str) -> Self {
        self.options.fault_scope = scope.into();
        self
    }

    /// Adds a callback, which is called as fits proceed and may change how they go on. Callbacks are called
    /// in the order in which they were added. Default: there are none.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.all.push(Box::new(callback));
        self
    }

    /// Adds an observer, which is called after every step and epoch, for example `Progress`.
    /// Default: none.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Watched::new(observer));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/REPLICAS.md gives these numbers.
    #[test]
    fn the_defaults_are_those_that_the_documents_give() {
        let builder = Trainer::builder(crate::Dense::new(1));
        assert_eq!((builder.digest_every, builder.replicas, builder.mixed), (100, None, false));
        assert_eq!(builder.settled_audits().unwrap(), Audits::Share(0.015));
    }
}
