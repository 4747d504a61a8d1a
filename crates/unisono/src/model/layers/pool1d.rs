//! Pooling along sequences. The layers have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv1d::{along, as_row, from_row, sequence};
use super::pool::fits;
use super::setters::global_pool;
use crate::model::{Context, Forward, Layer};

/// Max pooling along sequences: the largest value of each window (PyTorch's `MaxPool1d`; Keras's
/// `MaxPooling1D` with `data_format="channels_first"`). Equal largest values share the gradient, as in
/// [`MaxPool2d`](super::MaxPool2d).
///
/// Shapes: `[B, C, L]` to `[B, C, L']` with L' = (L + 2 padding - kernel) / stride + 1, rounded down. It
/// has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of sequences with channels, no window
/// fits into it, or the padding is above half of the kernel size.
#[doc(alias = "MaxPooling1D")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPool1d {
    kernel: usize,
    stride: usize,
    padding: usize,
}

/// Average pooling along sequences: the mean of each window, in which the padding does not count (Keras's
/// `AveragePooling1D`; PyTorch's `AvgPool1d` with `count_include_pad=False`).
///
/// Shapes: `[B, C, L]` to `[B, C, L']` with L' = (L + 2 padding - kernel) / stride + 1, rounded down. It
/// has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of sequences with channels, no window
/// fits into it, or the padding is above half of the kernel size.
#[doc(alias = "AveragePooling1D")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPool1d {
    kernel: usize,
    stride: usize,
    padding: usize,
    border: bool,
}

/// Global average pooling along sequences: the mean of each channel (Keras's `GlobalAveragePooling1D` with
/// `data_format="channels_first"`).
///
/// Shapes: `[B, C, L]` to `[B, C]`. It has no parameters. Errors: the input is not a batch of sequences with
/// channels.
#[doc(alias = "GlobalAveragePooling1D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalAvgPool1d;

/// Global max pooling along sequences: the largest value of each channel (Keras's `GlobalMaxPooling1D` with
/// `data_format="channels_first"`). Equal largest values share the gradient, as in
/// [`MaxPool2d`](super::MaxPool2d).
///
/// Shapes: `[B, C, L]` to `[B, C]`. It has no parameters. Errors: the input is not a batch of sequences with
/// channels.
#[doc(alias = "GlobalMaxPooling1D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalMaxPool1d;

macro_rules! builder {
    ($layer:ident) => {
        impl $layer {
            /// Sets the distance from one window to the next, in steps. Default: the kernel size.
            pub fn stride(mut self, stride: usize) -> Self {
                self.stride = stride;
                self
            }

            /// Sets how many steps are added at each end of the sequence. Default: 0.
            pub fn padding(mut self, padding: usize) -> Self {
                self.padding = padding;
                self
            }

            fn window(&self) -> Window {
                along(self.kernel, self.stride, self.padding, 1)
            }
        }
    };
}

builder!(MaxPool1d);
builder!(AvgPool1d);

impl MaxPool1d {
    /// Creates a layer with this kernel size in steps. By default the stride is the kernel size, and there
    /// is no padding.
    pub fn new(kernel: usize) -> Self {
        Self { kernel, stride: kernel, padding: 0 }
    }
}

impl AvgPool1d {
    /// Creates a layer with this kernel size in steps. By default the stride is the kernel size, and there
    /// is no padding.
    pub fn new(kernel: usize) -> Self {
        Self { kernel, stride: kernel, padding: 0, border: false }
    }

    /// Counts the padding as zeros in the mean (PyTorch's default). Default: the mean is that of the
    /// sequence's steps only.
    pub fn count_include_pad(self) -> Self {
        Self { border: true, ..self }
    }
}

/// Applies `pool` to sequences as images of one row, if windows fit into them.
fn pooled(layer: &str, cx: &Context, window: &Window, x: &Var, pool: impl Fn(&Var) -> Var) -> Var {
    if sequence(layer, cx, x).is_none() {
        return x.clone();
    }
    let row = as_row(x);
    if fits(layer, cx, window, &row) { from_row(&pool(&row)) } else { x.clone() }
}

impl Forward for MaxPool1d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let window = self.window();
        pooled(self.name(), cx, &window, x, |row| row.max_pool2d(&window))
    }
}

impl Forward for AvgPool1d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let window = self.window();
        pooled(self.name(), cx, &window, x, |row| {
            if self.border { row.windows(&window, 0.0).mean(&[-2, -1]) } else { row.avg_pool2d(&window) }
        })
    }
}

global_pool!(GlobalAvgPool1d, sequence, mean, [-1]);
global_pool!(GlobalMaxPool1d, sequence, max, [-1]);
