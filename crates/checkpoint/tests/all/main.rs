//! Checkpoints from outside: what a disk holds after failures, power cuts, forged files and planted links,
//! and the files that other programs write and read.

mod bytes;
mod common;
mod copy;
mod crash;
mod full;
mod hostile;
mod inspect;
mod lock;
mod mutants;
mod plan;
mod planted;
mod power;
mod python;
mod quantized;
mod saver;
mod store;
mod swapped;
mod torch;
mod trust;
mod trust_crash;
mod trust_saver;
