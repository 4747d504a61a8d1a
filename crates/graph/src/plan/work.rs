//! What launches compute, for tables and benchmarks: kind, floating-point operations and bytes.

use std::fmt;

/// What a launch computes. Whoever executes a plan ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The kind of computation.
    pub kind: WorkKind,
    /// The number of floating-point operations. A fused multiply-add counts as two, every other operation on
    /// an element as one.
    pub flops: u64,
    /// The bytes that must move at least: each element that the launch reads or writes counts once, however
    /// many of its workgroups read it.
    pub bytes: u64,
}

/// The kind of computation of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// A matrix product with its epilogue.
    Product,
    /// Attention computed as a whole.
    Attention,
    /// Rows gathered from a table, or their gradient.
    Embedding,
    /// Pointwise operations on elements.
    #[default]
    Map,
    /// A reduction along axes or over samples.
    Reduce,
    /// A tree over chunks or shards.
    Tree,
    /// A pointwise kernel that stores new values of states.
    Update,
    /// A check whether numbers are finite.
    Finite,
}

impl WorkKind {
    /// Returns the kind's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Attention => "attention",
            Self::Embedding => "embedding",
            Self::Map => "map",
            Self::Reduce => "reduce",
            Self::Tree => "tree",
            Self::Update => "update",
            Self::Finite => "finite",
        }
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
