//! The pieces of a run's state.

pub(crate) mod carries;
pub(crate) mod class;
pub(crate) mod loss_scale;
pub(crate) mod order;
pub(crate) mod stop;
