use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;
use unisono_graph::{Lead, Var};

use super::setters::{convolution_setters, window_setters};
use super::settings::{self, Problem, positive, valid};
use super::size::{Size, WindowData, window};
use crate::model::{Context, Forward, Initializer, Layer};

/// Two-dimensional convolution (LeCun et al. 1989; PyTorch's `Conv2d`; Keras's `Conv2D` with
/// `data_format="channels_first"`).
///
/// Shapes: `[B, C, H, W]` to `[B, out, H', W']` with H' = (H + 2 padding - dilation (kernel - 1) - 1) /
/// stride + 1, rounded down, and W' likewise. Sources of pictures have the channels last, `[B, H, W, C]`:
/// [`channels_first`](crate::data::channels_first) moves them. A model without it trains too, but takes rows
/// for channels.
///
/// Parameters: `weight` `[out, C / groups, kh, kw]` (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: the number of output channels, the kernel size, the stride, the dilation or `groups` is 0; the
/// input is not a batch of images; no window fits into it; or `groups` does not divide both numbers of
/// channels.
///
/// ```
/// use unisono::{Conv2d, MaxPool2d, Relu, Sequential};
///
/// let stem = Sequential::new().add(Conv2d::new(32, 3).padding(1)).add(Relu).add(MaxPool2d::new(2));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    channels: usize,
    #[serde(with = "WindowData")]
    window: Window,
    groups: usize,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

window_setters!(Conv2d, Size, "pixels");
convolution_setters!(Conv2d);

impl Conv2d {
    /// Creates a layer with this number of output channels and this kernel size in pixels. By default it has
    /// stride 1, no padding, dilation 1, one group and a bias.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        Self { channels, window: window(kernel), groups: 1, bias: true, initializer: Initializer::default() }
    }
}

impl Forward for Conv2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, h, w]) = image(self.name(), cx, x) else { return x.clone() };
        if !valid(self.name(), cx, convolution(self.channels, self.groups, &self.window)) {
            return x.clone();
        }
        if let Err(problem) = self.window.count([h, w]) {
            cx.fail(self.name(), problem);
            return x.clone();
        }
        let [kh, kw] = self.window.kernel;
        if !divides(self.name(), cx, self.groups, [channels, self.channels]) {
            return x.clone();
        }
        let dims = [self.channels, channels / self.groups, kh, kw];
        let weight = cx.kernel("weight", &dims, 0, self.initializer.clone());
        let y = x.conv2d(&weight, &self.window, self.groups);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}

/// Checks the settings that both kinds of convolution have.
pub(super) fn convolution(channels: usize, groups: usize, window: &Window) -> [Problem; 5] {
    let [kernel, stride, dilation] = settings::window(window);
    [positive("channels", channels), positive("groups", groups), kernel, stride, dilation]
}

/// Returns whether groups divide the channels of the input and of the output. Anything else is an error of
/// the layer.
pub(super) fn divides(layer: &str, cx: &Context, groups: usize, channels: [usize; 2]) -> bool {
    let wrong = channels.into_iter().find(|channels| !channels.is_multiple_of(groups));
    if let Some(channels) = wrong {
        cx.fail(layer, format!("{channels} channels do not fit in {groups} groups"));
    }
    wrong.is_none()
}

/// Returns channels, height and width of `[B, C, H, W]`. Anything else is an error of the layer.
pub(super) fn image(layer: &str, cx: &Context, x: &Var) -> Option<[usize; 3]> {
    match (x.dims().try_into(), x.ty().lead) {
        (Ok(dims), Lead::Sample) => Some(dims),
        _ => {
            cx.fail(layer, format!("needs images [B, channels, height, width], got {}", x.ty()));
            None
        }
    }
}

/// Adds the parameter `bias`, one number for each channel, to `[B, C, ...]`.
pub(super) fn biased(cx: &mut Context, y: &Var, channels: usize) -> Var {
    let dims: Vec<usize> = std::iter::once(channels).chain(y.dims().iter().skip(1).map(|_| 1)).collect();
    y + cx.parameter("bias", &[channels], Initializer::Zeros).reshape(&dims)
}
