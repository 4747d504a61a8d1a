//! What makes two runs the same run: the parts of a run's identity, as far as they are known before data are
//! seen.

pub(crate) mod graph;
pub(crate) mod part;
pub(crate) mod start;
