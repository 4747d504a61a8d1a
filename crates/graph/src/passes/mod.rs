//! Passes from graph to graph: pure functions that keep what the graph means.

mod halves;
mod place;
mod share;
mod simplify;

pub(crate) use halves::{halves, round_products};
pub(crate) use place::{Parts, Runs, place_parts};
pub(crate) use share::share_memory;
pub use simplify::{drop_unread_inputs, simplify};
