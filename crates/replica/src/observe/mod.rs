//! What replicas did with their time, and who left.

pub(crate) mod intervals;
pub(crate) mod report;
pub(crate) mod timeline;
