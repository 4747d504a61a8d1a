//! A shuffle without a list: a keyed bijection of [0, len), evaluated one position at a time.

use crate::{Stream, stream};

/// The rounds of the network. Each half is replaced six times.
const ROUNDS: usize = 12;
/// The fewest bits that the network works on, because small domains mix badly. Cycle walking makes up for the
/// difference.
const LEAST_BITS: u32 = 6;

/// Returns the item at `position` of an epoch's order: for a fixed seed, epoch and length, a permutation of
/// `0..len`.
///
/// It takes constant time and memory for any length. [`Permutation`] says how, and shares the set-up between
/// positions.
///
/// # Panics
/// Panics when `position >= len`, as with a slice.
pub fn permute(seed: u64, epoch: u32, position: u64, len: u64) -> u64 {
    Permutation::new(seed, epoch, len).at(position)
}

/// Returns the position at which [`permute`] gives `item`.
///
/// # Panics
/// Panics when `item >= len`.
pub fn unpermute(seed: u64, epoch: u32, item: u64, len: u64) -> u64 {
    Permutation::new(seed, epoch, len).position_of(item)
}

/// A permutation of `0..len`, keyed by a seed and an epoch.
///
/// It is an alternating Feistel network of twelve rounds over the fewest bits that hold every item (at least
/// six), whose halves are equal or one bit apart. A round XORs one half with a 64-bit mix of the other half
/// and the round's key. The keys are the words of stream `("shuffle", "")` at the epoch. A result outside
/// `0..len` goes through the network again until it falls inside ("cycle walking"): that takes fewer than two
/// passes on average for `len > 32`, and is still a bijection.
///
/// This algorithm is part of the format of every run. It must not change.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Returns the order of an epoch over `len` items.
    pub fn new(seed: u64, epoch: u32, len: u64) -> Self {
        let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(LEAST_BITS);
        let low_bits = bits / 2;
        let stream = Stream::new(seed, stream("shuffle", ""));
        let keys = std::array::from_fn(|round| {
            let word = |element| u64::from(stream.word(epoch, 0, element));
            word(2 * round as u64) | word(2 * round as u64 + 1) << 32
        });
        Self { len, low_bits, low_mask: mask(low_bits), high_mask: mask(bits - low_bits), keys }
    }

    /// Returns the number of items.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no items.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the item at a position.
    ///
    /// # Panics
    /// Panics when `position >= len`.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} of a permutation of {}", self.len);
        let mut value = position;
        loop {
            value = self.network(value, 0..ROUNDS);
            if value < self.len {
                return value;
            }
        }
    }

    /// Returns the position of an item: the inverse of [`at`](Self::at).
    ///
    /// # Panics
    /// Panics when `item >= len`.
    pub fn position_of(&self, item: u64) -> u64 {
        assert!(item < self.len, "item {item} of a permutation of {}", self.len);
        let mut value = item;
        loop {
            value = self.network(value, (0..ROUNDS).rev());
            if value < self.len {
                return value;
            }
        }
    }

    /// Runs the rounds in the given order. Each round is its own inverse.
    fn network(&self, value: u64, rounds: impl Iterator<Item = usize>) -> u64 {
        let (mut low, mut high) = (value & self.low_mask, value >> self.low_bits);
        for round in rounds {
            if round % 2 == 0 {
                low ^= mix(high ^ self.keys[round]) & self.low_mask;
            } else {
                high ^= mix(low ^ self.keys[round]) & self.high_mask;
            }
        }
        high << self.low_bits | low
    }
}

/// Returns a mask of the lowest `bits` bits, at most 32.
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Mixes 64 bits as SplitMix64 does at its end: every input bit reaches every output bit.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_to_2000_is_a_bijection() {
        for len in 1..=2000 {
            let permutation = Permutation::new(7, len as u32 % 5, len);
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let item = permutation.at(position);
                assert!(!std::mem::replace(&mut seen[item as usize], true), "len {len}: {item} twice");
                assert_eq!(permutation.position_of(item), position);
            }
        }
    }

    /// Checks lengths that are too large to list. It suffices that there is an inverse: at(x) = at(y) then
    /// gives x = y.
    #[test]
    fn huge_lengths_have_an_inverse() {
        let lengths = [1 << 32, (1 << 32) + 1, 3_000_000_019, (1 << 48) - 59, 1 << 48, u64::MAX];
        for len in lengths {
            let ends = (0..100).chain(len - 100..len);
            let across = (0..1000).map(|i| i * (len / 1000));
            for position in ends.chain(across) {
                let item = permute(3, 1, position, len);
                assert!(item < len);
                assert_eq!(unpermute(3, 1, item, len), position);
            }
        }
    }

    #[test]
    fn a_length_of_one_is_the_identity() {
        assert_eq!(permute(1, 2, 0, 1), 0);
        assert!(Permutation::new(1, 2, 0).is_empty());
    }

    /// Checks that all 120 orders of five items are about equally frequent over seeds (chi-squared, 119
    /// degrees of freedom).
    #[test]
    fn small_orders_are_uniform() {
        let mut counts = std::collections::HashMap::new();
        let runs = 24_000u32;
        for seed in 0..u64::from(runs) {
            let permutation = Permutation::new(seed, 0, 5);
            let order: [u64; 5] = std::array::from_fn(|position| permutation.at(position as u64));
            *counts.entry(order).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 120);
        let expected = f64::from(runs) / 120.0;
        let chi_squared: f64 = counts.values().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        assert!(chi_squared < 180.0, "{chi_squared}");
    }

    /// Checks that the place of the first item is uniform over epochs, and that neighbours do not stay
    /// neighbours.
    #[test]
    fn epochs_and_neighbours_are_unrelated() {
        let len = 1000;
        let (mut counts, mut adjacent) = ([0u32; 10], 0);
        for epoch in 0..10_000 {
            let permutation = Permutation::new(11, epoch, len);
            counts[(permutation.at(0) / 100) as usize] += 1;
            adjacent += u32::from(permutation.at(501).abs_diff(permutation.at(500)) == 1);
        }
        assert!(counts.iter().all(|&count| count.abs_diff(1000) < 150), "{counts:?}");
        assert!(adjacent < 50, "{adjacent} of about 20");
    }

    /// Pins the algorithm: this order must never change.
    #[test]
    fn golden_order() {
        let order: Vec<u64> = (0..10).map(|position| permute(42, 3, position, 10)).collect();
        assert_eq!(order, GOLDEN);
        assert_eq!(permute(42, 3, 123_456_789, 1 << 40), GOLDEN_FAR);
    }

    const GOLDEN: [u64; 10] = [7, 3, 6, 1, 2, 5, 4, 8, 9, 0];
    const GOLDEN_FAR: u64 = 64127981630;
}
