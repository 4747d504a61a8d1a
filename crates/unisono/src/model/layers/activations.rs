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
