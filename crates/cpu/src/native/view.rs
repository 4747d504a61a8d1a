//! Copies of what a product reads where it is stored, such as the windows of a convolution's image, with the
//! same bits on every CPU.

use super::panels::{Run, Vectors};

/// The most coordinates that a line may have.
pub(crate) const MOST_BORDERS: usize = 3;

/// What [`Vectors::view_copy`]'s code copies: `count` steps of `width` lines, a multiple of eight. Number c
/// of step p is `from[lines[c] + steps[p]]`, and goes to `to[p * width + c]`. Its coordinate i is
/// `lines[(1 + i) * width + c] + steps[(1 + i) * apart + p]`. Where one of the `borders` coordinates is not
/// below its limit, the number is `fill`. All sums wrap around.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViewCopy {
    pub from: *const f32,
    pub to: *mut f32,
    pub lines: *const u32,
    pub steps: *const u32,
    pub width: u32,
    pub count: u32,
    pub apart: u32,
    pub borders: u32,
    pub limits: [u32; MOST_BORDERS],
    pub fill: f32,
}

impl Vectors {
    /// Returns the code, if there is some that is faster than that of the WGSL. It needs a CPU that has these
    /// vectors.
    pub fn view_copy(self) -> Option<Run<ViewCopy>> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx2 => Some(x86::copy),
            _ => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
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
            if most == 8 {
                _mm256_loadu_si256(from.cast())
            } else {
                _mm256_maskload_epi32(from, lanes(0..most))
            }
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
    unsafe fn by_lines(
        task: &ViewCopy,
        (first, p): (usize, usize),
        lines: &Eight,
        steps: &Eight,
        most: usize,
    ) {
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
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::native::vectors;

    /// Lines and steps as kernels have them: side by side, in rows of an image with and without a border,
    /// with gaps, and in no order.
    fn numbers(kind: usize, count: usize) -> Vec<u32> {
        let number = |i: usize| match kind {
            0 => i,
            1 => i / 13 * 15 + i % 13,
            2 => i / 5 * 40 + i % 5,
            3 => 2 * i,
            4 => i * 2_654_435_761 % 997,
            _ => 7 * i / 3,
        };
        (0..count).map(|i| number(i) as u32).collect()
    }

    #[test]
    fn copies_are_those_of_a_plain_loop() {
        let Some(code) = vectors().view_copy() else { return };
        let from: Vec<f32> = (0..4000).map(|i| i as f32 * 0.5 - 300.0).collect();
        let apart = 45;
        for width in [8, 32] {
            for case in 0..6 * 6 * 4 * 3 {
                let (outer, inner, borders, count) =
                    (case % 6, case / 6 % 6, case / 36 % 4, [0, 1, 45][case / 144]);
                // Elements before the first one are outside, and their numbers wrap around.
                let minus = if borders > 0 { 9_u32 } else { 0 };
                let mut lines = numbers(outer, width);
                lines.iter_mut().for_each(|at| *at = at.wrapping_sub(minus));
                let mut steps = numbers(inner, apart);
                for i in 0..borders {
                    let own =
                        |p: u32| if i == 0 { p.wrapping_sub(minus) } else { (p / 3 % 11).wrapping_sub(2) };
                    lines.extend(numbers(outer, width).into_iter().map(own));
                    steps.extend(numbers(inner, apart).into_iter().map(|p| if i == 0 { p } else { p % 7 }));
                }
                let limits = [if case % 2 == 0 { 3900 } else { 60 }, 9, 12];
                let mut expected = vec![f32::NAN; width * apart];
                for (place, number) in expected.iter_mut().enumerate().take(width * count) {
                    let (p, c) = (place / width, place % width);
                    let sum = |array: usize| lines[array * width + c].wrapping_add(steps[array * apart + p]);
                    let inside = (0..borders).all(|i| sum(1 + i) < limits[i]);
                    *number = if inside { from[sum(0) as usize] } else { -7.5 };
                }
                let mut to = vec![f32::NAN; width * apart];
                let task = ViewCopy {
                    from: from.as_ptr(),
                    to: to.as_mut_ptr(),
                    lines: lines.as_ptr(),
                    steps: steps.as_ptr(),
                    width: width as u32,
                    count: count as u32,
                    apart: apart as u32,
                    borders: borders as u32,
                    limits,
                    fill: -7.5,
                };
                // SAFETY: the plain loop above read and wrote the same places.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    code(&task);
                }
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(
                    bits(&to) == bits(&expected),
                    "{width} lines of kind {outer}, {count} steps of kind {inner}, {borders} borders"
                );
            }
        }
    }
}
