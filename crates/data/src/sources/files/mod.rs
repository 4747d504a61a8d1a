//! Data sets in files. Every declared size is checked against the file's before anything is read or
//! allocated.

mod array;
mod bytes;
mod cifar;
pub(crate) mod element;
#[cfg(feature = "pictures")]
mod folder;
mod idx;
#[cfg(feature = "pictures")]
mod listing;
#[cfg(feature = "more-pictures")]
mod more_pictures;
mod npy;
#[cfg(feature = "zip")]
mod npz;
#[cfg(feature = "pictures")]
mod picture;
mod safetensors;
#[cfg(feature = "pictures")]
mod segments;
mod tokens;

pub use array::{Array, Arrays};
pub use cifar::Cifar;
pub use element::Element;
#[cfg(feature = "pictures")]
pub use folder::ImageFolder;
pub use tokens::{Tokens, Width};

pub(crate) use bytes::Bytes;
#[cfg(feature = "pictures")]
pub(crate) use picture::decode;
