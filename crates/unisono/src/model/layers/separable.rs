//! Convolutions that treat channels apart: depthwise, and depthwise before pointwise.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::Conv2d;
use super::conv2d::{biased, convolution, image};
use super::setters::{kernel_setters, window_setters};
use super::settings::{positive, valid};
use super::size::{Size, WindowData, window};
use crate::model::{Context, Forward, Initializer, Layer};

/// Depthwise convolution: each channel has filters of its own (PyTorch's `Conv2d` with `groups=C`; Keras's
/// `DepthwiseConv2D` with `data_format="channels_first"`).
///
/// Shapes: `[B, C, H, W]` to `[B, C multiplier, H', W']`, with H' and W' as of [`Conv2d`].
///
/// Parameters: `weight` `[C multiplier, 1, kh, kw]` (Default: Glorot uniform), `bias` `[C multiplier]`
/// (Default: zeros).
///
/// Errors: a setting is 0, the input is not a batch of images, or no window fits into it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthwiseConv2d {
    #[serde(with = "WindowData")]
    window: Window,
    multiplier: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

/// Depthwise separable convolution (Chollet 2017; Keras's `SeparableConv2D` with
/// `data_format="channels_first"`): a [`DepthwiseConv2d`] without a bias, then a [`Conv2d`] of 1 x 1 pixels.
///
/// Shapes: `[B, C, H, W]` to `[B, out, H', W']`, with H' and W' as of [`Conv2d`].
///
/// Parameters: `depthwise.weight` `[C multiplier, 1, kh, kw]` and `pointwise.weight` `[out, C multiplier,
/// 1, 1]` (Default: Glorot uniform), `pointwise.bias` `[out]` (Default: zeros).
///
/// Errors: those of [`DepthwiseConv2d`], or there are no channels.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeparableConv2d {
    channels: usize,
    depthwise: DepthwiseConv2d,
    bias: bool,
}

window_setters!(DepthwiseConv2d, Size, "pixels");
kernel_setters!(DepthwiseConv2d);

impl DepthwiseConv2d {
    /// Creates a layer with this kernel size in pixels. By default it has one filter for each channel,
    /// stride 1, no padding, dilation 1 and a bias.
    pub fn new(kernel: impl Into<Size>) -> Self {
        Self { window: window(kernel), multiplier: 1, bias: true, initializer: Initializer::default() }
    }

    /// Sets the number of filters for each channel. Default: 1.
    pub fn multiplier(self, multiplier: usize) -> Self {
        Self { multiplier, ..self }
    }
}

impl SeparableConv2d {
    /// Creates a layer with this number of output channels and this kernel size in pixels. By default it
    /// has one filter for each channel, stride 1, no padding, dilation 1 and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        Self { channels, depthwise: DepthwiseConv2d::new(kernel).no_bias(), bias: true }
    }

    /// Sets the number of depthwise filters for each channel. Default: 1.
    pub fn multiplier(self, multiplier: usize) -> Self {
        Self { depthwise: self.depthwise.multiplier(multiplier), ..self }
    }

    /// Sets the distance from one window to the next, in pixels. Default: 1.
    pub fn stride(self, stride: impl Into<Size>) -> Self {
        Self { depthwise: self.depthwise.stride(stride), ..self }
    }

    /// Sets how many zeros are added on each side of the image. Default: 0.
    pub fn padding(self, padding: impl Into<Size>) -> Self {
        Self { depthwise: self.depthwise.padding(padding), ..self }
    }

    /// Sets the distance between neighbouring elements of a window, in pixels. Default: 1.
    pub fn dilation(self, dilation: impl Into<Size>) -> Self {
        Self { depthwise: self.depthwise.dilation(dilation), ..self }
    }

    /// Omits the bias. Default: the layer has one.
    pub fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }
}

impl Forward for DepthwiseConv2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, h, w]) = image(self.name(), cx, x) else { return x.clone() };
        let Some(filters) = channels.checked_mul(self.multiplier) else {
            cx.fail(self.name(), format!("{} filters for each of {channels} channels", self.multiplier));
            return x.clone();
        };
        let settings = convolution(channels, channels, &self.window);
        let settings = [positive("multiplier", self.multiplier)].into_iter().chain(settings);
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        if let Err(problem) = self.window.count([h, w]) {
            cx.fail(self.name(), problem);
            return x.clone();
        }
        let [kh, kw] = self.window.kernel;
        let weight = cx.kernel("weight", &[filters, 1, kh, kw], 0, self.initializer.clone());
        let y = x.conv2d(&weight, &self.window, channels);
        if self.bias { biased(cx, &y, filters) } else { y }
    }
}

impl Forward for SeparableConv2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if !valid(self.name(), cx, [positive("channels", self.channels)]) {
            return x.clone();
        }
        let inner = cx.apply("depthwise", &self.depthwise, x);
        let pointwise = Conv2d::new(self.channels, 1);
        cx.apply("pointwise", &if self.bias { pointwise } else { pointwise.no_bias() }, &inner)
    }
}
