//! Sources made of other sources: parts, several as one, classes in balance, samples kept in memory.

pub(crate) mod balance;
pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod subset;
