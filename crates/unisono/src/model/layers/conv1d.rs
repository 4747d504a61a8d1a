use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;
use unisono_graph::{Lead, Var};

use super::conv2d::{biased, divides};
use super::setters::convolution_setters;
use super::settings::{Problem, positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// One-dimensional convolution (PyTorch's `Conv1d`; Keras's `Conv1D` with `data_format="channels_first"`).
///
/// Shapes: `[B, C, L]` to `[B, out, L']` with L' = (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1,
/// rounded down.
///
/// Parameters: `weight` `[out, C / groups, kernel]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: the number of output channels, the kernel size, the stride, the dilation or `groups` is 0; the
/// input is not a batch of sequences with channels; no window fits into it; or `groups` does not divide both
/// numbers of channels.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv1d {
    channels: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    causal: bool,
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

convolution_setters!(Conv1d);

impl Conv1d {
    /// Creates a layer with this number of output channels and this kernel size in steps. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: usize) -> Self {
        Self {
            channels,
            kernel,
            stride: 1,
            padding: 0,
            dilation: 1,
            causal: false,
            groups: 1,
            bias: true,
            initializer: Initializer::default(),
        }
    }

    /// Sets the distance from one window to the next, in steps. Default: 1.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets how many zeros are added at each end of the sequence. Default: 0.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Sets the distance between neighbouring elements of a window, in steps. Default: 1.
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// Adds dilation (kernel - 1) zeros before the sequence, so that no output depends on later steps
    /// (Keras's `padding="causal"`). Default: none are added.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    fn checks(&self) -> [Problem; 5] {
        [
            positive("channels", self.channels),
            positive("kernel", self.kernel),
            positive("stride", self.stride),
            positive("dilation", self.dilation),
            positive("groups", self.groups),
        ]
    }
}

impl Forward for Conv1d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, length]) = sequence(self.name(), cx, x) else { return x.clone() };
        if !valid(self.name(), cx, self.checks()) {
            return x.clone();
        }
        let window = along(self.kernel, self.stride, self.padding, self.dilation);
        let before = if self.causal { self.dilation.saturating_mul(self.kernel - 1) } else { 0 };
        let fits = match length.checked_add(before).filter(|&length| length < 1 << 48) {
            Some(length) => window.count([1, length]).map(|_| ()),
            None => Err(format!("{before} zeros before the sequence are too many")),
        };
        if let Err(problem) = fits {
            cx.fail(self.name(), problem);
            return x.clone();
        }
        let padded = if before > 0 { x.pad(&[0, before], &[0, 0]) } else { x.clone() };
        let row = as_row(&padded);
        if !divides(self.name(), cx, self.groups, [channels, self.channels]) {
            return x.clone();
        }
        let dims = [self.channels, channels / self.groups, self.kernel];
        let weight = cx.kernel("weight", &dims, 0, self.initializer.clone());
        let y = row.conv2d(&weight.reshape(&[dims[0], dims[1], 1, dims[2]]), &window, self.groups);
        let y = from_row(&y);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}

/// Returns channels and length of `[B, C, L]`. Anything else is an error of the layer.
pub(super) fn sequence(layer: &str, cx: &Context, x: &Var) -> Option<[usize; 2]> {
    match (x.dims().try_into(), x.ty().lead) {
        (Ok(dims), Lead::Sample) => Some(dims),
        _ => {
            cx.fail(layer, format!("needs sequences [B, channels, length], got {}", x.ty()));
            None
        }
    }
}

/// Returns windows along the second axis of images of one row.
pub(super) fn along(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
    Window { kernel: [1, kernel], stride: [1, stride], dilation: [1, dilation], padding: [0, padding] }
}

/// Returns sequences `[B, C, L]` as images of one row, `[B, C, 1, L]`.
pub(super) fn as_row(x: &Var) -> Var {
    let dims = x.dims();
    x.reshape(&[dims[0], 1, dims[1]])
}

/// Returns images of one row, `[B, C, 1, L]`, as sequences `[B, C, L]`.
pub(super) fn from_row(x: &Var) -> Var {
    match *x.dims() {
        [channels, 1, length] => x.reshape(&[channels, length]),
        _ => x.clone(),
    }
}
