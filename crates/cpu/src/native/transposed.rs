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

/// Returns the columns of a square of sixteen rows as rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn sixteen_columns(rows: [__m512; 16]) -> [__m512; 16] {
    // Four rows: register c has column 4 * l + c of them in part l, of four numbers.
    let mut fours = [[_mm512_setzero_ps(); 4]; 4];
    for (four, some) in fours.iter_mut().zip(rows.chunks_exact(4)) {
        let low = [_mm512_unpacklo_ps(some[0], some[1]), _mm512_unpacklo_ps(some[2], some[3])];
        let high = [_mm512_unpackhi_ps(some[0], some[1]), _mm512_unpackhi_ps(some[2], some[3])];
        four[0] = _mm512_shuffle_ps::<0x44>(low[0], low[1]);
        four[1] = _mm512_shuffle_ps::<0xee>(low[0], low[1]);
        four[2] = _mm512_shuffle_ps::<0x44>(high[0], high[1]);
        four[3] = _mm512_shuffle_ps::<0xee>(high[0], high[1]);
    }
    let mut columns = rows;
    for c in 0..4 {
        let some = [fours[0][c], fours[1][c], fours[2][c], fours[3][c]];
        // Parts 0 and 2 of two registers, and parts 1 and 3.
        let even =
            [_mm512_shuffle_f32x4::<0x88>(some[0], some[1]), _mm512_shuffle_f32x4::<0x88>(some[2], some[3])];
        let odd =
            [_mm512_shuffle_f32x4::<0xdd>(some[0], some[1]), _mm512_shuffle_f32x4::<0xdd>(some[2], some[3])];
        columns[c] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        columns[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        columns[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}
