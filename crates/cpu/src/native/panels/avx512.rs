//! Products of panels by 32 registers of sixteen numbers.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{COMPLETE, PanelProduct};

/// Multiplies with 32 registers of sixteen numbers.
///
/// # Safety
/// As for [`super::product`], and the CPU has AVX-512.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe extern "C" fn product(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe { eight_rows(&*task, |x, y, sum| _mm512_add_ps(sum, _mm512_mul_ps(x, y))) }
}

/// Multiplies with 32 registers of sixteen numbers, and rounds once.
///
/// # Safety
/// As for [`super::product`], and the CPU has AVX-512.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe extern "C" fn fused(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe { eight_rows(&*task, |x, y, sum| _mm512_fmadd_ps(x, y, sum)) }
}

/// How many steps ahead [`eight_rows`] fetches what it reads of the left operand.
const AHEAD: usize = 6;

/// Computes a tile, where `add(x, y, sum)` adds a product to a sum. All sums stay in registers until what
/// waits is added to them. To store and load them in between would take as long as a few steps do.
///
/// # Safety
/// As for [`super::product`], and the CPU has AVX-512.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn eight_rows(task: &PanelProduct, add: impl Fn(__m512, __m512, __m512) -> __m512) {
    // SAFETY: what the caller promises: rows, panel, levels and the goal hold what is read and written.
    unsafe {
        // sums[r][h]: columns 16 * h to 16 * h + 15 of row r.
        let mut sums = [[_mm512_setzero_ps(); 2]; 8];
        let left = task.rows.map(|row| task.left.add(row as usize));
        let first = match task.step {
            1 => fours::<1>(&mut sums, left, task, &add),
            8 => fours::<8>(&mut sums, left, task, &add),
            _ => 0,
        };
        let step = task.step as usize;
        for p in first..task.steps as usize {
            // The CPU foresees steps that lie side by side. If they lie far apart, the eight rows lie side by
            // side, so that the address of the first is enough.
            _mm_prefetch::<_MM_HINT_T0>(left[0].wrapping_add((p + AHEAD) * step).cast());
            one_step(&mut sums, left.map(|at| at.add(p * step)), task.panel.add(32 * p), &add);
        }
        let level = |number: u32| task.waiting.wrapping_add(number as usize * task.level as usize);
        for number in 0..task.levels {
            let waiting = level(number);
            for (r, sums) in sums.iter_mut().enumerate() {
                for (h, sum) in sums.iter_mut().enumerate() {
                    let waiting = _mm512_loadu_ps(waiting.add(32 * r + 16 * h));
                    // A sum that is not kept counts as +0. Adding that would not change what waits, which is
                    // canonical, so the mask leaves the addition out.
                    *sum = _mm512_mask_add_ps(waiting, is_kept(*sum), waiting, *sum);
                }
            }
        }
        for sum in sums.as_flattened_mut() {
            *sum = _mm512_maskz_mov_ps(is_kept(*sum), *sum);
        }
        if task.waits_at != COMPLETE {
            let waiting = level(task.waits_at);
            for (r, sums) in sums.iter().enumerate() {
                for (h, sum) in sums.iter().enumerate() {
                    _mm512_storeu_ps(waiting.add(32 * r + 16 * h), *sum);
                }
            }
            return;
        }
        let goal = &task.goal;
        for (columns, to) in goal.pieces() {
            let lanes = ((1_u64 << columns.end) - (1_u64 << columns.start)) as u32;
            let (low, high) = (lanes as u16, (lanes >> 16) as u16);
            for (r, sums) in sums.iter().enumerate() {
                if r < goal.rows as usize {
                    let to = to.wrapping_add(r * goal.step as usize);
                    // A store of nothing would still look its page up.
                    if low != 0 {
                        _mm512_mask_storeu_ps(to, low, sums[0]);
                    }
                    if high != 0 {
                        _mm512_mask_storeu_ps(to.wrapping_add(16), high, sums[1]);
                    }
                }
            }
        }
    }
}

/// Adds steps to all sums, four at a time, so that the loop itself takes little of it. Returns their number,
/// which leaves fewer than four. `STEP` is the task's step: the addresses of four steps then differ by
/// constants.
///
/// # Safety
/// As for [`eight_rows`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn fours<const STEP: usize>(
    sums: &mut [[__m512; 2]; 8],
    mut left: [*const f32; 8],
    task: &PanelProduct,
    add: impl Fn(__m512, __m512, __m512) -> __m512,
) -> usize {
    let mut panel = task.panel;
    for _ in 0..task.steps / 4 {
        for d in 0..4 {
            // SAFETY: what the caller promises.
            unsafe { one_step(sums, left.map(|at| at.add(STEP * d)), panel.add(32 * d), &add) };
        }
        left = left.map(|at| at.wrapping_add(4 * STEP));
        panel = panel.wrapping_add(4 * 32);
    }
    task.steps as usize / 4 * 4
}

/// Adds a step to all sums.
///
/// # Safety
/// Each of `left` has a number, and `panel` has 32.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn one_step(
    sums: &mut [[__m512; 2]; 8],
    left: [*const f32; 8],
    panel: *const f32,
    add: impl Fn(__m512, __m512, __m512) -> __m512,
) {
    // SAFETY: what the caller promises.
    unsafe {
        let columns: [__m512; 2] = from_fn(|h| _mm512_loadu_ps(panel.add(16 * h)));
        for (sums, left) in sums.iter_mut().zip(left) {
            let x = _mm512_set1_ps(*left);
            for (sum, y) in sums.iter_mut().zip(columns) {
                *sum = add(x, y, *sum);
            }
        }
    }
}

/// Returns which numbers [`super::canonical`] leaves as they are.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_kept(numbers: __m512) -> __mmask16 {
    let magnitude = _mm512_and_si512(_mm512_castps_si512(numbers), _mm512_set1_epi32(0x7fff_ffff));
    _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x0080_0000))
}
