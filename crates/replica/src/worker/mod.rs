//! The worker threads: each owns one device, takes orders from a queue, and answers each order once.

pub(crate) mod digest;
pub(crate) mod fault;
pub(crate) mod message;
mod in_flight;
mod programs;
mod serve;
pub(crate) mod threads;
