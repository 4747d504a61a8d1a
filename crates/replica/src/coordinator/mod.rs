//! The coordinator: the thread that calls [`replicas::Replicas`]. It tells the scheduler what it hears and
//! does what the scheduler wants.

mod accuse;
mod all_reduce;
mod attempt;
mod audit;
mod check;
mod diagnostics;
mod drive;
mod exchange;
mod finite;
mod in_flight;
mod join;
pub(crate) mod machines;
mod owned;
mod prepare;
pub(crate) mod replicas;
mod residents;
mod state;
pub(crate) mod step;
mod transaction;
pub(crate) mod witness;
