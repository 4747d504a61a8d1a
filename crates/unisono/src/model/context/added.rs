//! Losses and metrics that a model adds by itself.

use unisono_graph::Var;

use super::Context;

/// The losses and metrics that a model added, in the order in which it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Added {
    /// Names, values and how often each loss counts.
    pub losses: Vec<(String, Var, f32)>,
    /// Names and values.
    pub metrics: Vec<(String, Var)>,
}

impl Added {
    /// Returns the names and values of all.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Var)> {
        let losses = self.losses.iter().map(|(name, value, _)| (&**name, value));
        losses.chain(self.metrics.iter().map(|(name, value)| (&**name, value)))
    }
}

impl Context {
    /// Adds a loss that the model computes itself (Keras's `add_loss`). It counts `weight` times in the total
    /// that is minimised. It needs no target, and the field [`w`](crate::WEIGHT) weights it as it weights
    /// other losses.
    ///
    /// `each` is a number for each sample, `[B]`. If it has more axes, the mean over the elements of each
    /// sample counts. A single number, such as one computed from the whole batch, counts for each sample.
    /// [`Context::penalty`] is for a number that depends on no sample.
    ///
    /// The loss is called `path.name`, as a parameter would be, followed by a number if the layer is applied
    /// again. A model that adds a loss has no default loss. A loss that the builder sets is added to it. If
    /// there are several losses, the history contains each as the metric `path.name loss`, without its
    /// weight. [`Builder::minimize`](crate::Builder::minimize) sets another weight.
    /// [`Phase::minimize`](crate::Phase::minimize) makes it a loss of one phase; a phase without losses of
    /// its own minimises it together with the trainer's other losses. Predictions do not contain it.
    ///
    /// Errors: the value is not f32, or is a sum over the samples of a shard. Another output or loss has the
    /// name. The model adds the loss in training only. The weight is negative or not finite.
    ///
    /// ```
    /// use unisono::{Dense, MeanSquaredError, Model, Outputs, Trainer};
    ///
    /// // A variational autoencoder: the loss of its output, and the divergence of its code.
    /// let (encoder, decoder) = (Dense::new(2 * 8), Dense::new(64));
    /// let vae = Model::new(move |cx, x| {
    ///     let code = cx.apply("encoder", &encoder, &x["x"]);
    ///     let (mean, log_variance) = (code.slice(-1, 0..8), code.slice(-1, 8..16));
    ///     let divergence = (mean.square() + log_variance.exp() - 1.0 - &log_variance).sum(&[-1]) * 0.5;
    ///     cx.loss("divergence", &divergence, 0.1);
    ///     cx.metric("length of the code", &mean.square().sum(&[-1]));
    ///     // Where it is not trained, the mean stands for what would be drawn.
    ///     let drawn = match cx.is_training() {
    ///         true => &mean + (log_variance * 0.5).exp() * mean.normal_noise("code"),
    ///         false => mean,
    ///     };
    ///     Outputs::new().with("picture", &cx.apply("decoder", &decoder, &drawn))
    /// });
    /// let builder = Trainer::builder(vae).loss_between("picture", "x", MeanSquaredError, 1.0);
    /// ```
    #[doc(alias = "add_loss")]
    pub fn loss(&mut self, name: &str, each: &Var, weight: f32) {
        let name = self.name_of_added(name, |added, name| added.losses.iter().any(|(own, ..)| own == name));
        self.added.losses.push((name, each.clone(), weight));
    }

    /// Adds a metric that the model computes itself (Keras's `add_metric`): the mean over samples of one
    /// number for each, `[B]`. Values of other shapes are treated as [`Context::loss`] treats them. It is
    /// called `path.name`.
    ///
    /// A value that is made of several samples depends on the batches, in evaluations too.
    ///
    /// Errors: those of [`Context::loss`].
    #[doc(alias = "add_metric")]
    pub fn metric(&mut self, name: &str, each: &Var) {
        let name = self.name_of_added(name, |added, name| added.metrics.iter().any(|(own, _)| own == name));
        self.added.metrics.push((name, each.detach()));
    }

    /// Returns what the model added so far.
    pub(crate) fn added(&self) -> &Added {
        &self.added
    }

    /// Returns the full name of a loss or metric, with a number where a layer that is applied again has it.
    fn name_of_added(&self, name: &str, is_taken: impl Fn(&Added, &str) -> bool) -> String {
        let full = self.full(name);
        if self.again == 0 {
            return full;
        }
        let numbered = (2..).map(|number| format!("{full} ({number})"));
        let mut names = std::iter::once(full.clone()).chain(numbered);
        names.find(|name| !is_taken(&self.added, name)).unwrap_or(full)
    }
}
