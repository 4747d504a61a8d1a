#![doc = include_str!("../README.md")]

mod draws;
mod initial;
mod normal;
mod permutation;
mod philox;
mod stream;

pub use draws::{Draws, below, uniform, unit_f32};
pub use initial::{fill_normal, fill_truncated_normal, fill_uniform};
pub use normal::{normal, truncated_normal};
pub use permutation::{Permutation, permute, unpermute};
pub use philox::philox4x32;
pub use stream::{Stream, stream};
