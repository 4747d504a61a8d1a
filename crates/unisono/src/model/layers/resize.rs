//! Images of any other size. The layer has no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv2d::image;
use super::functional::{Interpolation, resize2d};
use super::resample::sides;
use super::settings::{Problem, valid};
use super::size::Size;
use crate::model::{Context, Forward, Layer};

/// Images of another size (PyTorch's `interpolate` and `Upsample` without `antialias`; with
/// [`bilinear`](Self::bilinear) also Keras's `Resizing` with `data_format="channels_first"`, which chooses
/// other nearest pixels). Each pixel is that of its place in the input, or lies between neighbours with
/// [`bilinear`](Self::bilinear) or [`bicubic`](Self::bicubic).
///
/// It is two products with matrices of the sizes, so that a side takes old x new multiplications.
/// [`Upsample2d`](crate::Upsample2d) is faster for whole factors.
///
/// Shapes: `[B, C, h, w]` to `[B, C, H, W]`. It has no parameters.
///
/// Errors: a side of the result is 0 or above 1,024, a factor is not finite, the input is not a batch of
/// images.
#[doc(alias("interpolate", "Resizing"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize2d {
    to: To,
    interpolation: Interpolation,
    align_corners: bool,
}

/// The size of the result.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum To {
    Size([usize; 2]),
    Factor([f32; 2]),
}

impl Resize2d {
    /// Creates a layer whose images have this size. By default, each pixel is the nearest one.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { to: To::Size(size.into().0), interpolation: Interpolation::Nearest, align_corners: false }
    }

    /// Creates a layer that multiplies height and width by factors; the result is rounded down (PyTorch's
    /// `scale_factor` with `recompute_scale_factor=True`).
    pub fn by(factor: [f32; 2]) -> Self {
        Self { to: To::Factor(factor), ..Self::new(1) }
    }

    /// Interpolates linearly between the four nearest pixels. Default: the nearest one is taken.
    pub fn bilinear(self) -> Self {
        Self { interpolation: Interpolation::Bilinear, ..self }
    }

    /// Interpolates by cubic polynomials through sixteen pixels (Keys 1981, with a = -3/4 as in PyTorch).
    /// Default: the nearest one is taken.
    pub fn bicubic(self) -> Self {
        Self { interpolation: Interpolation::Bicubic, ..self }
    }

    /// Aligns the centres of the corner pixels of input and output (PyTorch's `align_corners=True`). It has
    /// an effect only with [`bilinear`](Self::bilinear) or [`bicubic`](Self::bicubic). Default: the outer
    /// edges of the images are aligned.
    pub fn align_corners(self) -> Self {
        Self { align_corners: true, ..self }
    }

    /// Returns the size of the result for images of a height and width.
    fn size(&self, from: [usize; 2]) -> [usize; 2] {
        match self.to {
            To::Size(size) => size,
            To::Factor(factor) => [0, 1].map(|axis| (from[axis] as f64 * decimal(factor[axis])) as usize),
        }
    }

    fn factor_problem(&self) -> Problem {
        match self.to {
            To::Factor(factor) if !factor.iter().all(|x| x.is_finite()) => {
                Some(format!("factor is {factor:?}, and must be finite"))
            }
            _ => None,
        }
    }
}

/// Returns the shortest decimal number that reads back as this factor. 0.7 as an f32 is less than 0.7, so 10
/// pixels would otherwise become 6.
fn decimal(factor: f32) -> f64 {
    factor.to_string().parse().unwrap_or(f64::from(factor))
}

impl Forward for Resize2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([_, height, width]) = image(self.name(), cx, x) else { return x.clone() };
        let size = self.size([height, width]);
        if !valid(self.name(), cx, [self.factor_problem(), sides("size", size)]) {
            return x.clone();
        }
        resize2d(x, size, self.interpolation, self.align_corners)
    }
}
