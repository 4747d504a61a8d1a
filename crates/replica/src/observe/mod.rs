//! What replicas did with their time, and who left.

pub(crate) mod report;
pub(crate) mod timeline;
