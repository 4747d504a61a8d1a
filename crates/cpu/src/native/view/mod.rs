//! Copies of what a product reads where it is stored, such as the windows of a convolution's image, with the
//! same bits on every CPU.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

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
            Self::Avx512 => Some(avx512::copy),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Some(avx2::copy),
            _ => None,
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

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
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                for (own, code) in Vectors::of_this_cpu().filter_map(|own| Some((own, own.view_copy()?))) {
                    to.fill(f32::NAN);
                    let task = ViewCopy { to: to.as_mut_ptr(), ..task };
                    // SAFETY: the plain loop above read and wrote the same places.
                    #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                    unsafe {
                        code(&task);
                    }
                    assert!(
                        bits(&to) == bits(&expected),
                        "{own:?}: {width} lines of kind {outer}, {count} steps of kind {inner}, {borders} borders"
                    );
                }
            }
        }
    }
}
