//! Pooling: one value for each window of an image.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv2d::image;
use super::size::{Size, WindowData, window};
use crate::{Context, Description, Layer};

/// The largest of each window: `[B, C, H, W] -> [B, C, down, across]` (PyTorch's and Keras's `MaxPool2d`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPool2d {
    #[serde(with = "WindowData")]
    window: Window,
}

/// The mean of each window, its pixels on the border not among them (Keras's `AveragePooling2D`; PyTorch's `AvgPool2d` with
/// `count_include_pad=False`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2d {
    #[serde(with = "WindowData")]
    window: Window,
    border: bool,
}

/// The mean of each channel: `[B, C, H, W] -> [B, C]` (Keras's `GlobalAveragePooling2D`).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalAvgPool2d;

macro_rules! builder {
    ($layer:ident) => {
        impl $layer {
            /// From one window to the next; the window's size unless told.
            pub fn stride(mut self, stride: impl Into<Size>) -> Self {
                self.window.stride = stride.into().0;
                self
            }

            /// A border on each side of the image.
            pub fn padding(mut self, padding: impl Into<Size>) -> Self {
                self.window.padding = padding.into().0;
                self
            }
        }
    };
}

builder!(MaxPool2d);
builder!(AvgPool2d);

impl MaxPool2d {
    /// Windows of a size, one beside the other.
    pub fn new(kernel: impl Into<Size>) -> Self {
        Self { window: side_by_side(kernel) }
    }
}

impl AvgPool2d {
    /// Windows of a size, one beside the other.
    pub fn new(kernel: impl Into<Size>) -> Self {
        Self { window: side_by_side(kernel), border: false }
    }

    /// Counts the border as zeros (PyTorch's default).
    pub fn count_include_pad(mut self) -> Self {
        self.border = true;
        self
    }
}

fn side_by_side(kernel: impl Into<Size>) -> Window {
    let window = window(kernel);
    Window { stride: window.kernel, ..window }
}

/// Whether an operand has windows; a window that lies on the border alone would have no largest element.
fn fits(layer: &str, cx: &Context, window: &Window, x: &Var) -> bool {
    let Some([_, h, w]) = image(layer, cx, x) else { return false };
    let half = (0..2).all(|a| 2 * window.padding[a] <= window.kernel[a]);
    if let Err(problem) = window.count([h, w]) {
        cx.fail(layer, problem);
    } else if !half {
        cx.fail(layer, format!("padding {:?} is above half of {:?}", window.padding, window.kernel));
    } else {
        return true;
    }
    false
}

impl Layer for MaxPool2d {
    fn name(&self) -> &str {
        "max_pool2d"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::MaxPool2d(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if fits("max_pool2d", cx, &self.window, x) { x.max_pool2d(&self.window) } else { x.clone() }
    }
}

impl Layer for AvgPool2d {
    fn name(&self) -> &str {
        "avg_pool2d"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::AvgPool2d(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        match (fits("avg_pool2d", cx, &self.window, x), self.border) {
            (false, _) => x.clone(),
            (true, false) => x.avg_pool2d(&self.window),
            (true, true) => x.windows(&self.window, 0.0).mean(&[-2, -1]),
        }
    }
}

impl Layer for GlobalAvgPool2d {
    fn name(&self) -> &str {
        "global_avg_pool2d"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::GlobalAvgPool2d(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        match image("global_avg_pool2d", cx, x) {
            Some(_) => x.mean(&[-2, -1]),
            None => x.clone(),
        }
    }
}
