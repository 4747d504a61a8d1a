use serde::{Deserialize, Serialize};
use unisono_graph::Var;

/// An activation that a layer applies inside, such as that of [`TransformerBlock`](super::TransformerBlock).
/// Default: [`Activation::Gelu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// x Phi(x), exactly: see [`Gelu`](super::Gelu).
    #[default]
    Gelu,
    /// The approximation of gelu by tanh: see [`GeluTanh`](super::GeluTanh).
    GeluTanh,
    /// max(x, 0): see [`Relu`](super::Relu).
    Relu,
    /// The square of max(x, 0) (So et al. 2021: Primer).
    ReluSquared,
    /// x sigmoid(x): see [`Silu`](super::Silu).
    Silu,
    /// 1 / (1 + e^-x): see [`Sigmoid`](super::Sigmoid).
    Sigmoid,
    /// The hyperbolic tangent: see [`Tanh`](super::Tanh).
    Tanh,
}

impl Activation {
    /// Applies the activation to each element.
    pub fn apply(self, x: &Var) -> Var {
        match self {
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::Relu => x.relu(),
            Self::ReluSquared => x.relu().square(),
            Self::Silu => x.silu(),
            Self::Sigmoid => x.sigmoid(),
            Self::Tanh => x.tanh(),
        }
    }
}
