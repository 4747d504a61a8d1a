//! Phases: steps that train parts of a model by losses and an optimizer of their own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::compile::objective::{LossOn, On};
use crate::{Chain, Loss, Sgd};

/// Accepts a parameter by its name.
type Names = dyn Fn(&str) -> bool + Send + Sync;

/// A phase of training: which parameters its steps train, by which losses and with which optimizer, and when
/// its turn is. [`Builder::phase`](crate::Builder::phase) adds it to a trainer.
///
/// ```
/// use unisono::{Adam, BinaryCrossEntropyWithLogits, Phase};
///
/// // Five steps of a GAN's critic, then one of its generator.
/// let critic = Phase::new("critic")
///     .trains(|name| name.starts_with("critic."))
///     .loss_of("real", BinaryCrossEntropyWithLogits, 0.5)
///     .loss_of("fake", BinaryCrossEntropyWithLogits, 0.5)
///     .optimizer(Adam::new(2e-4))
///     .steps(5);
/// let generator = Phase::new("generator")
///     .trains(|name| name.starts_with("generator."))
///     .loss_of("fooled", BinaryCrossEntropyWithLogits, 1.0)
///     .optimizer(Adam::new(1e-4));
/// ```
pub struct Phase {
    pub(crate) name: String,
    pub(crate) trains: Arc<Names>,
    /// The losses; those of the trainer if there are none.
    pub(crate) losses: Vec<LossOn>,
    pub(crate) optimizer: Chain,
    /// The number of steps in a turn.
    pub(crate) steps: u64,
    /// The epochs in which it has turns.
    pub(crate) epochs: Range<u32>,
}

impl Phase {
    /// Creates a phase that trains all parameters by the trainer's losses with [`Sgd`](crate::Sgd) of a
    /// learning rate of 0.01, one step in a turn, in all epochs. The name is a part of the names of what the
    /// optimizer keeps, such as `0.weight/critic/exp_avg`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            trains: Arc::new(|_| true),
            losses: Vec::new(),
            optimizer: Sgd::new(0.01).into(),
            steps: 1,
            epochs: 0..u32::MAX,
        }
    }

    /// Trains the parameters whose names `trains` accepts, and keeps the others. Default: all.
    pub fn trains(self, trains: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { trains: Arc::new(trains), ..self }
    }

    /// Sets the optimizer. Its schedule and its own count of steps are those of this phase's steps. Default:
    /// [`Sgd`](crate::Sgd) with a learning rate of 0.01.
    pub fn optimizer(self, optimizer: impl Into<Chain>) -> Self {
        Self { optimizer: optimizer.into(), ..self }
    }

    /// Minimises a loss of the model's output of this name, compared with the field of the same name, which
    /// counts `weight` times. Default: the trainer's losses.
    pub fn loss_of(self, output: &str, loss: impl Loss + 'static, weight: f32) -> Self {
        self.loss_between(output, output, loss, weight)
    }

    /// Minimises a loss as [`Phase::loss_of`] does, compared with a field of another name.
    pub fn loss_between(
        mut self,
        output: &str,
        target: &str,
        loss: impl Loss + 'static,
        weight: f32,
    ) -> Self {
        let on = On::new(output, target);
        self.losses.push(LossOn { on, loss: Arc::new(loss), weight });
        self
    }

    /// Minimises a value that the model makes, which counts `weight` times: a loss of
    /// [`Context::loss`](crate::Context::loss), or an output, of which the mean of each sample counts. It has
    /// no target. Default: the trainer's losses.
    ///
    /// Errors: those of [`Builder::minimize`](crate::Builder::minimize).
    pub fn minimize(mut self, name: &str, weight: f32) -> Self {
        self.losses.push(LossOn::itself(name, weight));
        self
    }

    /// Sets the number of steps in a row, before it is the next phase's turn. Default: 1.
    pub fn steps(self, steps: u64) -> Self {
        Self { steps, ..self }
    }

    /// Sets the epochs, counted from 0, in which the phase has turns: for training a head first and all
    /// layers later, or for another optimizer from some epoch on. Default: all.
    pub fn epochs(self, epochs: Range<u32>) -> Self {
        Self { epochs, ..self }
    }
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, optimizer, steps, epochs, .. } = self;
        f.debug_struct("Phase")
            .field("name", name)
            .field("optimizer", optimizer)
            .field("steps", steps)
            .field("epochs", epochs)
            .finish_non_exhaustive()
    }
}
