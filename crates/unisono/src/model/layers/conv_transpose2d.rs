use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv2d::{biased, image};
use super::size::{Size, WindowData, window};
use crate::{Context, Description, Initializer, Layer};

/// The transpose of a convolution: `[B, C, h, w] -> [B, out, H, W]` with H = (h - 1) stride - 2 padding + dilation (kernel - 1)
/// + output_padding + 1 (PyTorch's `ConvTranspose2d`).
///
/// Parameters: `weight` `[C, out / groups, kh, kw]`, Glorot uniform unless told; `bias` `[out]`, zeros.
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
    /// `channels` outputs from windows of a size, in steps of 1, without a border.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        let (window, initializer) = (window(kernel), Initializer::default());
        Self { channels, window, output_padding: [0, 0], groups: 1, bias: true, initializer }
    }

    /// From one window to the next on the larger image.
    pub fn stride(mut self, stride: impl Into<Size>) -> Self {
        self.window.stride = stride.into().0;
        self
    }

    /// What is cut off on each side of the larger image.
    pub fn padding(mut self, padding: impl Into<Size>) -> Self {
        self.window.padding = padding.into().0;
        self
    }

    /// What is added at the lower and the right side of the larger image; below the stride.
    pub fn output_padding(mut self, padding: impl Into<Size>) -> Self {
        self.output_padding = padding.into().0;
        self
    }

    /// From one element of a window to the next.
    pub fn dilation(mut self, dilation: impl Into<Size>) -> Self {
        self.window.dilation = dilation.into().0;
        self
    }

    /// Cuts the channels into groups that do not see each other.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Without a bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// What the weight starts with.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }

    /// Height or width of the larger image.
    fn along(&self, axis: usize, length: usize) -> Option<usize> {
        let w = &self.window;
        let span = w.dilation[axis] * w.kernel[axis].checked_sub(1)? + 1;
        let whole = length.checked_sub(1)? * w.stride[axis] + span + self.output_padding[axis];
        whole.checked_sub(2 * w.padding[axis]).filter(|&n| n > 0)
    }
}

impl Layer for ConvTranspose2d {
    fn name(&self) -> &str {
        "conv_transpose2d"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::ConvTranspose2d(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, h, w]) = image("conv_transpose2d", cx, x) else { return x.clone() };
        let (Some(height), Some(width)) = (self.along(0, h), self.along(1, w)) else {
            cx.fail(
                "conv_transpose2d",
                format!("padding {:?} leaves nothing of {}", self.window.padding, x.ty()),
            );
            return x.clone();
        };
        if self.groups == 0 || !self.channels.is_multiple_of(self.groups) {
            cx.fail(
                "conv_transpose2d",
                format!("{} channels do not make {} groups", self.channels, self.groups),
            );
            return x.clone();
        }
        let [kh, kw] = self.window.kernel;
        let dims = [channels, self.channels / self.groups, kh, kw];
        let weight = cx.parameter("weight", &dims, self.initializer.clone());
        let y = x.conv_transpose2d(&weight, &self.window, self.groups, [height, width]);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}
