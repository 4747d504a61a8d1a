//! Tensor graphs: a model is traced once, differentiated, simplified, fused and planned; what comes out is plain data that a
//! device executes, and an f64 interpreter that says what it means.
//!
//! ```
//! use unisono_graph::{Program, Run, StateKind, Tape, Target, Type};
//!
//! let tape = Tape::new();
//! let x = tape.input("x", Type::sample(&[4]));
//! let w = tape.state("w", &[3, 4], StateKind::Parameter);
//! let loss = x.matmul_t(&w).tanh().sum(&[-1]).sum_shards();
//! let gradient = &tape.gradients(&loss, &[w.clone()])[0];
//! tape.update(&w, &(&w - &(gradient * 0.1)));
//! let program = Program::compile(&tape.finish()?)?;
//! let plan = program.plan(&Run::whole(&[2, 2, 1]), &Target::default())?;
//! assert_eq!(plan.segments.len(), 2);
//! # Ok::<(), unisono_graph::GraphError>(())
//! ```

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
mod simplify;
mod store;
pub mod target;
mod tape;
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
pub use program::{MAX_SHARDS, OutputDecl, Program, Run, Slot};
pub use simplify::simplify;
pub use store::Bucket;
pub use target::Target;
pub use tape::{RandomKey, Tape, Var};
pub use types::{DType, Lead, Type};
