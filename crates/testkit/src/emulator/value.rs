//! The values of expressions, one for each invocation of a workgroup.

use std::rc::Rc;

/// Scalars of a value, each for every invocation, or once where all invocations have the same.
#[derive(Clone, Debug)]
pub(super) struct Value {
    bits: Rc<Vec<u64>>,
    /// The invocations that have scalars of their own; 1 if all have the same.
    lanes: usize,
}

impl Value {
    /// Returns a value that all invocations have.
    pub fn same(bits: Vec<u64>) -> Self {
        Self { bits: Rc::new(bits), lanes: 1 }
    }

    /// Returns a value given its scalars: number `leaf` of invocation `lane` is at `leaf * lanes + lane`.
    pub fn each(bits: Vec<u64>, lanes: usize) -> Self {
        Self { bits: Rc::new(bits), lanes }
    }

    /// Computes a value of so many scalars for these invocations, or once if `same`.
    pub fn collect(
        same: bool,
        leaves: usize,
        lanes: usize,
        active: &[u32],
        mut scalar: impl FnMut(usize, usize) -> u64,
    ) -> Self {
        if same {
            let lane = active.first().map_or(0, |&lane| lane as usize);
            return Self::same((0..leaves).map(|leaf| scalar(leaf, lane)).collect());
        }
        if active.len() == lanes {
            let mut bits = Vec::with_capacity(leaves * lanes);
            for leaf in 0..leaves {
                bits.extend((0..lanes).map(|lane| scalar(leaf, lane)));
            }
            return Self::each(bits, lanes);
        }
        let mut bits = vec![0; leaves * lanes];
        for leaf in 0..leaves {
            for &lane in active {
                bits[leaf * lanes + lane as usize] = scalar(leaf, lane as usize);
            }
        }
        Self::each(bits, lanes)
    }

    pub fn get(&self, leaf: usize, lane: usize) -> u64 {
        self.bits[leaf * self.lanes + if self.lanes == 1 { 0 } else { lane }]
    }

    /// Returns whether all invocations have the same.
    pub fn is_same(&self) -> bool {
        self.lanes == 1
    }
}
