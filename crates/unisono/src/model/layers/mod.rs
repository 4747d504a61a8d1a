//! The layers, a file each.

mod activations;
mod attention;
mod batch_norm;
mod conv2d;
mod conv_transpose2d;
mod dense;
mod dropout;
mod embedding;
mod flatten;
pub mod functional;
mod norms;
mod pool;
mod recompute;
mod recurrent;
mod residual;
mod size;
mod transformer;

pub use activations::{Elu, Gelu, GeluTanh, LeakyRelu, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh};
pub use attention::MultiHeadAttention;
pub use batch_norm::BatchNorm;
pub use conv_transpose2d::ConvTranspose2d;
pub use conv2d::Conv2d;
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use norms::{GroupNorm, LayerNorm, RmsNorm};
pub use pool::{AvgPool2d, GlobalAvgPool2d, MaxPool2d};
pub use recompute::Recompute;
pub use recurrent::{Gru, Lstm};
pub use residual::Residual;
pub use size::Size;
pub use transformer::TransformerBlock;

#[cfg(test)]
mod tests;
