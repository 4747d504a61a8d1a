use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv2d::image;
use super::settings::{positive, valid};
use crate::Conv2d;
use crate::model::{Context, Forward, Layer};

/// Squeeze and excitation (Hu et al. 2018; torchvision's `SqueezeExcitation`): each channel is multiplied by
/// sigmoid(fc2(relu(fc1(mean of each channel)))).
///
/// Shapes: `[B, C, H, W]` to the same.
///
/// Parameters: `fc1.weight` `[S, C, 1, 1]`, `fc1.bias` `[S]`, `fc2.weight` `[C, S, 1, 1]`, `fc2.bias` `[C]`.
///
/// Errors: there are no squeezed channels, the input is not a batch of images.
#[doc(alias = "SqueezeExcitation")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqueezeExcite {
    squeezed: usize,
    silu: bool,
    hard: bool,
}

impl SqueezeExcite {
    /// Creates a layer with S = `squeezed` channels between its two products, such as C / 16.
    pub fn new(squeezed: usize) -> Self {
        Self { squeezed, silu: false, hard: false }
    }

    /// Has silu between the products, as in EfficientNet. Default: relu.
    pub fn silu(self) -> Self {
        Self { silu: true, ..self }
    }

    /// Has a hard sigmoid at the end, as in MobileNetV3. Default: sigmoid.
    pub fn hard_sigmoid(self) -> Self {
        Self { hard: true, ..self }
    }
}

impl Forward for SqueezeExcite {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, ..]) = image(self.name(), cx, x) else { return x.clone() };
        if !valid(self.name(), cx, [positive("squeezed", self.squeezed)]) {
            return x.clone();
        }
        let mean = x.mean(&[-2, -1]).reshape(&[channels, 1, 1]);
        let squeezed = cx.apply("fc1", &Conv2d::new(self.squeezed, 1), &mean);
        let squeezed = if self.silu { squeezed.silu() } else { squeezed.relu() };
        let scale = cx.apply("fc2", &Conv2d::new(channels, 1), &squeezed);
        x * if self.hard { scale.hard_sigmoid() } else { scale.sigmoid() }
    }
}
