//! Optimizers: from a gradient to a new parameter, as a graph of its own.

mod adagrad;
mod adam;
mod adamw;
mod clip;
mod decay;
mod freeze;
mod groups;
mod lamb;
mod lars;
mod moments;
mod plateau;
mod rmsprop;
mod schedule;
mod sgd;
mod update;

use unisono_graph::Var;

use crate::Epoch;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamw::AdamW;
pub use clip::{ClipNorm, ClipValue};
pub use decay::DecayExempt;
pub use freeze::Freeze;
pub use groups::Groups;
pub use lamb::Lamb;
pub use lars::Lars;
pub use plateau::Plateau;
pub use rmsprop::RmsProp;
pub use schedule::{Schedule, scaled_lr};
pub use sgd::Sgd;
pub use update::{Gradient, Scalar, Update, trace_update};

/// An optimizer. Its rule is traced once for each parameter; the numbers that change from step to step are computed on the
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
///     fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
///         weight - gradient.sign() * cx.scalar("lr")
///     }
/// }
/// ```
///
/// What is common to all of them is put around one:
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
    /// Its name, for checkpoints.
    fn name(&self) -> &str;

    /// The numbers of a step, 0 being the first; always the same names in the same order.
    fn scalars(&self, step: u64) -> Vec<Scalar>;

    /// Looks at the epochs so far: when one has ended, and when a run is resumed. What it makes of them must depend on nothing
    /// else, so that a resumed run goes on as it would have. An error says what is not measured that it needs; the trainer also
    /// asks before a run, with an epoch in which everything was 0.
    fn observe(&mut self, _history: &[Epoch]) -> Result<(), String> {
        Ok(())
    }

    /// The parameter's new value. Whatever else has to be kept is a state of `cx`.
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var;

    /// Whether the parameter of this name is trained; one that is not keeps its value, and nothing is computed or kept for it.
    fn trains(&self, _name: &str) -> bool {
        true
    }

    /// Looks at all gradients together before any update, in the order of the parameters' names.
    fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        gradients
    }

    /// Scales all gradients down when their common norm is above `norm` (Pascanu et al. 2013; PyTorch's `clip_grad_norm_`).
    fn clip_norm(self, norm: f32) -> ClipNorm<Self>
    where
        Self: Sized,
    {
        ClipNorm::new(self, norm)
    }

    /// Cuts every element of every gradient to [-value, value] (PyTorch's `clip_grad_value_`).
    fn clip_value(self, value: f32) -> ClipValue<Self>
    where
        Self: Sized,
    {
        ClipValue::new(self, value)
    }

    /// No weight decay for parameters whose name `exempt` takes.
    fn decay_exempt(self, exempt: impl Fn(&str) -> bool + Send + Sync + 'static) -> DecayExempt<Self>
    where
        Self: Sized,
    {
        DecayExempt::named(self, exempt)
    }

    /// No weight decay for parameters with fewer than two axes: biases, and the scales of norms.
    fn no_decay_for_biases_and_norms(self) -> DecayExempt<Self>
    where
        Self: Sized,
    {
        DecayExempt::biases_and_norms(self)
    }

    /// Leaves parameters whose name `frozen` takes as they are.
    fn freeze(self, frozen: impl Fn(&str) -> bool + Send + Sync + 'static) -> Freeze<Self>
    where
        Self: Sized,
    {
        Freeze::new(self, frozen)
    }
}

impl Optimizer for Box<dyn Optimizer> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn scalars(&self, step: u64) -> Vec<Scalar> {
        (**self).scalars(step)
    }
    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        (**self).observe(history)
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        (**self).update(cx, weight, gradient)
    }
    fn trains(&self, name: &str) -> bool {
        (**self).trains(name)
    }
    fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        (**self).prepare(gradients)
    }
}

#[cfg(test)]
mod tests;
