//! Settings of the builder that people know from Keras's `fit` and Lightning's `Trainer`: weights of classes,
//! gradient accumulation, statistics that are frozen.

use std::sync::Arc;

use unisono_graph::Program;
use unisono_replica::can_run_few_at_once;

use crate::Error;
use crate::compile::phases::Phase;
use crate::model::functional::OUTPUT;
use crate::trainer::builder::Builder;

impl Builder {
    /// Sets the weight of each class in training, by the number of the class (Keras's `class_weight`;
    /// PyTorch's `CrossEntropyLoss(weight=...)`, without label smoothing). Default: all classes count alike.
    ///
    /// The classes are the labels of the loss: usually one for each sample, `[B]` or `[B, 1]`. A loss of one
    /// logit, or of pairs, has the classes 0 and 1, and a hinge loss has -1 and 1. If a sample has several
    /// labels, `[B, ...]` for logits `[B, ..., classes]`, each label has the weight of its class.
    ///
    /// The loss becomes a weighted mean. The weight of a sample is that of its class, times its weight in the
    /// field [`w`](crate::WEIGHT). Class weights do not affect metrics, not even in training, and they do
    /// not affect evaluations.
    ///
    /// If there are losses of several outputs or labels, including those of [`Phase`](crate::Phase)s,
    /// building the trainer is an error. Use [`Builder::class_weights_of`] for one output then.
    ///
    /// ```
    /// use unisono::{Dense, Trainer, balanced_class_weights};
    ///
    /// let weights = balanced_class_weights(&[900, 90, 10]);
    /// assert_eq!(weights[2], 90.0 * weights[0]);
    /// let builder = Trainer::builder(Dense::new(3)).class_weights(weights);
    /// ```
    #[doc(alias = "class_weight")]
    pub fn class_weights(mut self, weights: impl Into<Vec<f32>>) -> Self {
        self.parts.weighing.classes.insert(None, weights.into());
        self
    }

    /// Sets the class weights of one of several outputs, as [`Builder::class_weights`] does for the only one.
    /// They weight all losses of this output and no others.
    pub fn class_weights_of(mut self, output: &str, weights: impl Into<Vec<f32>>) -> Self {
        self.parts.weighing.classes.insert(Some(output.to_owned()), weights.into());
        self
    }

    /// Weights the samples or labels of a model with one output by a field of the data. See
    /// [`Builder::sample_weights_of`].
    pub fn sample_weights(self, field: &str) -> Self {
        self.sample_weights_of(OUTPUT, field)
    }

    /// Weights the losses of an output by a field of the data, in training and in evaluations (Keras's
    /// `sample_weight` by name). Default: samples count alike, or by the field [`w`](crate::WEIGHT), which
    /// weights all outputs. If both are there, they are multiplied, so `field` cannot be `w` itself.
    ///
    /// The field is f32. `[B]` has one weight for each sample. `[B, T]` has one for each label of a sample,
    /// such as each token; for a loss of `[B, T, D]` elements it has one for each D. Weights must not be
    /// negative. A weight of 0 leaves out a sample or a label, for example one that is missing. Weights of
    /// samples also weight the metrics of the output; weights of labels do not.
    ///
    /// **Each loss is divided by its own sum of weights.** If several losses have different weights, a device
    /// needs these sums before it computes gradients. A replica then computes all its shards at once, as with
    /// batch norm. A loss whose weights are all 0 in a batch adds nothing to the step.
    ///
    /// Building the trainer is an error if the output has no loss, the field is not f32, or there are label
    /// weights for a loss of whole samples ([`Loss::per_label`](crate::Loss::per_label)).
    ///
    /// ```
    /// use unisono::{CrossEntropy, Dense, MeanSquaredError, Model, Outputs, Trainer};
    ///
    /// let model = Model::new(|cx, x| {
    ///     let tag = cx.apply("tag", &Dense::new(5), &x["x"]);
    ///     Outputs::new().with("tag", &tag).with("age", &cx.apply("age", &Dense::new(1), &x["x"]))
    /// });
    /// // Some samples have no age: "has_age" is 0 there, and "age" any number.
    /// let builder = Trainer::builder(model)
    ///     .loss_of("tag", CrossEntropy::new().ignore_index(-1), 1.0)
    ///     .loss_of("age", MeanSquaredError, 0.1)
    ///     .class_weights_of("tag", [1.0, 2.0, 1.0, 5.0, 1.0])
    ///     .sample_weights_of("age", "has_age");
    /// ```
    #[doc(alias("sample_weight", "sample_weights", "loss_mask"))]
    pub fn sample_weights_of(mut self, output: &str, field: &str) -> Self {
        self.parts.weighing.fields.insert(output.to_owned(), field.to_owned());
        self
    }

    /// Lets each replica compute its share of a step in `parts` parts, one after another, and update once at
    /// the end (Keras's `gradient_accumulation_steps`, Lightning's `accumulate_grad_batches`). The global
    /// batch is that of all parts together. More parts take less memory and more time. Never changes the
    /// result. Default: 1, or more if memory is short.
    ///
    /// A part has at least one shard, so a step on R replicas has at most [`Builder::shards`] / R parts. A
    /// model with batch norm needs all samples of a step at once and has one part. So does a model with
    /// several losses that have different weights ([`Builder::sample_weights_of`]).
    #[doc(alias("accumulate_grad_batches", "gradient_accumulation_steps"))]
    pub fn gradient_accumulation(mut self, parts: usize) -> Self {
        self.accumulated = Some(parts);
        self
    }

    /// Sets how many lengths of samples stay compiled, in addition to the longest. A length is compiled when
    /// its first batch comes, and takes memory on the host and on each device. If there is one length too
    /// many, the one that was unused for longest is dropped, with a note. If it comes again, it is compiled
    /// again. Never changes the result. Default: 64.
    pub fn lengths(mut self, most: usize) -> Self {
        self.most_lengths = most;
        self
    }

    /// Lets the statistics whose names `frozen` accepts keep their values in training: a batch norm then
    /// normalizes with its running mean and variance, as in evaluation (Keras's `trainable = False` of a
    /// batch norm, PyTorch's `eval()` of one). Default: none is frozen.
    ///
    /// The names are those in checkpoints, such as `encoder.1.running_mean`. Parameters are frozen by
    /// [`Optimizer::freeze`](crate::Optimizer::freeze).
    ///
    /// ```
    /// use unisono::{BatchNorm, Dense, Optimizer, Sequential, Sgd, Trainer};
    ///
    /// let model = Sequential::new().add(Dense::new(8)).add(BatchNorm::new()).add(Dense::new(2));
    /// let is_base = |name: &str| name.starts_with("0.") || name.starts_with("1.");
    /// let builder = Trainer::builder(model)
    ///     .optimizer(Sgd::new(0.1).freeze(is_base))
    ///     .freeze_statistics(is_base);
    /// ```
    pub fn freeze_statistics(mut self, frozen: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.parts.frozen_statistics = Some(Arc::new(frozen));
        self
    }

    /// Adds a phase: steps that train parts of the model by losses and an optimizer of their own. Phases take
    /// turns in the order in which they were added. Default: there are none, and each step trains the whole
    /// model with [`Builder::optimizer`], which phases replace.
    ///
    /// Loss and metrics in the history are those of the trainer ([`Builder::loss_of`]), over all steps;
    /// without those they are the losses of all phases. Checkpoints hold whose turn it is. A callback sets
    /// the learning rates of all phases, or that of one
    /// ([`Control::set_learning_rate_of`](crate::Control::set_learning_rate_of)).
    ///
    /// ```
    /// use unisono::{AdamW, Dense, Phase, Sequential, Sgd, Trainer};
    ///
    /// // Trains the head for three epochs, and then the whole model with another optimizer.
    /// let model = Sequential::new().add(Dense::new(32)).add(Dense::new(10));
    /// let head = Phase::new("head").trains(|name| name.starts_with("1.")).optimizer(Sgd::new(0.1));
    /// let all = Phase::new("all").optimizer(AdamW::new(1e-4)).epochs(3..u32::MAX);
    /// let builder = Trainer::builder(model).phase(head.epochs(0..3)).phase(all);
    /// ```
    pub fn phase(mut self, phase: Phase) -> Self {
        self.parts.phases.push(phase);
        self.parts.settle_losses(self.is_loss_set);
        self
    }

    /// Checks the number of parts of a step.
    ///
    /// # Errors
    /// It is 0, or there are not so many shards.
    pub(super) fn check_accumulation(&self) -> Result<(), Error> {
        let (parts, shards) = (self.accumulated.unwrap_or(1), self.settings.shards);
        if (1..=shards).contains(&parts) {
            return Ok(());
        }
        let problem = format!(
            "{parts} parts of a step of {shards} shards: 1 to {shards} are possible, and more with more \
             Builder::shards"
        );
        Err(Error::setting("gradient accumulation", problem))
    }

    /// Says that a step cannot be computed in parts, where that was asked for.
    pub(super) fn accumulation_note(&self, program: &Program) -> Option<String> {
        let parts = self.accumulated.filter(|parts| *parts > 1 && !can_run_few_at_once(program))?;
        Some(format!(
            "no gradient accumulation: a step is not computed in {parts} parts, because the model sums over the whole global \
             batch, as batch norm and several losses with different weights do"
        ))
    }

    /// Returns an error if the optimizer's state is to be sharded and this run cannot do that.
    pub(super) fn check_owners(&self, mixed: bool) -> Result<(), Error> {
        let problem = match self.options.owners {
            Some(_) if mixed => "adapters of several numeric classes update on one replica",
            Some(_) if !self.parts.phases.is_empty() => "a run with phases keeps it on every replica",
            _ => return Ok(()),
        };
        Err(Error::setting("shard_optimizer", problem))
    }
}

/// Returns a weight for each class such that all classes count alike together: samples / (classes count)
/// (scikit-learn's `class_weight="balanced"`). A class without samples has the weight 0.
pub fn balanced_class_weights(counts: &[u64]) -> Vec<f32> {
    let samples: u64 = counts.iter().sum();
    let weight =
        |&count: &u64| if count == 0 { 0.0 } else { samples as f64 / (counts.len() as u64 * count) as f64 };
    counts.iter().map(|count| weight(count) as f32).collect()
}
