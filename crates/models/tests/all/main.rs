//! Models that people know, beside the numbers of the programs that made them.

mod generation;
mod known;
mod lora;
