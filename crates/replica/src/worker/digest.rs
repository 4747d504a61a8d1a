//! A digest of a replica's state, by which replicas are compared.

use std::fmt;

/// A digest of 256 bits over all bytes of a state. It is not cryptographic: it finds faults, not forgeries.
/// Any single changed word changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u64; 4]);

const SEED: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
/// The factors of the lanes. They are odd, so that multiplying loses nothing.
const FACTOR: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

impl Default for Digest {
    fn default() -> Self {
        Self(SEED)
    }
}

impl Digest {
    /// Adds a tensor, its length included. It works on four lanes, so that it runs at the speed of memory.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let mut blocks = bytes.chunks_exact(32);
        for block in &mut blocks {
            let mut words = [0u64; 4];
            words.iter_mut().zip(block.chunks_exact(8)).for_each(|(word, part)| *word = little_endian(part));
            self.mix(words);
        }
        let mut words = [0u64; 4];
        words
            .iter_mut()
            .zip(blocks.remainder().chunks(8))
            .for_each(|(word, part)| *word = little_endian(part));
        self.mix(words);
        self.mix([bytes.len() as u64; 4]);
        self.stir();
    }

    /// Returns the digest that prints as this text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lane = |index: usize| u64::from_str_radix(text.get(16 * index..16 * (index + 1))?, 16).ok();
        let digest = Self([lane(0)?, lane(1)?, lane(2)?, lane(3)?]);
        (digest.to_string() == text).then_some(digest)
    }

    fn mix(&mut self, words: [u64; 4]) {
        for lane in 0..4 {
            self.0[lane] = (self.0[lane] ^ words[lane]).wrapping_mul(FACTOR[lane]).rotate_left(29);
        }
    }

    /// Mixes each lane into all others.
    fn stir(&mut self) {
        for round in 0..8 {
            let from = self.0[round % 4];
            let to = &mut self.0[(round + 1) % 4];
            *to = (*to ^ from ^ (from >> 31)).wrapping_mul(FACTOR[round % 4]);
        }
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|lane| write!(f, "{lane:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[u8]]) -> Digest {
        let mut digest = Digest::default();
        parts.iter().for_each(|part| digest.update(part));
        digest
    }

    #[test]
    fn every_bit_counts() {
        let bytes: Vec<u8> = (0..100).collect();
        let whole = of(&[&bytes]);
        for bit in 0..800 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&[&other]), whole, "bit {bit}");
        }
    }

    #[test]
    fn so_do_lengths_and_order() {
        assert_ne!(of(&[&[0; 4], &[0; 8]]), of(&[&[0; 8], &[0; 4]]));
        assert_ne!(of(&[&[0; 12]]), of(&[&[0; 4], &[0; 8]]));
        assert_ne!(of(&[&[1, 2]]), of(&[&[2, 1]]));
        assert_ne!(of(&[&[0; 3]]), of(&[&[0; 4]]));
        assert_eq!(of(&[&[1, 2]]), of(&[&[1, 2]]));
        assert_eq!(of(&[]).to_string().len(), 64);
        assert_eq!(Digest::parse(&of(&[&[1]]).to_string()), Some(of(&[&[1]])));
        assert_eq!(Digest::parse(&format!("+{:.63}", "1".repeat(63))), None);
    }
}
