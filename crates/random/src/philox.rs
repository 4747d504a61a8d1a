//! Philox 4x32-10: ten rounds of multiply, swap and XOR.

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
/// The first of the two numbers that the key moves by each round: the golden ratio in 32 bits.
const WEYL_0: u32 = 0x9E37_79B9;
/// The second of these numbers: the square root of three less one, in 32 bits.
const WEYL_1: u32 = 0xBB67_AE85;
const ROUNDS: u32 = 10;

/// Returns four random words for a counter under a key: Philox 4x32 with ten rounds, as published by Salmon,
/// Moraes, Dror and Shaw (2011).
///
/// For a fixed key it is a bijection of counters, so distinct counters give distinct blocks.
pub const fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    let mut round = 0;
    while round < ROUNDS {
        let (high_0, low_0) = multiply(MULTIPLIER_0, c0);
        let (high_1, low_1) = multiply(MULTIPLIER_1, c2);
        (c0, c1, c2, c3) = (high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0);
        k0 = k0.wrapping_add(WEYL_0);
        k1 = k1.wrapping_add(WEYL_1);
        round += 1;
    }
    [c0, c1, c2, c3]
}

/// Returns the high and low halves of a 64-bit product.
const fn multiply(a: u32, b: u32) -> (u32, u32) {
    let product = a as u64 * b as u64;
    ((product >> 32) as u32, product as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the three known answers that Random123 publishes for philox4x32 with ten rounds.
    #[test]
    fn gives_the_published_answers() {
        let zeros = philox4x32([0; 4], [0; 2]);
        assert_eq!(zeros, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);

        let ones = philox4x32([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);

        let pi = philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]);
        assert_eq!(pi, [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    /// Checks the shader's product, written out in Rust: it has no 64-bit integers, so it multiplies 16-bit
    /// halves.
    #[test]
    fn the_shaders_product_of_halves_is_the_same() {
        fn high_by_halves(a: u32, b: u32) -> u32 {
            let (a0, a1, b0, b1) = (a & 0xffff, a >> 16, b & 0xffff, b >> 16);
            let middle = a1 * b0 + ((a0 * b0) >> 16);
            let carry = a0 * b1 + (middle & 0xffff);
            a1 * b1 + (middle >> 16) + (carry >> 16)
        }
        for i in 0..100_000 {
            let [b, ..] = philox4x32([i, 0, 0, 0], [1, 2]);
            assert_eq!(high_by_halves(MULTIPLIER_0, b), multiply(MULTIPLIER_0, b).0);
            assert_eq!(high_by_halves(MULTIPLIER_1, b), multiply(MULTIPLIER_1, b).0);
        }
        for b in [0, 1, 0xffff, 0x1_0000, 0xffff_0000, u32::MAX] {
            assert_eq!(high_by_halves(u32::MAX, b), multiply(u32::MAX, b).0);
        }
    }

    #[test]
    fn works_in_a_constant() {
        const BLOCK: [u32; 4] = philox4x32([0; 4], [0; 2]);
        assert_eq!(BLOCK[0], 0x6627e8d5);
    }
}
