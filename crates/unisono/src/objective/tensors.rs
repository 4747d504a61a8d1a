//! Tensors of `carries.safetensors`, in which a checkpoint has what is too long for JSON.

use unisono_checkpoint::{Tensor, TensorDType, Tensors};

/// Takes a tensor out of those of a checkpoint. It is an error if it is not there.
pub(crate) fn take(tensors: &mut Tensors, name: &str) -> Result<Tensor, String> {
    tensors.remove(name).ok_or_else(|| format!("carries.safetensors has no tensor {name:?}"))
}

/// Takes a tensor as [`take`] does. It is an error if it has another type.
pub(crate) fn take_of(tensors: &mut Tensors, name: &str, dtype: TensorDType) -> Result<Tensor, String> {
    let tensor = take(tensors, name)?;
    let is_of_type = tensor.dtype() == dtype;
    is_of_type.then_some(tensor).ok_or_else(|| format!("the tensor {name:?} is not of type {dtype}"))
}
