//! The state of a run: what it saves in a checkpoint, section by section, and what its next step depends on.

pub(crate) mod ancestry;
pub(crate) mod carries;
pub(crate) mod classes;
pub(crate) mod content;
pub(crate) mod control;
pub(crate) mod data;
mod history;
pub(crate) mod identity;
pub(crate) mod lbfgs;
pub(crate) mod limits;
pub(crate) mod loss_scale;
pub(crate) mod phases;
pub(crate) mod position;
pub(crate) mod replay;
mod running;
pub(crate) mod scales;
pub(crate) mod section;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod stop;
