//! Copies of views eight numbers at a time.

use std::arch::x86_64::*;

use super::{MOST_BORDERS, ViewCopy};
use crate::native::transposed::transposed;

/// The most runs of eight places that are loaded one by one.
const MOST_RUNS: usize = 3;

/// Eight lines or steps.
#[derive(Clone, Copy)]
struct Eight {
    at: __m256i,
    coordinates: [__m256i; MOST_BORDERS],
    places: Places,
}

/// Some of eight places, which lie side by side. `lanes` masks them, and place j is element `base + j`.
#[derive(Clone, Copy)]
struct Side {
    base: u32,
    lanes: __m256i,
}

/// How eight places lie.
#[derive(Clone, Copy)]
enum Places {
    /// All lie side by side, from this element on.
    One(u32),
    Runs([Side; MOST_RUNS], usize),
    Apart,
    /// The distances are too large for an instruction.
    Far,
}

/// Copies eight numbers at a time.
///
/// # Safety
/// The task's pointers hold what it reads and writes, and the CPU has AVX2.
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx2")]
pub(super) unsafe extern "C" fn copy(task: *const ViewCopy) {
    // SAFETY: what the caller promises.
    unsafe {
        let task = &*task;
        let (width, count) = (task.width as usize, task.count as usize);
        // Lines that lie side by side are copied step by step, and others line by line where it is the
        // steps that do.
        for first in (0..width).step_by(8) {
            let lines = eight(task.lines.add(first), width, 8, task.borders);
            if let Places::One(_) = lines.places {
                by_steps(task, first, &lines, 0..count);
                continue;
            }
            for p in (0..count).step_by(8) {
                let most = (count - p).min(8);
                let steps = eight(task.steps.add(p), task.apart as usize, most, task.borders);
                match (steps.places, lines.places) {
                    (Places::One(_), _) | (Places::Runs(..), Places::Apart | Places::Far) => {
                        by_lines(task, (first, p), &lines, &steps, most);
                    }
                    _ => by_steps(task, first, &lines, p..p + most),
                }
            }
        }
    }
}

/// Loads the first elements and coordinates of `most` places. The lanes after them hold any numbers.
///
/// # Safety
/// `from` has an array of first elements and one for each of the borders. They begin `apart` words from
/// each other, and each holds `most` numbers.
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx2")]
unsafe fn eight(from: *const u32, apart: usize, most: usize, borders: u32) -> Eight {
    // SAFETY: what the caller promises.
    let of = |array: usize| unsafe {
        let from = from.add(array * apart).cast::<i32>();
        if most == 8 { _mm256_loadu_si256(from.cast()) } else { _mm256_maskload_epi32(from, lanes(0..most)) }
    };
    let mut coordinates = [_mm256_setzero_si256(); MOST_BORDERS];
    for (i, own) in coordinates.iter_mut().enumerate().take(borders as usize) {
        *own = of(1 + i);
    }
    let at = of(0);
    Eight { at, coordinates, places: places(at, most) }
}

/// Returns a mask of lanes.
#[target_feature(enable = "avx2")]
fn lanes(range: std::ops::Range<usize>) -> __m256i {
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|lane| -i32::from(range.contains(&lane)));
    _mm256_setr_epi32(a, b, c, d, e, f, g, h)
}

#[target_feature(enable = "avx2")]
fn words(all: __m256i) -> [u32; 8] {
    let mut words = [0; 8];
    // SAFETY: the array has 32 bytes.
    #[expect(unsafe_code, reason = "a store of a register")]
    unsafe {
        _mm256_storeu_si256(words.as_mut_ptr().cast(), all);
    }
    words
}

#[target_feature(enable = "avx2")]
fn places(at: __m256i, most: usize) -> Places {
    let base = _mm256_extract_epi32::<0>(at);
    let side = _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    let equal = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(at, side)));
    if equal == 0xff {
        return Places::One(base.cast_unsigned());
    }
    let at = words(at);
    let mut runs = [Side { base: 0, lanes: _mm256_setzero_si256() }; MOST_RUNS];
    let (mut some, mut first) = (0, 0);
    while first < most {
        let base = at[first].wrapping_sub(first as u32);
        let is_next = |lane: &usize| at[*lane] == base.wrapping_add(*lane as u32);
        let end = (first..most).find(|lane| !is_next(lane)).unwrap_or(most);
        if some == MOST_RUNS {
            let is_near = |own: &u32| own.wrapping_sub(at[0]).cast_signed().unsigned_abs() < 1 << 28;
            return if at.iter().all(is_near) { Places::Apart } else { Places::Far };
        }
        runs[some] = Side { base, lanes: lanes(first..end) };
        (some, first) = (some + 1, end);
    }
    Places::Runs(runs, some)
}

/// Returns which of eight places are inside, where `others` are the coordinates of the other variable.
#[target_feature(enable = "avx2")]
fn inside(task: &ViewCopy, own: &Eight, others: impl Fn(usize) -> u32) -> __m256i {
    let sign = i32::MIN;
    let mut all = _mm256_set1_epi32(-1);
    for i in 0..task.borders as usize {
        // Numbers without a sign are compared as numbers with one whose highest bit is turned.
        let shift = others(i).cast_signed() ^ sign;
        let limit = task.limits[i].cast_signed() ^ sign;
        let coordinate = _mm256_add_epi32(own.coordinates[i], _mm256_set1_epi32(shift));
        all = _mm256_and_si256(all, _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), coordinate));
    }
    all
}

/// Loads the eight numbers from this element on. Where a number is not inside, returns the task's fill.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_side(task: &ViewCopy, element: u32, inside: __m256i) -> __m256 {
    let mask = _mm256_castsi256_ps(inside);
    let bits = _mm256_movemask_ps(mask).cast_unsigned();
    // SAFETY: no memory is read for places that are not inside.
    unsafe {
        if bits == 0xff {
            return _mm256_loadu_ps(task.from.add(element as usize));
        }
        // As in `load`.
        let lane = (bits | 0x80).trailing_zeros();
        let start = task.from.wrapping_add(element.wrapping_add(lane) as usize);
        let numbers = _mm256_maskload_ps(start.wrapping_sub(lane as usize), inside);
        _mm256_blendv_ps(_mm256_set1_ps(task.fill), numbers, mask)
    }
}

/// Loads the numbers of eight places, whose elements are `plus` further on. Where a number is not inside,
/// returns the task's fill.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx2")]
unsafe fn load(task: &ViewCopy, own: &Eight, inside: __m256i, plus: u32) -> __m256 {
    let mask = _mm256_castsi256_ps(inside);
    let bits = _mm256_movemask_ps(mask).cast_unsigned();
    // The first place inside has an element. Those before it may have none: their numbers wrap around.
    let start = |base: u32, lane: u32| {
        let element = base.wrapping_add(plus).wrapping_add(lane);
        task.from.wrapping_add(element as usize).wrapping_sub(lane as usize)
    };
    let fill = _mm256_set1_ps(task.fill);
    // SAFETY: no memory is read for places that are not inside.
    unsafe {
        match own.places {
            Places::One(base) => load_side(task, base.wrapping_add(plus), inside),
            Places::Runs(runs, some) => {
                let mut all = _mm256_setzero_ps();
                for run in &runs[..some] {
                    let lanes = _mm256_and_si256(inside, run.lanes);
                    let bits = _mm256_movemask_ps(_mm256_castsi256_ps(lanes)).cast_unsigned();
                    let start = start(run.base, (bits | 0x80).trailing_zeros());
                    all = _mm256_or_ps(all, _mm256_maskload_ps(start, lanes));
                }
                _mm256_blendv_ps(fill, all, mask)
            }
            Places::Apart => {
                let base = words(own.at)[(bits | 0x80).trailing_zeros() as usize];
                let distances = _mm256_sub_epi32(own.at, _mm256_set1_epi32(base.cast_signed()));
                _mm256_mask_i32gather_ps::<4>(fill, start(base, 0), distances, mask)
            }
            Places::Far => {
                let at = words(own.at);
                let number = |lane: usize| match bits >> lane & 1 {
                    0 => task.fill,
                    _ => *start(at[lane], 0),
                };
                let all: [f32; 8] = std::array::from_fn(number);
                _mm256_loadu_ps(all.as_ptr())
            }
        }
    }
}

/// Copies eight lines, one step after the other.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx2")]
unsafe fn by_steps(task: &ViewCopy, first: usize, lines: &Eight, steps: std::ops::Range<usize>) {
    let width = task.width as usize;
    // SAFETY: what the caller promises.
    unsafe {
        for p in steps {
            let inside = inside(task, lines, |i| *task.steps.add((1 + i) * task.apart as usize + p));
            let plus = *task.steps.add(p);
            let numbers = match lines.places {
                Places::One(base) => load_side(task, base.wrapping_add(plus), inside),
                _ => load(task, lines, inside, plus),
            };
            _mm256_storeu_ps(task.to.add(p * width + first), numbers);
        }
    }
}

/// Copies `most` steps from step p on of eight lines, one line after the other.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[target_feature(enable = "avx2")]
unsafe fn by_lines(task: &ViewCopy, (first, p): (usize, usize), lines: &Eight, steps: &Eight, most: usize) {
    let (width, at) = (task.width as usize, words(lines.at));
    let is_there = lanes(0..most);
    // SAFETY: what the caller promises.
    unsafe {
        let line = |lane: usize| {
            let inside = inside(task, steps, |i| *task.lines.add((1 + i) * width + first + lane));
            load(task, steps, _mm256_and_si256(inside, is_there), at[lane])
        };
        let turned = transposed(std::array::from_fn(line));
        for (d, numbers) in turned.into_iter().enumerate().take(most) {
            _mm256_storeu_ps(task.to.add((p + d) * width + first), numbers);
        }
    }
}
