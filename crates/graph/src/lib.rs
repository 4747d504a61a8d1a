#![doc = include_str!("../README.md")]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("unisono needs a 64-bit system: numbers of elements and bytes are beyond 32 bits");

mod autodiff;
mod codegen;
mod fuse;
pub mod ops;
mod passes;
pub mod plan;
mod program;
mod reference;
mod trace;
mod values;

pub use fuse::{Bucket, StatePlacement};
pub use passes::{drop_unread_inputs, simplify};
pub use plan::{Plan, StateLayout, Target, target};
pub use program::{
    BUCKET_BYTES, Conditions, Layout, MAX_SHARDS, OutputDecl, Program, Run, Slot, UpdateGroup,
};
pub use reference::{Feed, Outcome, elementary, interpret};
pub use trace::{
    AttentionResult, Encoding, Expression, Graph, GraphError, Halves, Identity, InputDecl, InputKind, Io,
    Lowering, Node, NodeId, Op, Output, OutputKind, Pointwise, Product, RandomKey, ReduceKind, Reduction,
    StateDecl, StateKind, Tape, Var, View,
};
pub use values::{Array, DType, Frame, Lead, Precision, Type, half, tree};
