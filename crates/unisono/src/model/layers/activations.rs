use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::{Context, Description, Layer};

macro_rules! activation {
    ($(#[$doc:meta])* $layer:ident, $name:literal, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
        pub struct $layer;

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
            }
            fn description(&self) -> Option<Description> {
                Some(Description::$layer(*self))
            }
            fn forward(&self, _: &mut Context, x: &Var) -> Var {
                x.$method()
            }
        }
    };
}

activation!(
    /// max(x, 0).
    Relu, "relu", relu);
activation!(
    /// x times the share of a standard normal below x (PyTorch's default `GELU`, the exact one).
    Gelu, "gelu", gelu);
activation!(
    /// The approximation of [`Gelu`] by tanh (PyTorch's `GELU(approximate="tanh")`).
    GeluTanh, "gelu_tanh", gelu_tanh);
activation!(
    /// x / (1 + e^-x), also called swish.
    Silu, "silu", silu);
activation!(
    /// ln(1 + e^x).
    Softplus, "softplus", softplus);
activation!(
    /// 1 / (1 + e^-x).
    Sigmoid, "sigmoid", sigmoid);
activation!(
    /// The hyperbolic tangent.
    Tanh, "tanh", tanh);
activation!(
    /// e^x / sum e^x over the last axis. For the loss, give logits instead: [`crate::CrossEntropy`] does it better.
    Softmax, "softmax", softmax);

macro_rules! with_number {
    ($(#[$doc:meta])* $layer:ident, $name:literal, $method:ident, $(#[$about:meta])* $number:ident = $default:literal) => {
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

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
            }
            fn description(&self) -> Option<Description> {
                Some(Description::$layer(*self))
            }
            fn forward(&self, _: &mut Context, x: &Var) -> Var {
                x.$method(self.$number)
            }
        }
    };
}

with_number!(
    /// x where x > 0, else alpha (e^x - 1).
    Elu, "elu", elu,
    /// With an alpha, 1 by default.
    alpha = 1.0);
with_number!(
    /// x where x > 0, else slope x.
    LeakyRelu, "leaky_relu", leaky_relu,
    /// With a slope, 0.01 by default.
    slope = 0.01);
