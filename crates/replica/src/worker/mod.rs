//! The worker threads: each owns one device, takes orders from a queue, and answers each order once.

mod closing;
pub(crate) mod digest;
pub(crate) mod fault;
mod in_flight;
pub(crate) mod message;
mod programs;
mod serve;
pub(crate) mod threads;
