#![doc = include_str!("../README.md")]

mod array;
mod codegen;
pub mod elementary;
mod emit;
mod error;
mod fuse;
mod grad;
mod graph;
mod interpret;
mod memory;
mod op;
pub mod ops;
pub mod plan;
mod program;
mod recompute;
mod simplify;
mod store;
mod tape;
pub mod target;
pub mod tree;
mod types;
mod var;

pub use array::{Array, Frame};
pub use error::GraphError;
pub use graph::{Graph, InputDecl, InputKind, Node, NodeId, StateDecl, StateKind};
pub use interpret::{Feed, Outcome, interpret};
pub use memory::{Lifetime, MemoryPlan, plan_memory};
pub use op::{Expression, Io, Lowering, Op, Product, ReduceKind, Reduction, View};
pub use ops::Pointwise;
pub use plan::Plan;
pub use program::{BUCKET_BYTES, MAX_SHARDS, OutputDecl, Program, Run, Slot};
pub use simplify::simplify;
pub use store::Bucket;
pub use tape::{RandomKey, Tape, Var};
pub use target::Target;
pub use types::{DType, Lead, Type};
