//! Where a run is saved, when, and how its tensors and a checkpoint's fit together.

pub(crate) mod checkpoints;
pub(crate) mod machines;
pub(crate) mod policy;
pub(crate) mod tensors;
