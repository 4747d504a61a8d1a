//! The judges: an interpreter in f64 that says what a graph means, and the host's twin of our elementary
//! functions.

pub mod elementary;
mod interpret;

pub use interpret::{Feed, Outcome, interpret};
