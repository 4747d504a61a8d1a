use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;
use unisono_graph::{Lead, Var};

use super::size::{Size, WindowData, window};
use crate::{Context, Description, Initializer, Layer};

/// Two-dimensional convolution: `[B, C, H, W] -> [B, out, down, across]` (PyTorch's `Conv2d`; Keras's `Conv2D` with
/// `data_format="channels_first"`).
///
/// Sources of pictures have the channels last, `[B, H, W, C]`: [`channels_first`](crate::data::channels_first) turns them. Without
/// it a model trains all the same, on rows for channels.
///
/// Parameters: `weight` `[out, C / groups, kh, kw]`, Glorot uniform unless told; `bias` `[out]`, zeros.
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

impl Conv2d {
    /// `channels` outputs from windows of a size, in steps of 1, without a border.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        Self { channels, window: window(kernel), groups: 1, bias: true, initializer: Initializer::default() }
    }

    /// From one window to the next.
    pub fn stride(mut self, stride: impl Into<Size>) -> Self {
        self.window.stride = stride.into().0;
        self
    }

    /// Zeros on each side of the image.
    pub fn padding(mut self, padding: impl Into<Size>) -> Self {
        self.window.padding = padding.into().0;
        self
    }

    /// From one element of a window to the next.
    pub fn dilation(mut self, dilation: impl Into<Size>) -> Self {
        self.window.dilation = dilation.into().0;
        self
    }

    /// Cuts the channels into groups that do not see each other; as many as there are channels make it depthwise.
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
}

impl Layer for Conv2d {
    fn name(&self) -> &str {
        "conv2d"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::Conv2d(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([channels, ..]) = image("conv2d", cx, x) else { return x.clone() };
        let (groups, [kh, kw]) = (self.groups.max(1), self.window.kernel);
        let dims = [self.channels, channels / groups, kh, kw];
        let weight = cx.parameter("weight", &dims, self.initializer.clone());
        let y = x.conv2d(&weight, &self.window, self.groups);
        if self.bias { biased(cx, &y, self.channels) } else { y }
    }
}

/// Channels, height and width; anything else is an error.
pub(super) fn image(layer: &str, cx: &Context, x: &Var) -> Option<[usize; 3]> {
    match (x.dims().try_into(), x.ty().lead) {
        (Ok(dims), Lead::Sample) => Some(dims),
        _ => {
            cx.fail(layer, format!("needs images [B, channels, height, width], got {}", x.ty()));
            None
        }
    }
}

/// With a `bias` for each channel.
pub(super) fn biased(cx: &mut Context, y: &Var, channels: usize) -> Var {
    let bias = cx.parameter("bias", &[channels], Initializer::Zeros);
    y + bias.reshape(&[channels, 1, 1])
}
