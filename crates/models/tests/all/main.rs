//! Compares published models with the numbers of the programs that they come from.

mod generation;
mod known;
mod lora;
mod prompts;
