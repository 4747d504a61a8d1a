use std::fmt;

use unisono_graph::Var;

use super::{Gradient, Optimizer, Scalar, Update};
use crate::Epoch;

/// An optimizer that leaves some parameters as they are. Made by [`Optimizer::freeze`].
pub struct Freeze<O> {
    inner: O,
    frozen: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl<O> Freeze<O> {
    pub(super) fn new(inner: O, frozen: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { inner, frozen: Box::new(frozen) }
    }
}

impl<O: Optimizer> Optimizer for Freeze<O> {
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
        self.inner.update(cx, weight, gradient)
    }

    fn trains(&self, name: &str) -> bool {
        !(self.frozen)(name) && self.inner.trains(name)
    }

    fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        self.inner.prepare(gradients)
    }
}

impl<O: fmt::Debug> fmt::Debug for Freeze<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Freeze").field("inner", &self.inner).finish_non_exhaustive()
    }
}
