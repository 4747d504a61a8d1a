//! Tracing: what a graph is, what an op answers, and the tape that records one op after another.

mod error;
mod graph;
mod identity;
mod leaf;
mod op;
mod pointwise;
mod random;
mod tape;
mod var;
mod window;

pub use error::GraphError;
pub use graph::{Graph, InputDecl, InputKind, Node, NodeId, Output, OutputKind, StateDecl, StateKind};
pub(crate) use identity::Key;
pub use identity::{Encoding, Identity};
pub use leaf::{Constant, Input, State};
pub(crate) use op::join_leads;
pub use op::{AttentionResult, Expression, Halves, Io, Lowering, Op, Product, ReduceKind, Reduction, View};
pub use pointwise::Pointwise;
pub use random::RandomKey;
pub use tape::Tape;
pub use var::Var;
pub use window::Window;
