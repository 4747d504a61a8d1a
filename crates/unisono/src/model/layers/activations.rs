//! Activations. Shapes: `[B, ...]` to the same. They have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{finite, valid};
use crate::model::{Context, Forward, Layer};

macro_rules! activation {
    ($(#[$doc:meta])* $layer:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
        pub struct $layer;

        impl Forward for $layer {
            fn forward(&self, _: &mut Context, x: &Var) -> Var {
                x.$method()
            }
        }
    };
}

activation!(
    /// y = max(x, 0), elementwise (PyTorch's and Keras's `ReLU`).
    Relu, relu);
activation!(
    /// y = x Phi(x), elementwise, with the standard normal distribution function Phi (Hendrycks and Gimpel
    /// 2016; the exact form, which is the default of PyTorch's `GELU`).
    Gelu, gelu);
activation!(
    /// The approximation of [`Gelu`] by tanh, elementwise (PyTorch's `GELU(approximate="tanh")`).
    GeluTanh, gelu_tanh);
activation!(
    /// y = x / (1 + e^-x), elementwise, also called swish (PyTorch's `SiLU`).
    Silu, silu);
activation!(
    /// y = ln(1 + e^x), elementwise (PyTorch's `Softplus` with its defaults).
    Softplus, softplus);
activation!(
    /// y = 1 / (1 + e^-x), elementwise (PyTorch's `Sigmoid`).
    Sigmoid, sigmoid);
activation!(
    /// y = tanh(x), elementwise (PyTorch's `Tanh`).
    Tanh, tanh);
activation!(
    /// y = e^x / sum e^x over the last axis (PyTorch's `Softmax(dim=-1)`).
    ///
    /// A model that ends in a classifier gives its logits instead: [`crate::CrossEntropy`] takes their
    /// softmax, and more exactly.
    Softmax, softmax);

activation!(
    /// y = ln softmax(x) over the last axis (PyTorch's `LogSoftmax(dim=-1)`).
    LogSoftmax, log_softmax);
activation!(
    /// y = min(max(x, 0), 6), elementwise (PyTorch's `ReLU6`).
    Relu6, relu6);
activation!(
    /// y = min(max(x / 6 + 1/2, 0), 1), elementwise (PyTorch's `Hardsigmoid`, Keras's `hard_sigmoid`).
    HardSigmoid, hard_sigmoid);
activation!(
    /// y = x min(max(x / 6 + 1/2, 0), 1), elementwise (Howard et al. 2019; PyTorch's `Hardswish`).
    HardSwish, hard_swish);
activation!(
    /// y = x tanh(ln(1 + e^x)), elementwise (Misra 2019; PyTorch's `Mish`).
    Mish, mish);
activation!(
    /// y = 1.0507 x where x > 0, else 1.7581 (e^x - 1), elementwise (Klambauer et al. 2017; PyTorch's
    /// `SELU`).
    Selu, selu);

/// y = x cut to [low, high], elementwise (PyTorch's `Hardtanh`). The bounds of [`HardTanh::default`] are
/// -1 and 1.
///
/// Errors: a bound is not finite, or low is not below high.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardTanh {
    low: f32,
    high: f32,
}

impl HardTanh {
    /// Creates a layer with these bounds.
    pub fn new(low: f32, high: f32) -> Self {
        Self { low, high }
    }
}

impl Default for HardTanh {
    fn default() -> Self {
        Self::new(-1.0, 1.0)
    }
}

impl Forward for HardTanh {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let order = (self.low >= self.high)
            .then(|| format!("low is {}, and must be below high, {}", self.low, self.high));
        if !valid(self.name(), cx, [finite("low", self.low), finite("high", self.high), order]) {
            return x.clone();
        }
        x.hard_tanh(self.low, self.high)
    }
}

macro_rules! with_number {
    ($(#[$doc:meta])* $layer:ident, $method:ident, $(#[$about:meta])* $number:ident = $default:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $layer {
            $number: f32,
        }

        impl $layer {
            $(#[$about])*
            pub fn new($number: f32) -> Self {
                Self { $number }
            }
        }

        impl Default for $layer {
            fn default() -> Self {
                Self::new($default)
            }
        }

        impl Forward for $layer {
            fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                if !valid(self.name(), cx, [finite(stringify!($number), self.$number)]) {
                    return x.clone();
                }
                x.$method(self.$number)
            }
        }
    };
}

with_number!(
    /// y = x where x > 0, else alpha (e^x - 1), elementwise (Clevert et al. 2016; PyTorch's `ELU`).
    Elu, elu,
    /// Creates a layer with this alpha. The alpha of [`Elu::default`] is 1.
    alpha = 1.0);
with_number!(
    /// y = x where x > 0, else slope x, elementwise (PyTorch's `LeakyReLU`).
    LeakyRelu, leaky_relu,
    /// Creates a layer with this slope for x < 0. The slope of [`LeakyRelu::default`] is 0.01.
    slope = 0.01);
