use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{finite, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// y = x where x > 0, else weight x, elementwise, with a slope that is learned (He et al. 2015; PyTorch's
/// `PReLU`).
///
/// Shapes: `[B, ...]` to the same.
///
/// Parameters: `weight` `[1]`, or `[C]` if it is [`per_channel`](Self::per_channel) (Default: 0.25).
///
/// Errors: the slope is not finite, or an input without an axis of channels needs one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PRelu {
    slope: f32,
    channels: bool,
}

impl PRelu {
    /// Creates a layer with one slope for all channels, which starts as 0.25.
    pub fn new() -> Self {
        Self { slope: 0.25, channels: false }
    }

    /// Sets what slopes start with. Default: 0.25 (Keras's is 0).
    pub fn slope(self, slope: f32) -> Self {
        Self { slope, ..self }
    }

    /// Gives each channel, the first axis of a sample, a slope of its own (PyTorch's `num_parameters=C`).
    /// Default: there is one for all.
    pub fn per_channel(self) -> Self {
        Self { channels: true, ..self }
    }
}

impl Default for PRelu {
    fn default() -> Self {
        Self::new()
    }
}

impl Forward for PRelu {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if !valid(self.name(), cx, [finite("slope", self.slope)]) {
            return x.clone();
        }
        let start = Initializer::Constant(self.slope);
        let slope = match x.dims().split_first() {
            Some((&channels, pixels)) if self.channels => {
                let dims: Vec<usize> = [channels].into_iter().chain(pixels.iter().map(|_| 1)).collect();
                cx.parameter("weight", &[channels], start).reshape(&dims)
            }
            None if self.channels => {
                cx.fail(self.name(), format!("needs samples with an axis of channels, got {}", x.ty()));
                return x.clone();
            }
            _ => cx.parameter("weight", &[1], start).reshape(&[]),
        };
        x.greater(&cx.tape().constant(0.0)).select(x, &(x * slope))
    }
}
