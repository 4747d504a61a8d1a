//! From a model to compiled programs, and from a batch to what they take: fields, programs, feeds, outputs
//! and memory.

pub(crate) mod advice;
pub(crate) mod asked;
pub(crate) mod averages;
pub(crate) mod carries;
pub(crate) mod class_weights;
pub(crate) mod feed;
pub(crate) mod fields;
pub(crate) mod memory;
pub(crate) mod objective;
pub(crate) mod opposed;
pub(crate) mod outputs;
pub(crate) mod parts;
pub(crate) mod phases;
pub(crate) mod plan;
pub(crate) mod prediction;
pub(crate) mod programs;
pub(crate) mod weights;
