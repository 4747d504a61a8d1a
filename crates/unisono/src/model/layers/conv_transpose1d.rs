use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv_transpose2d::transposed_length;
use super::conv1d::{along, as_row, from_row, sequence};
use super::conv2d::biased;
use super::setters::convolution_setters;
use super::settings::{Problem, positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Transposed convolution of sequences, which is a convolution's gradient by its input (PyTorch's
/// `ConvTranspose1d`; Keras's `Conv1DTranspose`).
///
/// Shapes: `[B, C, l]` to `[B, out, L]` with L = (l - 1) stride - 2 padding + dilation (kernel - 1) +
/// output_padding + 1.
///
/// Parameters: `weight` `[C, out / groups, kernel]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: a setting is 0 where it cannot be, the output padding is not below the stride, the input is no
/// batch of sequences, the padding leaves nothing of the output, or `groups` does not divide both numbers of
/// channels.
#[doc(alias = "Conv1DTranspose")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose1d {
    channels: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    output_padding: usize,
    dilation: usize,
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

convolution_setters!(ConvTranspose1d);

impl ConvTranspose1d {
    /// Creates a layer with this number of output channels and this kernel size. By default it has stride 1,
    /// no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: usize) -> Self {
        let (stride, dilation, groups, initializer) = (1, 1, 1, Initializer::default());
        Self {
            channels,
            kernel,
            stride,
            padding: 0,
            output_padding: 0,
            dilation,
            groups,
            bias: true,
            initializer,
        }
    }

    /// Sets the distance from one window to the next on the output. Default: 1.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets how many elements are cut off on each side of the output. Default: 0.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Sets how many elements are added at the end of the output. Default: 0. It must be below the stride.
    pub fn output_padding(self, padding: usize) -> Self {
        Self { output_padding: padding, ..self }
    }

    /// Sets the distance between neighbouring elements of a window. Default: 1.
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    fn checks(&self, channels: usize) -> [Problem; 7] {
        let Self { output_padding, stride, groups, .. } = *self;
        let divides = groups > 0 && channels.is_multiple_of(groups) && self.channels.is_multiple_of(groups);
        [
            positive("channels", self.channels),
            positive("kernel", self.kernel),
            positive("stride", stride),
            positive("dilation", self.dilation),
            positive("groups", groups),
            (output_padding >= stride.max(1)).then(|| {
                format!("output_padding is {output_padding}, and must be below the stride {stride}")
            }),
            (!divides)
                .then(|| format!("{channels} and {} channels do not make {groups} groups", self.channels)),
        ]
    }
}

impl Forward for ConvTranspose1d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, length]) = sequence(self.name(), cx, x) else { return x.clone() };
        if !valid(self.name(), cx, self.checks(channels)) {
            return x.clone();
        }
        let sizes = [self.kernel, self.stride, self.dilation, self.padding];
        let Some(to) = transposed_length(length, sizes, self.output_padding) else {
            let problem =
                format!("padding {} of {} leaves nothing, or more than can be counted", self.padding, x.ty());
            cx.fail(self.name(), problem);
            return x.clone();
        };
        let window = along(self.kernel, self.stride, self.padding, self.dilation);
        let dims = [channels, self.channels / self.groups, self.kernel];
        let weight = cx.kernel("weight", &dims, 1, self.initializer.clone());
        let weight = weight.reshape(&[dims[0], dims[1], 1, dims[2]]);
        let y = from_row(&as_row(x).conv_transpose2d(&weight, &window, self.groups, [1, to]));
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}
