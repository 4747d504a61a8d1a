//! Gradients cut to size before an optimizer sees them.

use unisono_graph::Var;

use super::update::norm_of_all;
use super::{Gradient, Optimizer, Scalar, Update};
use crate::Epoch;

/// An optimizer that scales all gradients by norm / (their common norm + 1e-6) when that is below 1 (PyTorch's
/// `clip_grad_norm_`). Made by [`Optimizer::clip_norm`].
///
/// The sum of the squares is a tree within each tensor, then runs over the tensors in the order of their names.
#[derive(Clone, Debug)]
pub struct ClipNorm<O> {
    inner: O,
    norm: f32,
}

/// An optimizer that cuts every element of every gradient to [-value, value] (PyTorch's `clip_grad_value_`). Made by
/// [`Optimizer::clip_value`].
#[derive(Clone, Debug)]
pub struct ClipValue<O> {
    inner: O,
    value: f32,
}

impl<O> ClipNorm<O> {
    pub(super) fn new(inner: O, norm: f32) -> Self {
        Self { inner, norm }
    }
}

impl<O> ClipValue<O> {
    pub(super) fn new(inner: O, value: f32) -> Self {
        Self { inner, value }
    }
}

/// The same gradients with other values.
fn map(gradients: Vec<Gradient>, f: impl Fn(&Var) -> Var) -> Vec<Gradient> {
    gradients.into_iter().map(|g| Gradient { gradient: f(&g.gradient), ..g }).collect()
}

macro_rules! around_inner {
    ($wrapper:ident, $self:ident, $gradients:ident => $prepare:expr) => {
        impl<O: Optimizer> Optimizer for $wrapper<O> {
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
                self.inner.trains(name)
            }
            fn prepare(&$self, $gradients: Vec<Gradient>) -> Vec<Gradient> {
                $self.inner.prepare($prepare)
            }
        }
    };
}

around_inner!(ClipNorm, self, gradients => match norm_of_all(&gradients) {
    Some(norm) => {
        let factor = (self.norm / (norm + 1e-6)).minimum(&gradients[0].gradient.tape().constant(1.0));
        map(gradients, |g| g * &factor)
    }
    None => gradients,
});

around_inner!(ClipValue, self, gradients => map(gradients, |g| {
    let bound = |x: f32| g.tape().constant(x);
    g.minimum(&bound(self.value)).maximum(&bound(-self.value))
}));
