//! Tensors and the safetensors files that hold them, checked in full before a byte is used.
//!
//! The errors of the whole crate are here too, since most of them are about a file or a tensor.

pub(crate) mod bytes;
pub(crate) mod digest;
pub(crate) mod encoded;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod float;
pub(crate) mod foreign;
pub(crate) mod header;
pub(crate) mod info;
pub(crate) mod json;
pub(crate) mod regular;
pub(crate) mod report;
pub(crate) mod strided;
pub(crate) mod tensor;
