//! What random ops draw by.

use crate::values::{DType, Type};

/// The words of the random input: everything dropout's draws depend on, except layer and element.
///
/// Word order: seed low, seed high, epoch, position low, position high, and three words of zero. The position is that of the
/// run's first sample in the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RandomKey {
    /// The run's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u32,
    /// Position in the epoch of the first sample.
    pub position: u64,
}

impl RandomKey {
    /// The input's name.
    pub const INPUT: &'static str = "$random";

    /// The input's type.
    pub fn ty() -> Type {
        Type::global(&[8]).of(DType::U32)
    }

    /// The words as a device reads them.
    pub fn words(&self) -> [u32; 8] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let ([s0, s1], [p0, p1]) = (halves(self.seed), halves(self.position));
        [s0, s1, self.epoch, p0, p1, 0, 0, 0]
    }
}
