//! What random ops draw by.

use crate::values::{DType, Type};

/// The contents of the random input: everything that the draws of dropout depend on beside the layer and the
/// element.
///
/// The words are in this order: seed low, seed high, epoch, position low, position high, and three words of
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RandomKey {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The position in the epoch of the first sample of the run of shards.
    pub position: u64,
}

impl RandomKey {
    /// The name of the random input.
    pub const INPUT: &'static str = "$random";

    /// Returns the type of the random input.
    pub fn ty() -> Type {
        Type::global(&[8]).of(DType::U32)
    }

    /// Returns the words as a device reads them.
    pub fn words(&self) -> [u32; 8] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let ([s0, s1], [p0, p1]) = (halves(self.seed), halves(self.position));
        [s0, s1, self.epoch, p0, p1, 0, 0, 0]
    }
}
