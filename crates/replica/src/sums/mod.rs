//! The arithmetic of the all-reduce on the host: sums over shards in the order of the tree. No threads talk
//! to each other here.

pub(crate) mod overlap;
pub(crate) mod places;
pub(crate) mod tree_sum;
pub(crate) mod values;
