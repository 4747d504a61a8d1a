use unisono_graph::Var;

use crate::{Context, Layer};

macro_rules! activation {
    ($(#[$doc:meta])* $layer:ident, $name:literal, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $layer;

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
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
    /// 1 / (1 + e^-x).
    Sigmoid, "sigmoid", sigmoid);
activation!(
    /// The hyperbolic tangent.
    Tanh, "tanh", tanh);
