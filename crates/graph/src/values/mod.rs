//! What values are: types, arrays of numbers, which of them f16 holds, and the one order in which they are
//! summed.

mod array;
pub mod half;
pub mod tree;
mod types;

pub use array::{Array, Frame};
pub(crate) use types::strides;
pub use types::{DType, Lead, Precision, Type};
