use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;
use unisono_graph::{Lead, Var};

use super::functional::{lstm_cell, stack, unstack};
use super::settings::{positive, valid};
use super::size::Size;
use crate::model::{Context, Forward, Initializer, Layer};

/// Convolutional long short-term memory (Shi et al. 2015; Keras's `ConvLSTM2D` with `padding="same"` and
/// `data_format="channels_first"`): an LSTM whose states are pictures and whose products are convolutions.
///
/// It computes i, f, o = sigmoid and g = tanh of the parts of W * x + U * h + b, then c = f c + i g and h = o
/// tanh(c). Both start from zeros. Zeros around the pictures keep their size.
///
/// Shapes: `[B, T, C, H, W]` to `[B, T, out, H, W]`, all hidden states, or to `[B, out, H, W]`, the
/// [`last`](Self::last) one.
///
/// Parameters: `weight_ih` `[4 out, C, kh, kw]` and `weight_hh` `[4 out, out, kh, kw]` (Default: Glorot
/// uniform), `bias` `[4 out]` (Default: zeros), with gates in the order i, f, g, o. Keras's order is i, f, c,
/// o with the channels last, and its bias of f starts at 1.
///
/// Errors: the input is not a batch of 1 to 1,024 pictures, there are no channels, or a kernel size is even.
///
/// ```
/// use unisono::{BatchNorm, Conv2d, ConvLstm2d, Sequential};
///
/// let next_frame = Sequential::new().add(ConvLstm2d::new(16, 3).last()).add(Conv2d::new(1, 3).padding(1));
/// ```
#[doc(alias = "ConvLSTM2D")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvLstm2d {
    channels: usize,
    kernel: [usize; 2],
    bias: bool,
    last: bool,
}

/// The most pictures. Each is traced on its own, so that many more would not end.
const MOST: usize = 1024;

impl ConvLstm2d {
    /// Creates a layer with this number of hidden channels and this odd kernel size in pixels. By default it
    /// has a bias and returns all hidden states.
    pub fn new(channels: usize, kernel: impl Into<Size>) -> Self {
        Self { channels, kernel: kernel.into().0, bias: true, last: false }
    }

    /// Omits the bias. Default: the layer has one.
    pub fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// Returns only the hidden state after the last picture. Default: all of them (Keras's
    /// `return_sequences=True`).
    pub fn last(self) -> Self {
        Self { last: true, ..self }
    }
}

impl Forward for ConvLstm2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Self { channels, kernel: [kh, kw], .. } = *self;
        let odd = (kh.is_multiple_of(2) || kw.is_multiple_of(2))
            .then(|| format!("kernel is {kh} x {kw}, and must be odd, so that pictures keep their size"));
        if !valid(self.name(), cx, [positive("channels", channels), odd]) {
            return x.clone();
        }
        let (&[steps @ 1..=MOST, inputs, _, _], Lead::Sample) = (x.dims(), x.ty().lead) else {
            let needs = format!("needs [B, steps, channels, height, width] of 1 to {MOST} steps");
            cx.fail(self.name(), format!("{needs}, got {}", x.ty()));
            return x.clone();
        };
        let mut weight = |name: &str, from: usize| {
            cx.kernel(name, &[4 * channels, from, kh, kw], 0, Initializer::default())
        };
        let (input, hidden) = (weight("weight_ih", inputs), weight("weight_hh", channels));
        let bias = self.bias.then(|| cx.parameter("bias", &[4 * channels], Initializer::Zeros));
        let window = Window { padding: [kh / 2, kw / 2], ..Window::new([kh, kw]) };
        let tape = cx.tape().clone();
        let each = tape.unrolled(|| {
            let mut all: Vec<Var> = Vec::with_capacity(steps);
            let mut state: Option<(Var, Var)> = None;
            for picture in unstack(x) {
                let mut gates = picture.conv2d(&input, &window, 1);
                if let Some((h, _)) = &state {
                    gates = gates + h.conv2d(&hidden, &window, 1);
                }
                if let Some(bias) = &bias {
                    gates = gates + bias.reshape(&[4 * channels, 1, 1]);
                }
                let [i, f, g, o] = [0, 1, 2, 3].map(|at| gates.slice(-3, at * channels..(at + 1) * channels));
                let [h, c] = lstm_cell([i, f, g, o], state.as_ref().map(|(_, c)| c));
                all.push(h.clone());
                state = Some((h, c));
            }
            all
        });
        let y = if self.last { each.last().cloned() } else { stack(&each) };
        y.unwrap_or_else(|| x.clone())
    }
}
