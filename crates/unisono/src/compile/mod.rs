//! From a model to compiled programs, and from batches to what they are fed.

pub(crate) mod feed;
pub(crate) mod memory;
pub(crate) mod programs;
