//! The layers, a file each.

mod activations;
mod dense;
mod dropout;
mod flatten;

pub use activations::{Gelu, Relu, Sigmoid, Tanh};
pub use dense::Dense;
pub use dropout::Dropout;
pub use flatten::Flatten;
