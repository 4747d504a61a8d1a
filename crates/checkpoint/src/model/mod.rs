//! A model without its run: exported for other programs, and taken from the files of other programs.

mod arranged;
pub(crate) mod export;
pub(crate) mod keras;
pub(crate) mod pattern;
pub(crate) mod plan;
pub(crate) mod precision;
pub(crate) mod quantized;
mod revert;
mod rules;
