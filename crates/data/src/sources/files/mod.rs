//! Data sets in files. Every declared size is checked against the file's before anything is read or allocated.

mod array;
mod bytes;
mod cifar;
mod element;
mod folder;
mod idx;
mod npy;
mod npz;
mod picture;
mod safetensors;
mod tokens;

pub use array::{Array, Arrays};
pub use cifar::Cifar;
pub use element::Element;
pub use folder::ImageFolder;
pub use tokens::{Tokens, Width};

pub(crate) use bytes::Bytes;
