//! Turns a square of numbers in registers.

use std::arch::x86_64::*;

/// Returns the columns of a square as rows.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    // Pairs of rows, then fours of them within each half of a register, then all eight.
    let pairs = [(a, b), (c, d), (e, f), (g, h)];
    let [ab, cd, ef, gh] = pairs.map(|(x, y)| (_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)));
    let fours = |x: (__m256, __m256), y: (__m256, __m256)| {
        [
            _mm256_shuffle_ps::<0x44>(x.0, y.0),
            _mm256_shuffle_ps::<0xee>(x.0, y.0),
            _mm256_shuffle_ps::<0x44>(x.1, y.1),
            _mm256_shuffle_ps::<0xee>(x.1, y.1),
        ]
    };
    let (low, high) = (fours(ab, cd), fours(ef, gh));
    std::array::from_fn(|r| match r {
        0..4 => _mm256_permute2f128_ps::<0x20>(low[r], high[r]),
        _ => _mm256_permute2f128_ps::<0x31>(low[r - 4], high[r - 4]),
    })
}
