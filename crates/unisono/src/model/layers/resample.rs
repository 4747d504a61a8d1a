//! Images of larger sizes. The layer has no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv2d::image;
use super::functional::{upsample_bilinear, upsample_nearest};
use super::settings::{Problem, valid};
use super::size::Size;
use crate::model::{Context, Forward, Layer};

/// Upsampling of images by whole factors (PyTorch's `Upsample(scale_factor=..)`; Keras's `UpSampling2D` with
/// `data_format="channels_first"`): each pixel is repeated. With [`bilinear`](Self::bilinear), pixels lie in
/// between (PyTorch's `mode="bilinear", align_corners=False`).
///
/// Shapes: `[B, C, H, W]` to `[B, C, H factor, W factor]`. It has no parameters.
///
/// Errors: a factor is 0 or above 1,024, the input is not a batch of images.
#[doc(alias = "UpSampling2D")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upsample2d {
    factor: [usize; 2],
    bilinear: bool,
}

impl Upsample2d {
    /// Creates a layer that repeats each pixel by these factors.
    pub fn new(factor: impl Into<Size>) -> Self {
        Self { factor: factor.into().0, bilinear: false }
    }

    /// Interpolates between the pixels' centres. Default: each pixel is repeated.
    pub fn bilinear(self) -> Self {
        Self { bilinear: true, ..self }
    }
}

/// The most of a factor, or of a side of what an adaptive pool gives. Each position is traced on its own, so
/// that many more would not end.
const MOST: usize = 1024;

/// Checks a height and a width, which must be at least 1 and at most [`MOST`].
pub(super) fn sides(setting: &str, [height, width]: [usize; 2]) -> Problem {
    let works = |side: usize| (1..=MOST).contains(&side);
    (!works(height) || !works(width))
        .then(|| format!("{setting} is {height} x {width}, and must be from 1 x 1 to {MOST} x {MOST}"))
}

impl Forward for Upsample2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if image(self.name(), cx, x).is_none() || !valid(self.name(), cx, [sides("factor", self.factor)]) {
            return x.clone();
        }
        if self.bilinear { upsample_bilinear(x, self.factor) } else { upsample_nearest(x, self.factor) }
    }
}
