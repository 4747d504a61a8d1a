use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::functional::{stack, unstack};
use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Layer};

/// The most steps. Each is traced on its own, so that many more would not end.
const MOST: usize = 1024;

/// A layer that is applied to each step of a sequence with the same weights, such as a convolution to each
/// frame of a film or to each of several views (Keras's `TimeDistributed`).
///
/// Steps are traced one after another. Layers for features, such as [`Dense`](crate::Dense), take sequences
/// as they are and need no wrapper. A recurrent layer that is not stateful is computed for all steps at once.
/// Dropout inside draws for each step, and a batch norm inside normalises and averages step by step.
///
/// Shapes: `[B, T, ...]` to `[B, T, ...]`; the inner layer takes `[B, ...]`. Parameters: those of the inner
/// layer are `inner.*`.
///
/// Errors: the input has no steps or more than 1,024.
///
/// ```
/// use unisono::{Conv2d, Flatten, Lstm, Sequential, TimeDistributed};
///
/// let frame = Sequential::new().add(Conv2d::new(8, 3).stride(2)).add(Flatten);
/// let film = Sequential::new().add(TimeDistributed::new(frame)).add(Lstm::new(32).last());
/// ```
pub struct TimeDistributed {
    inner: Box<dyn Layer>,
}

/// The description of a [`TimeDistributed`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct TimeDistributedDescription {
    /// The inner layer.
    pub inner: Box<Description>,
}

impl TimeDistributed {
    /// Creates a layer that applies `inner` to each step.
    pub fn new(inner: impl Layer + 'static) -> Self {
        Self { inner: Box::new(inner) }
    }
}

impl TimeDistributed {
    /// Returns whether the inner layer takes `[B, T, ...]` as it is, and does the same for each of the steps.
    fn is_for_all_steps(&self) -> bool {
        match self.inner.description() {
            Some(Description::Lstm(layer)) => !layer.is_stateful(),
            Some(Description::Gru(layer)) => !layer.is_stateful(),
            Some(Description::SimpleRnn(layer)) => !layer.is_stateful(),
            _ => false,
        }
    }
}

impl Forward for TimeDistributed {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let steps = x.dims().first().copied().unwrap_or_default();
        if x.ty().lead != Lead::Sample || !(1..=MOST).contains(&steps) {
            cx.fail(self.name(), format!("needs [B, steps, ...] of 1 to {MOST} steps, got {}", x.ty()));
            return x.clone();
        }
        if x.dims().len() > 2 && self.is_for_all_steps() {
            return cx.apply("inner", &self.inner, x);
        }
        let tape = cx.tape().clone();
        let each = tape.unrolled(|| {
            unstack(x).iter().map(|step| cx.apply("inner", &self.inner, step)).collect::<Vec<_>>()
        });
        stack(&each).unwrap_or_else(|| x.clone())
    }
}

impl Describe<TimeDistributedDescription> for TimeDistributed {
    fn settings(&self) -> Option<TimeDistributedDescription> {
        Some(TimeDistributedDescription { inner: Box::new(self.inner.description()?) })
    }
}

impl From<TimeDistributedDescription> for TimeDistributed {
    fn from(settings: TimeDistributedDescription) -> Self {
        Self { inner: settings.inner.layer() }
    }
}
