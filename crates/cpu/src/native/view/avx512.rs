//! Copies of views sixteen numbers at a time.

use std::arch::x86_64::*;

use super::{MOST_BORDERS, ViewCopy};
use crate::native::transposed::{sixteen_columns, transposed};

/// The most runs of sixteen places that are loaded one by one.
const MOST_RUNS: usize = 4;

/// Up to sixteen lines or steps.
#[derive(Clone, Copy)]
struct Sixteen {
    /// Which of the sixteen there are.
    lanes: __mmask16,
    at: __m512i,
    coordinates: [__m512i; MOST_BORDERS],
    places: Places,
}

/// How the places of some lines or steps lie.
#[derive(Clone, Copy)]
enum Places {
    /// All lie side by side, the first of them at this element.
    One(i32),
    /// Several runs of adjacent places, and their number. In each run, lane j is at element `base + j`.
    Runs([(i32, __mmask16); MOST_RUNS], usize),
    Apart,
}

/// Copies sixteen numbers at a time.
///
/// # Safety
/// The task's pointers hold what it reads and writes, and the CPU has AVX-512.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe extern "C" fn copy(task: *const ViewCopy) {
    // SAFETY: what the caller promises.
    unsafe {
        let task = &*task;
        // The number of borders is known where places are compared with them.
        match task.borders {
            0 => all::<0>(task),
            1 => all::<1>(task),
            2 => all::<2>(task),
            _ => all::<MOST_BORDERS>(task),
        }
    }
}

/// Copies all lines. `BORDERS` is the number of coordinates that have a limit.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx512f")]
unsafe fn all<const BORDERS: usize>(task: &ViewCopy) {
    // SAFETY: what the caller promises.
    unsafe {
        let (width, count) = (task.width as usize, task.count as usize);
        // Lines that lie side by side are copied step by step, and others line by line where it is the steps
        // that do.
        for first in (0..width).step_by(16) {
            let lines = sixteen::<BORDERS>(task.lines.add(first), width, (width - first).min(16));
            if let Places::One(_) = lines.places {
                by_steps::<BORDERS>(task, first, &lines, 0..count);
                continue;
            }
            for p in (0..count).step_by(16) {
                let most = (count - p).min(16);
                let steps = sixteen::<BORDERS>(task.steps.add(p), task.apart as usize, most);
                match (steps.places, lines.places) {
                    (Places::One(_), _) | (Places::Runs(..), Places::Apart) => {
                        by_lines::<BORDERS>(task, (first, p), lines.lanes, &steps);
                    }
                    _ => by_steps::<BORDERS>(task, first, &lines, p..p + most),
                }
            }
        }
    }
}

/// Loads the first elements and coordinates of `most` places.
///
/// # Safety
/// `from` has an array of first elements and one for each of the borders. They begin `apart` words from each
/// other, and each holds `most` numbers.
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx512f")]
unsafe fn sixteen<const BORDERS: usize>(from: *const u32, apart: usize, most: usize) -> Sixteen {
    let lanes = mask(most);
    // SAFETY: what the caller promises.
    let of = |array: usize| unsafe { _mm512_maskz_loadu_epi32(lanes, from.add(array * apart).cast()) };
    let mut coordinates = [_mm512_setzero_si512(); MOST_BORDERS];
    for (i, own) in coordinates.iter_mut().enumerate().take(BORDERS) {
        *own = of(1 + i);
    }
    let at = of(0);
    Sixteen { lanes, at, coordinates, places: places(at, most) }
}

/// Returns the first `count` lanes.
fn mask(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

#[target_feature(enable = "avx512f")]
fn places(at: __m512i, most: usize) -> Places {
    let lanes = mask(most);
    let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Places of a run have the same distance from the numbers of their lanes.
    let bases = _mm512_sub_epi32(at, numbers);
    let base = _mm512_cvtsi512_si32(bases);
    let (mut runs, mut count) = ([(0, 0); MOST_RUNS], 0);
    let mut rest = lanes;
    let mut own = base;
    while rest != 0 {
        if count == MOST_RUNS {
            return Places::Apart;
        }
        let run = _mm512_mask_cmpeq_epi32_mask(rest, bases, _mm512_set1_epi32(own));
        runs[count] = (own, run);
        count += 1;
        rest &= !run;
        let next = _mm512_maskz_compress_epi32(rest, bases);
        own = _mm512_cvtsi512_si32(next);
    }
    if count == 1 { Places::One(base) } else { Places::Runs(runs, count) }
}

/// Returns which of some places are inside, where `others` are the coordinates of the other variable.
#[inline]
#[target_feature(enable = "avx512f")]
fn inside<const BORDERS: usize>(task: &ViewCopy, own: &Sixteen, others: impl Fn(usize) -> u32) -> __mmask16 {
    let mut all = own.lanes;
    for i in 0..BORDERS {
        let limit = _mm512_set1_epi32(task.limits[i].cast_signed());
        let other = _mm512_set1_epi32(others(i).cast_signed());
        all = _mm512_mask_cmplt_epu32_mask(all, _mm512_add_epi32(own.coordinates[i], other), limit);
    }
    all
}

/// How many steps ahead [`by_steps`] fetches what it copies.
const AHEAD: usize = 18;

/// Begins to bring the first of some places into the cache, `plus` elements further on. Nothing is read where
/// there is no memory.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(task: &ViewCopy, own: &Sixteen, plus: i32) {
    let first = match own.places {
        Places::One(base) | Places::Runs([(base, _), ..], _) => base,
        Places::Apart => return,
    };
    let at = task.from.wrapping_offset(first.wrapping_add(plus) as isize);
    _mm_prefetch::<_MM_HINT_T0>(at.cast());
}

/// Loads the numbers of places, whose elements are `plus` further on. Where a number is not inside, returns
/// the task's fill.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(task: &ViewCopy, own: &Sixteen, inside: __mmask16, plus: i32) -> __m512 {
    // A binding has fewer than 2^30 elements. Places that are not inside may have none, and some wrapped
    // around; no memory is read for them.
    let start = |base: i32| task.from.wrapping_offset(base.wrapping_add(plus) as isize);
    let fill = _mm512_set1_ps(task.fill);
    // SAFETY: what the caller promises for places that are inside.
    unsafe {
        match own.places {
            Places::One(base) => _mm512_mask_loadu_ps(fill, inside, start(base)),
            Places::Runs(runs, count) => {
                let mut all = fill;
                for &(base, lanes) in &runs[..count] {
                    all = _mm512_mask_loadu_ps(all, inside & lanes, start(base));
                }
                all
            }
            Places::Apart => {
                let base = _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(inside, own.at));
                let distances = _mm512_sub_epi32(own.at, _mm512_set1_epi32(base));
                _mm512_mask_i32gather_ps::<4>(fill, inside, distances, start(base))
            }
        }
    }
}

/// Copies up to sixteen lines, one step after the other.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx512f")]
unsafe fn by_steps<const BORDERS: usize>(
    task: &ViewCopy,
    first: usize,
    lines: &Sixteen,
    steps: std::ops::Range<usize>,
) {
    let (width, apart) = (task.width as usize, task.apart as usize);
    // SAFETY: what the caller promises.
    unsafe {
        for p in steps {
            let inside = inside::<BORDERS>(task, lines, |i| *task.steps.add((1 + i) * apart + p));
            let ahead = (*task.steps.add((p + AHEAD).min(task.count as usize - 1))).cast_signed();
            fetch(task, lines, ahead);
            let numbers = load(task, lines, inside, (*task.steps.add(p)).cast_signed());
            _mm512_mask_storeu_ps(task.to.add(p * width + first), lines.lanes, numbers);
        }
    }
}

/// Copies some steps from step p on of eight or sixteen lines, one line after the other.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx512f")]
unsafe fn by_lines<const BORDERS: usize>(
    task: &ViewCopy,
    (first, p): (usize, usize),
    lines: __mmask16,
    steps: &Sixteen,
) {
    let width = task.width as usize;
    // SAFETY: what the caller promises.
    unsafe {
        // These are loops because closures with AVX-512 were not inlined into `array::from_fn`.
        let mut rows = [_mm512_setzero_ps(); 16];
        let some = if lines == mask(16) { 16 } else { 8 };
        for (lane, row) in rows.iter_mut().enumerate().take(some) {
            let line = first + lane;
            let inside = inside::<BORDERS>(task, steps, |i| *task.lines.add((1 + i) * width + line));
            // The steps of the call after the next one.
            fetch(task, steps, (*task.lines.add(line)).cast_signed().wrapping_add(32));
            *row = load(task, steps, inside, (*task.lines.add(line)).cast_signed());
        }
        let to = task.to.add(p * width + first);
        let count = steps.lanes.count_ones() as usize;
        if some == 16 {
            let turned = sixteen_columns(rows);
            for (d, numbers) in turned.into_iter().enumerate().take(count) {
                _mm512_storeu_ps(to.add(d * width), numbers);
            }
            return;
        }
        let (mut low, mut high) = ([_mm256_setzero_ps(); 8], [_mm256_setzero_ps(); 8]);
        for ((low, high), row) in low.iter_mut().zip(&mut high).zip(rows) {
            *low = _mm512_castps512_ps256(row);
            *high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(row)));
        }
        let (low, high) = (transposed(low), transposed(high));
        for (d, numbers) in low.into_iter().chain(high).enumerate().take(count) {
            _mm256_storeu_ps(to.add(d * width), numbers);
        }
    }
}
