use std::fmt;

use unisono_graph::Var;

use super::{Gradient, Optimizer, Scalar, Update};
use crate::Epoch;

/// An optimizer that takes some parameters out of weight decay. Made by [`Optimizer::decay_exempt`] and
/// [`Optimizer::no_decay_for_biases_and_norms`].
pub struct DecayExempt<O> {
    inner: O,
    exempt: Box<Rule>,
}

/// Whether a parameter of this name and shape is exempt.
type Rule = dyn Fn(&str, &[usize]) -> bool + Send + Sync;

impl<O> DecayExempt<O> {
    pub(super) fn named(inner: O, exempt: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { inner, exempt: Box::new(move |name, _| exempt(name)) }
    }

    pub(super) fn biases_and_norms(inner: O) -> Self {
        Self { inner, exempt: Box::new(|_, dims| dims.len() < 2) }
    }
}

impl<O: Optimizer> Optimizer for DecayExempt<O> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        self.inner.scalars(step)
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.inner.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        if (self.exempt)(cx.parameter(), weight.dims()) {
            cx.exempt();
        }
        self.inner.update(cx, weight, gradient)
    }

    fn trains(&self, name: &str) -> bool {
        self.inner.trains(name)
    }

    fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        self.inner.prepare(gradients)
    }
}

impl<O: fmt::Debug> fmt::Debug for DecayExempt<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecayExempt").field("inner", &self.inner).finish_non_exhaustive()
    }
}
