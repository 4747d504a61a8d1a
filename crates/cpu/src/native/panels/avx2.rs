//! Products of panels by 16 registers of eight numbers.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{PanelProduct, blocks, in_tile, split};

/// Multiplies with 16 registers of eight numbers.
///
/// # Safety
/// As for [`super::product`], and the CPU has AVX2.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx2")]
pub(super) unsafe extern "C" fn product(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe { blocks::<4, 16>(task, split) }
}

/// How many steps [`fused`] adds up for all eight rows before it goes on with the next steps. This part of
/// the panel then stays in the L1 cache.
const STEPS: usize = 64;

/// Multiplies with 16 registers of eight numbers, and rounds once. Twelve registers hold the sums of three
/// rows. So many additions at a time keep both units of the CPU busy.
///
/// # Safety
/// As for [`super::product`], and the CPU has AVX2 and FMA3.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe extern "C" fn fused(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe {
        let task = &*task;
        in_tile(task, |tile| {
            let mut first = 0;
            // This runs once even without steps: then all sums are zero.
            loop {
                let end = (first + STEPS).min(task.steps as usize);
                three_rows::<3>(task, tile, 0, (first, end));
                three_rows::<3>(task, tile, 3, (first, end));
                three_rows::<2>(task, tile, 6, (first, end));
                first = end;
                if first == task.steps as usize {
                    break;
                }
            }
        });
    }
}

/// Adds the steps from `first` to `end` to the sums of `ROWS` rows (at most three) from row `row` on. The
/// tile holds the sums of the steps before.
///
/// # Safety
/// As for [`fused`]; `tile` is that of [`in_tile`], and `first <= end <= task.steps`.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn three_rows<const ROWS: usize>(
    task: &PanelProduct,
    tile: *mut f32,
    row: usize,
    (first, end): (usize, usize),
) {
    // SAFETY: what the caller promises.
    unsafe {
        let tile = tile.add(32 * row);
        let step = task.step as usize;
        // sums[h][r]: columns 8 * h to 8 * h + 7 of row r.
        let mut sums = [[_mm256_setzero_ps(); ROWS]; 4];
        if first > 0 {
            sums = from_fn(|h| from_fn(|r| _mm256_loadu_ps(tile.add(32 * r + 8 * h))));
        }
        let mut left: [*const f32; ROWS] =
            from_fn(|r| task.left.add(task.rows[row + r] as usize + first * step));
        let mut panel = task.panel.add(32 * first);
        for _ in first..end {
            let x: [__m256; ROWS] = from_fn(|r| _mm256_broadcast_ss(&*left[r]));
            for (h, sums) in sums.iter_mut().enumerate() {
                let y = _mm256_loadu_ps(panel.add(8 * h));
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = _mm256_fmadd_ps(x, y, *sum);
                }
            }
            panel = panel.add(32);
            left = left.map(|at| at.wrapping_add(step));
        }
        for (h, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                _mm256_storeu_ps(tile.add(32 * r + 8 * h), sum);
            }
        }
    }
}
