//! Callbacks that are functions.

use crate::{Callback, Control, Epoch, Error, Influence, Step};

/// A callback that calls a function after each epoch. [`on_epoch`] returns one.
pub struct OnEpoch<F>(Function<F>);

/// A callback that calls a function after each step. [`on_step`] returns one.
pub struct OnStep<F>(Function<F>);

struct Function<F> {
    name: String,
    influence: Influence,
    call: F,
}

/// Creates a callback that calls a function after each epoch (Keras's `LambdaCallback`). Checkpoints know it
/// by `name`. `influence` says how the function changes the result.
///
/// ```
/// use unisono::{Dense, Influence, Trainer, on_epoch};
///
/// let halve = Influence::By("halves the learning rate every ten epochs, version 1".into());
/// let builder = Trainer::builder(Dense::new(10)).callback(on_epoch("halving", halve, |epoch, run| {
///     if epoch.epoch % 10 == 9 { run.scale_learning_rate(0.5) } else { Ok(()) }
/// }));
/// ```
#[doc(alias = "LambdaCallback")]
pub fn on_epoch<F>(name: &str, influence: Influence, call: F) -> OnEpoch<F>
where
    F: FnMut(&Epoch, &mut Control<'_>) -> Result<(), Error> + Send,
{
    OnEpoch(Function { name: name.to_owned(), influence, call })
}

/// Creates a callback that calls a function after each step. See [`on_epoch`].
pub fn on_step<F>(name: &str, influence: Influence, call: F) -> OnStep<F>
where
    F: FnMut(&Step, &mut Control<'_>) -> Result<(), Error> + Send,
{
    OnStep(Function { name: name.to_owned(), influence, call })
}

impl<F: FnMut(&Epoch, &mut Control<'_>) -> Result<(), Error> + Send> Callback for OnEpoch<F> {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn influence(&self) -> Influence {
        self.0.influence.clone()
    }

    fn awaits_steps(&self) -> bool {
        false
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        (self.0.call)(epoch, run)
    }
}

impl<F: FnMut(&Step, &mut Control<'_>) -> Result<(), Error> + Send> Callback for OnStep<F> {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn influence(&self) -> Influence {
        self.0.influence.clone()
    }

    fn step_ended(&mut self, step: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        (self.0.call)(step, run)
    }
}
