//! Optimizers: they trace how a gradient changes a parameter.
//!
//! A new optimizer is a file here that implements [`Optimizer`], a `mod` line and a `pub use` line.

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
pub use lion::Lion;
pub use muon::Muon;
pub use nadam::NAdam;
pub use plateau::Plateau;
pub use rmsprop::RmsProp;
pub(crate) use schedule::RateChange;
pub use schedule::{Schedule, scaled_lr};
pub use sgd::Sgd;
pub(crate) use transform::AVERAGE;
pub use transform::GradientTransform;
pub(crate) use update::trace_update_of;
pub use update::{Gradient, Scalar, Update, trace_update};

/// An optimizer: the rule by which a gradient changes a parameter. It is traced once for each parameter; the
/// numbers that change from step to step, its scalars, are computed on the host.
///
/// ```
/// use unisono::{Epoch, Optimizer, Scalar, Schedule, Update, Var};
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
///     fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
///         self.lr.observe(history)
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
    /// Returns the optimizer's name, which checkpoints hold.
    fn name(&self) -> &str;

    /// Returns the scalars of a step, 0 being the first: always the same names in the same order. A step
    /// whose scalars are not all finite is refused before it runs.
    fn scalars(&self, step: u64) -> Vec<Scalar>;

    /// Shows the optimizer the epochs so far, each time one has ended and when a run is resumed. What the
    /// optimizer makes of them must depend on nothing else, so that a resumed run goes on as it would have.
    ///
    /// An optimizer with a [`Schedule`] passes the call on to [`Schedule::observe`], or a [`Plateau`] in it
    /// does nothing. Without one it returns `Ok(())`.
    ///
    /// # Errors
    /// Something that the optimizer needs is not measured; the error is the message. To find this out before
    /// a run, the trainer asks with an epoch in which everything is 0.
    fn observe(&mut self, history: &[Epoch]) -> Result<(), String>;

    /// Checks the settings, before a run. Default: `Ok(())`.
    ///
    /// An optimizer with a [`Schedule`] asks [`Schedule::check`] too. Whatever this method does, scalars of
    /// step 0 that are not finite are an error.
    ///
    /// # Errors
    /// A setting cannot work; the error is the message, which names the setting and its value.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the schedule of the learning rate, so that the error of a step whose learning rate is not
    /// finite names it. Default: `None`; the error then names a scalar.
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

    /// Returns the schedule of the learning rate, so that callbacks can change it
    /// ([`Control::set_learning_rate`](crate::Control::set_learning_rate)). Default: `None`, which refuses
    /// such changes.
    fn schedule_mut(&mut self) -> Option<&mut Schedule> {
        None
    }

    /// Returns the settings by name, by which a resumed run is compared with its own. Default: `None`, and a
    /// run's identity says that they are not covered. The rule itself is covered either way, as it is traced.
    fn settings(&self) -> Option<OptimizerSettings> {
        None
    }

    /// Traces the parameter's new value. Whatever else has to be kept between steps is a state of `cx`.
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var;

    chain::transforms!([] [where Self: Sized + 'static]);
}

#[cfg(test)]
mod tests;
