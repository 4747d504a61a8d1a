//! Optimizers: they trace how a gradient changes a parameter.
//!
//! A new optimizer is a file here that implements [`Optimizer`], a `mod` line and a `pub use` line.

/// The schedule of an optimizer whose field `lr` is its only one.
macro_rules! one_schedule {
    () => {
        fn schedule(&self) -> Option<&Schedule> {
            Some(&self.lr)
        }

        fn schedule_mut(&mut self) -> Option<&mut Schedule> {
            Some(&mut self.lr)
        }
    };
}

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod chain;
mod described;
mod groups;
mod lamb;
mod lars;
pub(crate) mod lbfgs;
mod lion;
mod moments;
mod muon;
mod nadam;
mod plateau;
mod rmsprop;
mod schedule;
mod settings;
mod sgd;
mod transform;
mod update;

use unisono_graph::Var;

use crate::objective::Epoch;
use transform::Transform;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamax::Adamax;
pub use adamw::AdamW;
pub use chain::Chain;
pub use described::OptimizerSettings;
pub use groups::Groups;
pub use lamb::Lamb;
pub use lars::Lars;
pub use lbfgs::Lbfgs;
pub use lbfgs::descent::{LbfgsEnd, LbfgsStep};
pub use lion::Lion;
pub use muon::Muon;
pub use nadam::NAdam;
pub use plateau::Plateau;
pub use rmsprop::RmsProp;
pub(crate) use schedule::{RateChange, RateReduction};
pub use schedule::{Schedule, scaled_lr};
pub use sgd::Sgd;
pub(crate) use transform::AVERAGE;
pub use transform::GradientTransform;
pub use update::{Gradient, Scalar, Update, trace_update};
pub(crate) use update::{norm_of_all, trace_update_of};

/// An optimizer: the rule that updates a parameter from its gradient (PyTorch's `optim.Optimizer`). The rule
/// is traced once for each parameter. Numbers that change from step to step, its scalars, are computed on the
/// host.
///
/// ```
/// use unisono::{Optimizer, Scalar, Schedule, Update, Var};
///
/// /// w - lr sign(g).
/// struct SignDescent {
///     lr: Schedule,
/// }
///
/// impl Optimizer for SignDescent {
///     fn name(&self) -> &str {
///         "sign descent"
///     }
///     fn scalars(&self, step: u64) -> Vec<Scalar> {
///         vec![Scalar::new("lr", self.lr.at(step) as f32)]
///     }
///     fn schedule(&self) -> Option<&Schedule> {
///         Some(&self.lr)
///     }
///     fn schedule_mut(&mut self) -> Option<&mut Schedule> {
///         Some(&mut self.lr)
///     }
///     fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
///         weight - gradient.sign() * cx.scalar("lr")
///     }
/// }
/// ```
///
/// Every optimizer has the other methods, which put a transform around it and return a [`Chain`]:
///
/// ```
/// use unisono::{AdamW, Optimizer, Schedule};
///
/// let optimizer = AdamW::new(Schedule::cosine(3e-4, 9_000).warm_up(1_000))
///     .weight_decay(0.1)
///     .no_decay_for_biases_and_norms()
///     .freeze(|name| name.starts_with("encoder."))
///     .clip_norm(1.0);
/// ```
pub trait Optimizer: Send + Sync {
    /// Returns the optimizer's name, which checkpoints contain.
    fn name(&self) -> &str;

    /// Returns the scalars of a step, counted from 0: always the same names in the same order. If a scalar is
    /// not finite, the step is an error before it runs.
    fn scalars(&self, step: u64) -> Vec<Scalar>;

    /// Tells the optimizer the epochs so far, each time one has ended and when a run is resumed. The
    /// optimizer must use nothing else, so that a resumed run continues as the original would have.
    ///
    /// Default: [`Schedule::observe`] of [`Optimizer::schedule_mut`], for the sake of a [`Plateau`] in it. An
    /// optimizer with several schedules passes the epochs on to each.
    ///
    /// # Errors
    /// A value that the optimizer needs is not measured. The error is the message. To find this out before a
    /// run, the trainer calls it with an epoch in which everything is 0.
    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.schedule_mut().map_or(Ok(()), |schedule| schedule.observe(history))
    }

    /// Checks the settings before a run. Default: `Ok(())`.
    ///
    /// An optimizer with a [`Schedule`] also calls [`Schedule::check`]. Independently of this method, it is
    /// an error if a scalar of step 0 is not finite.
    ///
    /// # Errors
    /// A setting cannot work. The error is the message, which names the setting and its value.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns notes on settings that work, and are most likely a mistake. They become
    /// [`Trainer::notes`](crate::Trainer::notes). Default: none. That a learning rate is always 0 is noted
    /// of any optimizer with a [`Optimizer::schedule`].
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the schedule of the learning rate. If the learning rate of a step is not finite, the error
    /// then names it. Default: `None`; the error then names a scalar.
    fn schedule(&self) -> Option<&Schedule> {
        None
    }

    /// Checks the learning rates of a step. Default: that of [`Optimizer::schedule`].
    ///
    /// # Errors
    /// One is not finite or negative; the error is the message.
    fn check_at(&self, step: u64) -> Result<(), String> {
        self.schedule().map_or(Ok(()), |schedule| schedule.check_at(step))
    }

    /// Returns the schedule of the learning rate. Through it, callbacks change the rate
    /// ([`Control::set_learning_rate`](crate::Control::set_learning_rate)), and the schedule learns of each
    /// epoch.
    /// Default: `None`; such changes are an error, and a [`Plateau`] has no effect.
    fn schedule_mut(&mut self) -> Option<&mut Schedule> {
        None
    }

    /// Returns the settings by name. A resume compares them with those of the original run. Default: `None`,
    /// and the run's identity says that they are not covered. The rule itself is always covered, because it
    /// is traced.
    fn settings(&self) -> Option<OptimizerSettings> {
        None
    }

    /// Returns the optimizer if it evaluates all samples several times in a step, as [`Lbfgs`] does, and is
    /// used with [`Trainer::lbfgs_step`](crate::Trainer::lbfgs_step). Default: `None`.
    fn of_all_samples(&self) -> Option<&Lbfgs> {
        None
    }

    /// Traces the new value of the parameter. State that the optimizer needs between steps, such as a
    /// momentum, is declared with `cx`.
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var;

    chain::transforms!([] [where Self: Sized + 'static]);
}

#[cfg(test)]
mod tests;
