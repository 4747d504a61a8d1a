//! Code that kernels call.

mod functions;
mod panels;

pub(crate) use functions::{Code, function};
pub(crate) use panels::{PanelCopy, PanelProduct, Run, Vectors, vectors};
