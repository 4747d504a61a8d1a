use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv2d::{biased, image};
use super::size::{Size, WindowData, window};
use crate::model::{Context, Forward, Initializer, Layer};

/// Transposed convolution, which is a convolution's gradient by its image (Zeiler et al. 2010; PyTorch's
/// `ConvTranspose2d`).
///
/// Shapes: `[B, C, h, w]` to `[B, out, H, W]` with
/// H = (h - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1, and W alike.
///
/// Parameters: `weight` `[C, out / groups, kh, kw]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: the input is no batch of images, the padding leaves nothing of the output, or `groups` does not
/// divide both numbers of channels.
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

impl ConvTranspose2d {
    /// Creates a layer with this number of output channels and this kernel size in pixels. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        let (window, initializer) = (window(kernel), Initializer::default());
        Self { channels, window, output_padding: [0, 0], groups: 1, bias: true, initializer }
    }

    /// Sets the distance from one window to the next on the output, in pixels. Default: 1.
    pub fn stride(mut self, stride: impl Into<Size>) -> Self {
        self.window.stride = stride.into().0;
        self
    }

    /// Sets how many pixels are cut off on each side of the output. Default: 0.
    pub fn padding(mut self, padding: impl Into<Size>) -> Self {
        self.window.padding = padding.into().0;
        self
    }

    /// Sets how many pixels are added at the lower and the right side of the output. Default: 0. It must be
    /// below the stride.
    pub fn output_padding(mut self, padding: impl Into<Size>) -> Self {
        self.output_padding = padding.into().0;
        self
    }

    /// Sets the distance between neighbouring elements of a window, in pixels. Default: 1.
    pub fn dilation(mut self, dilation: impl Into<Size>) -> Self {
        self.window.dilation = dilation.into().0;
        self
    }

    /// Sets the number of groups that input and output channels are cut into; each group of outputs is
    /// computed from its own group of inputs. Default: 1.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Leaves the bias out. Default: there is one.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Sets what the weight starts with. Default: Glorot uniform.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }

    /// Returns the output's length along an axis (0: height, 1: width), or `None` where nothing would be
    /// left.
    fn along(&self, axis: usize, length: usize) -> Option<usize> {
        let w = &self.window;
        let span = w.dilation[axis] * w.kernel[axis].checked_sub(1)? + 1;
        let whole = length.checked_sub(1)? * w.stride[axis] + span + self.output_padding[axis];
        whole.checked_sub(2 * w.padding[axis]).filter(|&n| n > 0)
    }
}

impl Forward for ConvTranspose2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, h, w]) = image(self.name(), cx, x) else { return x.clone() };
        let (Some(height), Some(width)) = (self.along(0, h), self.along(1, w)) else {
            cx.fail(self.name(), format!("padding {:?} leaves nothing of {}", self.window.padding, x.ty()));
            return x.clone();
        };
        if self.groups == 0 || !self.channels.is_multiple_of(self.groups) {
            cx.fail(self.name(), format!("{} channels do not make {} groups", self.channels, self.groups));
            return x.clone();
        }
        let [kh, kw] = self.window.kernel;
        let dims = [channels, self.channels / self.groups, kh, kw];
        let weight = cx.parameter("weight", &dims, self.initializer.clone());
        let y = x.conv_transpose2d(&weight, &self.window, self.groups, [height, width]);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}
