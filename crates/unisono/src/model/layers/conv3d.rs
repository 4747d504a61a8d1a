//! Convolutions of volumes, and their transpose.

use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::conv_transpose2d::transposed_length;
use super::conv2d::{biased, divides};
use super::functional::{Window3, conv_transpose3d, conv3d};
use super::setters::{convolution_setters, window_setters};
use super::settings::{Problem, output_padding, positive, valid, window3};
use super::size::Size3;
use crate::model::{Context, Forward, Initializer, Layer};

/// Three-dimensional convolution (PyTorch's `Conv3d`; Keras's `Conv3D` with
/// `data_format="channels_first"`), for volumes such as scans and for films.
///
/// Shapes: `[B, C, D, H, W]` to `[B, out, D', H', W']` with D' = (D + 2 padding - dilation (kernel - 1) - 1)
/// / stride + 1, rounded down, and H' and W' likewise. It takes memory for the windows along the depth, `kd`
/// times that of the input.
///
/// Parameters: `weight` `[out, C / groups, kd, kh, kw]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: the number of output channels, the kernel size, the stride, the dilation or `groups` is 0; the
/// input is not a batch of volumes; no window fits into it; or `groups` does not divide both numbers of
/// channels.
///
/// ```
/// use unisono::{Conv3d, GlobalAvgPool3d, MaxPool3d, Relu, Sequential};
///
/// let scan = Sequential::new().add(Conv3d::new(8, 3).padding(1)).add(Relu).add(MaxPool3d::new(2));
/// let model = scan.add(Conv3d::new(16, [1, 3, 3])).add(Relu).add(GlobalAvgPool3d);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv3d {
    channels: usize,
    window: Window3,
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

/// The transpose of a three-dimensional convolution (PyTorch's `ConvTranspose3d`; Keras's
/// `Conv3DTranspose` with `data_format="channels_first"`).
///
/// Shapes: `[B, C, D, H, W]` to `[B, out, D', H', W']` with D' = (D - 1) stride - 2 padding + dilation
/// (kernel - 1) + output padding + 1, and H' and W' likewise.
///
/// Parameters: `weight` `[C, out / groups, kd, kh, kw]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: a setting is 0, the input is not a batch of volumes, nothing is left of it, the output padding is
/// not below the stride, or `groups` does not divide both numbers of channels.
#[doc(alias = "Conv3DTranspose")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose3d {
    channels: usize,
    window: Window3,
    output_padding: [usize; 3],
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

/// The most voxels of an output, which is also the most elements of a value.
const MOST: usize = 1 << 48;

macro_rules! volumes {
    ($layer:ident) => {
        window_setters!($layer, Size3, "voxels");
        convolution_setters!($layer);

        impl $layer {
            /// Returns channels and volume of the input if the settings can work with it.
            fn input(&self, cx: &Context, x: &Var, more: Problem) -> Option<(usize, [usize; 3])> {
                let (channels, volume) = volume(self.name(), cx, x)?;
                let numbers = [positive("channels", self.channels), positive("groups", self.groups), more];
                let settings = window3(&self.window).into_iter().chain(numbers);
                if !valid(self.name(), cx, settings) {
                    return None;
                }
                let fits = divides(self.name(), cx, self.groups, [channels, self.channels]);
                fits.then_some((channels, volume))
            }
        }
    };
}

volumes!(Conv3d);
volumes!(ConvTranspose3d);

impl Conv3d {
    /// Creates a layer with this number of output channels and this kernel size in voxels. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size3>) -> Self {
        let window = Window3::new(kernel.into().0);
        Self { channels, window, groups: 1, bias: true, initializer: Initializer::default() }
    }
}

impl ConvTranspose3d {
    /// Creates a layer with this number of output channels and this kernel size in voxels. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size3>) -> Self {
        Self {
            channels,
            window: Window3::new(kernel.into().0),
            output_padding: [0; 3],
            groups: 1,
            bias: true,
            initializer: Initializer::default(),
        }
    }

    /// Sets how many voxels are added at the end of each axis of the output. Default: 0. It must be below the
    /// stride.
    pub fn output_padding(self, padding: impl Into<Size3>) -> Self {
        Self { output_padding: padding.into().0, ..self }
    }

    /// Returns the output's length along an axis, as [`transposed_length`] does.
    fn along(&self, axis: usize, length: usize) -> Option<usize> {
        let Window3 { kernel, stride, dilation, padding } = &self.window;
        let window = [kernel, stride, dilation, padding].map(|sizes| sizes[axis]);
        transposed_length(length, window, self.output_padding[axis])
    }
}

impl Forward for Conv3d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some((channels, volume)) = self.input(cx, x, None) else { return x.clone() };
        if let Err(problem) = self.window.count(volume) {
            cx.fail(self.name(), problem);
            return x.clone();
        }
        let dims = [&[self.channels, channels / self.groups], &self.window.kernel[..]].concat();
        let weight = cx.kernel("weight", &dims, 0, self.initializer.clone());
        let y = conv3d(x, &weight, &self.window, self.groups);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}

impl Forward for ConvTranspose3d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let problem = output_padding(self.output_padding, self.window.stride);
        let Some((channels, [d, h, w])) = self.input(cx, x, problem) else { return x.clone() };
        let to = [self.along(0, d), self.along(1, h), self.along(2, w)];
        let voxels = to.iter().try_fold(1usize, |all, length| all.checked_mul((*length)?));
        let ([Some(depth), Some(height), Some(width)], Some(0..=MOST)) = (to, voxels) else {
            let problem =
                format!("{:?} of {} leaves nothing, or more than can be counted", self.window, x.ty());
            cx.fail(self.name(), problem);
            return x.clone();
        };
        let dims = [&[channels, self.channels / self.groups], &self.window.kernel[..]].concat();
        let weight = cx.kernel("weight", &dims, 1, self.initializer.clone());
        let y = conv_transpose3d(x, &weight, &self.window, self.groups, [depth, height, width]);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}

/// Returns the channels and the volume of `[B, C, D, H, W]`. Anything else is an error of the layer.
pub(super) fn volume(layer: &str, cx: &Context, x: &Var) -> Option<(usize, [usize; 3])> {
    match (x.dims(), x.ty().lead) {
        (&[channels, depth, height, width], Lead::Sample) => Some((channels, [depth, height, width])),
        _ => {
            cx.fail(layer, format!("needs volumes [B, channels, depth, height, width], got {}", x.ty()));
            None
        }
    }
}
