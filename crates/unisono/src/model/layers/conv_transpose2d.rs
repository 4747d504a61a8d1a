use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv2d::{biased, convolution, image};
use super::setters::{convolution_setters, window_setters};
use super::settings::{output_padding, valid};
use super::size::{Size, WindowData, window};
use crate::model::{Context, Forward, Initializer, Layer};

/// Transposed convolution, which is a convolution's gradient by its image (Zeiler et al. 2010; PyTorch's
/// `ConvTranspose2d`).
///
/// Shapes: `[B, C, h, w]` to `[B, out, H, W]` with H = (h - 1) stride - 2 padding + dilation (kernel - 1) +
/// output_padding + 1, and W likewise.
///
/// Parameters: `weight` `[C, out / groups, kh, kw]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: a setting is 0 where it cannot be, the output padding is not below the stride, the input is no
/// batch of images, the padding leaves nothing of the output, or `groups` does not divide both numbers of
/// channels.
#[doc(alias = "Conv2DTranspose")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose2d {
    channels: usize,
    #[serde(with = "WindowData")]
    window: Window,
    output_padding: [usize; 2],
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

window_setters!(ConvTranspose2d, Size, "pixels");
convolution_setters!(ConvTranspose2d);

impl ConvTranspose2d {
    /// Creates a layer with this number of output channels and this kernel size in pixels. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        let (window, initializer) = (window(kernel), Initializer::default());
        Self { channels, window, output_padding: [0, 0], groups: 1, bias: true, initializer }
    }

    /// Sets how many pixels are added at the lower and the right side of the output. Default: 0. It must be
    /// below the stride.
    pub fn output_padding(self, padding: impl Into<Size>) -> Self {
        Self { output_padding: padding.into().0, ..self }
    }

    /// Returns the output's length along an axis (0: height, 1: width), as [`transposed_length`] does.
    fn along(&self, axis: usize, length: usize) -> Option<usize> {
        let Window { kernel, stride, dilation, padding } = &self.window;
        let window = [kernel, stride, dilation, padding].map(|sizes| sizes[axis]);
        transposed_length(length, window, self.output_padding[axis])
    }
}

/// Returns the length of a transposed convolution's output along an axis, or `None` where nothing would be
/// left or the length cannot be counted. `extra` is the output padding.
pub(super) fn transposed_length(
    length: usize,
    [kernel, stride, dilation, padding]: [usize; 4],
    extra: usize,
) -> Option<usize> {
    let span = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
    let starts = length.checked_sub(1)?.checked_mul(stride)?;
    let whole = starts.checked_add(span)?.checked_add(extra)?;
    whole.checked_sub(padding.checked_mul(2)?).filter(|&n| n > 0)
}

impl Forward for ConvTranspose2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, h, w]) = image(self.name(), cx, x) else { return x.clone() };
        let settings = convolution(self.channels, self.groups, &self.window).into_iter();
        let settings = settings.chain([output_padding(self.output_padding, self.window.stride)]);
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        let (Some(height), Some(width)) = (self.along(0, h), self.along(1, w)) else {
            let problem =
                format!("{:?} of {} leaves nothing, or more than can be counted", self.window, x.ty());
            cx.fail(self.name(), problem);
            return x.clone();
        };
        if !self.channels.is_multiple_of(self.groups) {
            cx.fail(self.name(), format!("{} channels do not make {} groups", self.channels, self.groups));
            return x.clone();
        }
        let [kh, kw] = self.window.kernel;
        let dims = [channels, self.channels / self.groups, kh, kw];
        let weight = cx.kernel("weight", &dims, 1, self.initializer.clone());
        let y = x.conv_transpose2d(&weight, &self.window, self.groups, [height, width]);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}
