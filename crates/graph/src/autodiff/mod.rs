//! Reverse-mode differentiation, and activation checkpointing, which computes values a second time for it.

mod arrived;
mod grad;
mod recompute;
