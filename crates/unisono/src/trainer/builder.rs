//! The builder of a trainer: its settings.

use std::sync::Arc;
use std::time::Duration;

use unisono_cluster::Cluster;
use unisono_gpu::Arithmetic;
use unisono_graph::{Layout, Precision};
use unisono_replica::{Assignment, Audits, Options};

use crate::compile::objective::{LossOn, Named, On};

use crate::compile::parts::Parts;
use crate::model::Model;
use crate::observe::monitor::ObserverSlot;
use crate::observe::observer::Observer;
use crate::run::settings::{LENGTHS, RunSettings};
use crate::trainer::Trainer;
use crate::trainer::callback::{Callback, Callbacks};
use crate::trainer::witness::Witness;
use crate::{Chain, Loss, LossScale, Metric};

/// The default share of the time that audits take.
pub(super) const AUDIT_SHARE: f64 = 0.015;

/// The settings of a [`Trainer`] (Keras's `compile`). [`Trainer::builder`] returns one, and
/// [`Builder::build`] makes the trainer.
#[doc(alias = "compile")]
pub struct Builder {
    pub(super) parts: Parts,
    /// Whether a loss was set at all.
    pub(super) is_loss_set: bool,
    /// Whether an optimizer was set, which phases do not use.
    pub(super) is_optimizer_set: bool,
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
    pub(super) observers: Vec<ObserverSlot>,
    pub(super) callbacks: Callbacks,
    pub(super) cluster: Cluster,
    pub(super) witness: Option<Witness>,
}

impl Trainer {
    /// Returns a builder with which you set up training of a model (Keras's `compile`). The model is a
    /// [`Layer`](crate::Layer) or a [`Model`]. A layer gets the field `x` as its input, and its output is
    /// compared with the field `y`. A `Model` can have other fields and several outputs.
    pub fn builder(model: impl Into<Model>) -> Builder {
        Builder::new(model.into())
    }
}

impl Builder {
    fn new(model: Model) -> Self {
        Self {
            parts: Parts::new(model),
            is_loss_set: false,
            is_optimizer_set: false,
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
            cluster: Cluster::alone(),
            witness: None,
        }
    }

    /// Sets the loss of the model's output `output`, the name of a layer's only one, which is compared with
    /// the field `y`. It replaces all losses that were set before. Default:
    /// [`CrossEntropy`](crate::CrossEntropy). For other names there is [`Builder::loss_between`].
    pub fn loss(mut self, loss: impl Loss + 'static) -> Self {
        self.parts.told.losses = vec![LossOn::only(loss)];
        self.is_loss_set = true;
        self.parts.settle_losses(true);
        self
    }

    /// Adds a loss for the output with this name, which is compared with the field of the same name. The
    /// minimised sum contains the loss `weight` times (Keras's `loss_weights`).
    ///
    /// If there are several losses, the history also has each of them without its weight, as the metric
    /// `NAME loss`. If an output has several losses, the metrics are called `NAME as FIELD loss`. If these
    /// names are equal too, the names of the losses follow.
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

    /// Adds a loss as [`Builder::loss_of`] does, but compares the output with a field of another name.
    pub fn loss_between(
        mut self,
        output: &str,
        target: &str,
        loss: impl Loss + 'static,
        weight: f32,
    ) -> Self {
        self.add_loss(LossOn { on: On::new(output, target), loss: Arc::new(loss), weight });
        self
    }

    /// Minimises a value that the model computes itself, multiplied by `weight`. There is no target. The
    /// value can be an output: its mean over each sample's elements is minimised. It can also be a loss that
    /// the model adds with [`Context::loss`](crate::Context::loss). Then `weight` replaces the loss's own
    /// weight.
    ///
    /// Building the trainer is an error if the model has no value of this name, if the value is not f32, or
    /// if the weight is negative or not finite.
    pub fn minimize(mut self, name: &str, weight: f32) -> Self {
        self.add_loss(LossOn::itself(name, weight));
        self
    }

    fn add_loss(&mut self, loss: LossOn) {
        // The default makes room; a loss that was set stays.
        let is_default = !std::mem::replace(&mut self.is_loss_set, true);
        if is_default {
            self.parts.told.losses.clear();
        }
        self.parts.told.losses.push(loss);
        self.parts.settle_losses(true);
    }

    /// Sets the optimizer. Default: [`Sgd`](crate::Sgd) with a learning rate of 0.01.
    pub fn optimizer(mut self, optimizer: impl Into<Chain>) -> Self {
        self.parts.optimizer = optimizer.into();
        self.is_optimizer_set = true;
        self
    }

    /// Adds a metric of the model's output `output`, which is compared with the field `y`. Default: none.
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.parts.told.measure(On::only(), Arc::new(metric));
        self
    }

    /// Adds a metric of the output with this name, which is compared with the field of the same name. Its
    /// name in the history contains both, such as `sold accuracy`.
    pub fn metric_of(self, output: &str, metric: impl Metric + 'static) -> Self {
        self.metric_between(output, output, metric)
    }

    /// Adds a metric as [`Builder::metric_of`] does, but compares the output with a field of another name.
    pub fn metric_between(mut self, output: &str, target: &str, metric: impl Metric + 'static) -> Self {
        let on = On::new(output, target);
        let name = format!("{output} {}", metric.name());
        self.parts.told.measure(on, Arc::new(Named { name, metric }));
        self
    }

    /// Sets the numeric precision of matrix products, in training, evaluation and prediction. The result
    /// depends on it. Default: [`Precision::F32`].
    ///
    /// [`Precision::Mixed`] (PyTorch's `autocast`) rounds the operands and results of products to f16,
    /// accumulates in f32, and scales the loss ([`Builder::loss_scale`]). Parameters, norms, softmax, losses,
    /// metrics, statistics and optimizers stay f32.
    ///
    /// `Precision::mixed().matrix_units()` multiplies by the adapter's matrix unit (tensor cores), and the
    /// result depends on its kind. An adapter without one, or with a wrong one, is refused by name.
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

    /// Sets how the loss is scaled in mixed precision (PyTorch's `GradScaler`). The result depends on it.
    /// Default: [`LossScale::default`].
    #[doc(alias("GradScaler", "LossScaleOptimizer"))]
    pub fn loss_scale(self, loss_scale: LossScale) -> Self {
        Self { loss_scale, ..self }
    }

    /// Sets the number of samples in a step, over all replicas together. The result depends on it. It
    /// replaces the batch size of the loaders that the trainer is given. Default: 32
    /// ([`GLOBAL_BATCH`](crate::GLOBAL_BATCH)).
    #[doc(alias = "batch_size")]
    pub fn global_batch(mut self, samples: usize) -> Self {
        (self.settings.global_batch, self.per_replica) = (samples, None);
        self
    }

    /// Sets the number of samples in a step for each replica. **The result then depends on the number of
    /// replicas**, because the global batch does. [`Trainer::notes`] says so too. For the same result on any
    /// number of replicas, use [`Builder::global_batch`].
    pub fn samples_per_replica(self, samples: usize) -> Self {
        Self { per_replica: Some(samples), ..self }
    }

    /// Sets the number of shards that each global batch is cut into. The result depends on it. At most this
    /// many replicas can share the work. Default: 8 ([`SHARDS`](crate::SHARDS)).
    pub fn shards(mut self, shards: usize) -> Self {
        self.settings.shards = shards;
        self
    }

    /// Sets the seed of initial weights and dropout. The loader has a seed of its own
    /// ([`Loader::shuffle`](crate::data::Loader::shuffle)). Default: 0.
    #[doc(alias("manual_seed", "set_random_seed"))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Trains on the adapters whose label ([`unisono_gpu::Adapter::label`]) contains `name`, or on those of a
    /// backend: `cpu` is the CPU. Call it several times to choose several adapters. If GPUs have the same
    /// name, the label of the second contains `#2`. See [`unisono_gpu::select`]. Default: all GPUs, or the
    /// CPU if there is none.
    pub fn adapter(mut self, name: &str) -> Self {
        self.adapters.push(name.into());
        self
    }

    /// Sets how the CPU rounds. It can compute in the arithmetic of a GPU, and then repeats a run of this GPU
    /// to the bit. `split` is the arithmetic of software drivers, and of runs that were started on the CPU
    /// before 2026-11-26. The CPU must be among the adapters ([`unisono_gpu::select_in`]). Default:
    /// [`Arithmetic::default`], `fused`.
    pub fn arithmetic(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic: Some(arithmetic), ..self }
    }

    /// Sets the number of replicas. If there are more replicas than adapters, replicas share adapters. Never
    /// changes the result.
    ///
    /// Default: one replica for each GPU, or one on the CPU, which uses all cores. On a software driver it is
    /// one for each core, at most one for each shard ([`Builder::shards`]). The software driver of DX12 has
    /// one replica, because it uses all cores by itself.
    #[doc(alias("DistributedDataParallel", "MirroredStrategy"))]
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// Sets the interval, in steps, at which the states of all replicas are compared. They are also compared
    /// before each checkpoint. 0 turns all these comparisons off. Default: 100.
    pub fn digest_every(self, steps: u64) -> Self {
        Self { digest_every: steps, ..self }
    }

    /// Sets how shards are assigned to replicas. Never changes the result. Default: by measured speed.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.options.assignment = assignment;
        self
    }

    /// Sets how often a step is audited. An audit recomputes the step on other replicas, which must give the
    /// same bytes. This finds GPUs that compute wrongly: the run drops such a GPU and goes back to the last
    /// trusted state. The last step of a fit is always audited. The trusted state is kept in the host's
    /// memory ([`MemoryEstimate::audits`](crate::MemoryEstimate::audits)). Default: audits take about 1.5 %
    /// of the time ([`Audits::Share`]).
    ///
    /// Runs on several numeric classes ([`Builder::mixed`]) and runs on several machines have no audits. On
    /// several machines, setting audits is an error.
    pub fn audits(self, audits: Audits) -> Self {
        Self { audits: Some(audits), ..self }
    }

    /// Sets the machines that train together. They give the same bytes as one machine. Each process builds
    /// the same trainer and calls the same functions in the same order. Observers are called on the first
    /// rank only, unless [`Observer::on_all_ranks`](crate::Observer::on_all_ranks) says otherwise. Callbacks
    /// are called on all ranks. Default: [`Cluster::alone`].
    pub fn cluster(self, cluster: Cluster) -> Self {
        Self { cluster, ..self }
    }

    /// Sets the mean number of steps between two audits. 0 turns audits off. See [`Builder::audits`].
    pub fn audit_every(self, steps: u64) -> Self {
        self.audits(Audits::Every(steps))
    }

    /// Sets how long the run waits for a replica before it counts as lost. Once the pace of a replica is
    /// known, a replica that takes more than twenty times its usual step time, and at least half a minute, is
    /// also dropped. It gets five more minutes if it has to compile kernels, such as in the first step.
    /// Default: five minutes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// Sets the maximum number of shards that a replica computes at once. Fewer take less memory and more
    /// time. Never changes the result. Default: all shards of the replica, or the largest power of two of
    /// them that fits the device's memory.
    ///
    /// A model with batch norm always computes all shards of a replica at once. A fast replica is then
    /// assigned no more shards than fit its device's memory.
    pub fn shards_at_once(mut self, shards: usize) -> Self {
        self.options.shards_at_once = Some(shards);
        self
    }

    /// Sets the maximum number of steps in flight: 1 or 2. With 1, each step ends before the next one begins.
    /// With 2, a step is submitted while the device still computes the previous one, which takes staging
    /// memory for a second batch. A run on several replicas always has one step in flight. Never changes the
    /// result. Default: 2 on a GPU, and 1 on a CPU adapter, whose kernels share the cores with the host.
    pub fn steps_in_flight(mut self, steps: usize) -> Self {
        self.options.steps_in_flight = Some(steps);
        self
    }

    /// Sets the maximum number of bytes of device memory for a replica's state and scratch memory. Never
    /// changes the result. Default: the memory of the device, if it is known.
    pub fn memory_limit(self, bytes: u64) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// Records what each replica does with its time, for [`Trainer::write_trace`]: at most 500,000
    /// stretches, in some 32 MB. In a longer run the steps of the older half are summed up. Default: off.
    pub fn timeline(mut self) -> Self {
        self.options.timeline = true;
        self
    }

    /// Allows adapters of different numeric classes, which round differently. One replica then updates the
    /// parameters, and the others receive its bytes, so that replicas never drift apart. The result is
    /// reproducible only on the same mix: another mix, a lost replica or one that joins gives other bits.
    /// Default: adapters of different classes are an error.
    pub fn mixed(self, allowed: bool) -> Self {
        Self { mixed: allowed, ..self }
    }

    /// Shards the optimizer state across all replicas of all machines (like ZeRO stage 1). `owners` is the
    /// number of replicas that store each tensor of the state. With 1, memory is lowest. With 2, losing one
    /// replica or machine loses no state. The owners update a parameter and send it to the others, so a step
    /// takes longer. Every replica still stores all parameters. Never changes the result. Default: every
    /// replica stores the whole optimizer state.
    pub fn shard_optimizer(mut self, owners: usize) -> Self {
        self.options.owners = Some(owners.max(1));
        self.layout.states_apart = true;
        self
    }

    /// Sets the size in bytes of a gradient bucket, that is, of the gradient sums that a replica sends
    /// together. Never changes the result. Default: 25 MiB.
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.layout.bucket_bytes = bytes;
        self
    }

    /// Sets whether mixed precision stores values that f16 can hold in two bytes. Never changes the result.
    /// Default: it does.
    #[cfg(feature = "testing")]
    pub fn f16_storage(mut self, stored: bool) -> Self {
        self.layout.f16 = stored;
        self
    }

    /// Sets whether gradients leave a device while it still computes. Never changes the result. Default: they
    /// do.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.options.overlap = overlap;
        self
    }

    /// Sets a prefix for the names of this run's fault points, for drills with the feature `faults` of
    /// `unisono_replica`. On several machines the rank comes before it: `rank-1:`. Default: none.
    pub fn fault_scope(mut self, scope: &str) -> Self {
        self.options.fault_scope = scope.into();
        self
    }

    /// Attaches a text to the model, by a name of your choice: what a prediction needs besides the weights,
    /// such as a vocabulary (`data::Vocabulary::to_json`) or the names of classes. It is written into the
    /// `NAME.json` of an exported model, and [`Predictor::attached`](crate::Predictor::attached) returns it.
    /// It changes nothing in the run. Default: nothing is attached.
    pub fn attach(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.parts.attached.insert(name.into(), text.into());
        self
    }

    /// Adds a callback. It is called at steps and epochs, and may change how the run continues. Callbacks are
    /// called in the order in which they were added. Default: none.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.all.push(Box::new(callback));
        self
    }

    /// Adds an observer, such as `Progress`. It is called after every step and epoch. Default: none.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(ObserverSlot::new(observer));
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
