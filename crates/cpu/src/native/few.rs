//! Products of few rows, which take the time that reading the right operand takes, with the same bits on
//! every CPU.

use super::Rounding;
use super::panels::{Run, Vectors, once, split};

/// What [`Vectors::few_product`]'s code computes: `rows` rows of numbers. Number c of row r is the sum over
/// p, in order from +0, of `left[r * row + p * step] * right[p * right_step + c * column]`. Each product and
/// each sum is rounded, or with [`Rounding::Fused`] both at once. The row goes to `tile[r * width..]`, as far
/// as `last` or up to the next multiple of eight. `width` is a multiple of eight, and `column` or
/// `right_step` is 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewProduct {
    pub left: *const f32,
    pub right: *const f32,
    pub tile: *mut f32,
    pub rows: u32,
    pub row: u32,
    pub step: u32,
    pub column: u32,
    pub right_step: u32,
    pub steps: u32,
    pub last: u32,
    pub width: u32,
}

impl Vectors {
    /// Returns the code, which needs a CPU that has these vectors.
    pub fn few_product(self, rounding: Rounding) -> Run<FewProduct> {
        match (self, rounding) {
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512 | Self::Avx2, Rounding::Split) => x86::product_avx2,
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512 | Self::Avx2, Rounding::Fused) if super::has_fma() => x86::fused_avx2,
            (_, Rounding::Split) => product,
            (_, Rounding::Fused) => fused_product,
        }
    }
}

/// Eight numbers, for which a CPU has one register or two.
type Eight = [f32; 8];

/// What the codes for different CPUs differ in.
trait Cpu: Copy {
    /// Adds a product to a sum.
    fn add(self, x: f32, y: f32, sum: f32) -> f32;

    /// Returns eight numbers of each of eight columns step by step. The columns after these are needed next.
    ///
    /// # Safety
    /// There are eight numbers from each start on.
    #[expect(unsafe_code, reason = "memory of kernels")]
    unsafe fn turned(self, starts: [*const f32; 8], next: usize) -> [Eight; 8];

    /// Says that the memory at an address is needed soon. There need not be any.
    fn fetch(self, at: *const f32);
}

/// Computes a task.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn run(task: *const FewProduct, cpu: impl Cpu) {
    // SAFETY: what the caller promises.
    unsafe {
        let task = &*task;
        let columns = (task.last as usize + 1).min(task.width as usize);
        if task.column == 1 {
            let whole = columns / 8 * 8;
            across(task, whole, cpu);
            (whole..columns).for_each(|column| one_column(task, column, cpu));
        } else {
            (0..columns).step_by(8).for_each(|first| eight_columns(task, first, cpu));
        }
    }
}

/// Returns eight numbers of the tile.
///
/// # Safety
/// The tile has them.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn sums(task: &FewProduct, row: usize, column: usize) -> *mut Eight {
    // SAFETY: what the caller promises.
    unsafe { task.tile.add(row * task.width as usize + column).cast() }
}

/// Returns an element of the left operand.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn left(task: &FewProduct, row: usize, step: usize) -> f32 {
    // SAFETY: what the caller promises.
    unsafe { *task.left.add(row * task.row as usize + step * task.step as usize) }
}

/// Computes columns that lie side by side, eight at a time, where `whole` of them is a multiple of eight.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn across(task: &FewProduct, whole: usize, cpu: impl Cpu) {
    // SAFETY: what the caller promises.
    unsafe {
        for row in 0..task.rows as usize {
            (0..whole).step_by(8).for_each(|column| sums(task, row, column).write_unaligned([0.0; 8]));
        }
        let fours = task.steps as usize / 4 * 4;
        (0..fours).step_by(4).for_each(|p| some_steps::<4>(task, p, whole, cpu));
        (fours..task.steps as usize).for_each(|p| some_steps::<1>(task, p, whole, cpu));
    }
}

/// Adds some steps to the sums of columns that lie side by side.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn some_steps<const STEPS: usize>(task: &FewProduct, first: usize, whole: usize, cpu: impl Cpu) {
    // SAFETY: what the caller promises.
    unsafe {
        let step = task.right_step as usize;
        for column in (0..whole).step_by(8) {
            let start = task.right.add(first * step + column);
            let right: [Eight; STEPS] =
                std::array::from_fn(|d| start.add(d * step).cast::<Eight>().read_unaligned());
            if column % 16 == 0 {
                (0..STEPS).for_each(|d| cpu.fetch(start.wrapping_add((2 * STEPS + d) * step)));
            }
            for row in 0..task.rows as usize {
                let at = sums(task, row, column);
                let mut sum = at.read_unaligned();
                for (d, right) in right.iter().enumerate() {
                    let x = left(task, row, first + d);
                    for (sum, y) in sum.iter_mut().zip(right) {
                        *sum = cpu.add(x, *y, *sum);
                    }
                }
                at.write_unaligned(sum);
            }
        }
    }
}

/// Computes one column.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn one_column(task: &FewProduct, column: usize, cpu: impl Cpu) {
    // SAFETY: what the caller promises.
    unsafe {
        for row in 0..task.rows as usize {
            let mut sum = 0.0;
            for p in 0..task.steps as usize {
                let y = *task.right.add(p * task.right_step as usize + column * task.column as usize);
                sum = cpu.add(left(task, row, p), y, sum);
            }
            *task.tile.add(row * task.width as usize + column) = sum;
        }
    }
}

/// Computes eight columns of a right operand that stores each column's steps side by side. Where fewer than
/// eight columns are left, the last one is computed again in place of the missing ones.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn eight_columns(task: &FewProduct, first: usize, cpu: impl Cpu) {
    // SAFETY: what the caller promises.
    unsafe {
        let column = |c: usize| (first + c).min(task.last as usize) * task.column as usize;
        let starts: [*const f32; 8] = std::array::from_fn(|c| task.right.add(column(c)));
        for row in 0..task.rows as usize {
            sums(task, row, first).write_unaligned([0.0; 8]);
        }
        let eights = task.steps as usize / 8 * 8;
        for p in (0..eights).step_by(8) {
            let right = cpu.turned(starts.map(|start| start.add(p)), 8 * task.column as usize);
            add_steps(task, (p, first), &right, cpu);
        }
        for p in eights..task.steps as usize {
            add_steps(task, (p, first), &[starts.map(|start| *start.add(p))], cpu);
        }
    }
}

/// Adds some steps to the sums of eight columns.
///
/// # Safety
/// As for [`run`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn add_steps<const STEPS: usize>(
    task: &FewProduct,
    (first, column): (usize, usize),
    right: &[Eight; STEPS],
    cpu: impl Cpu,
) {
    // SAFETY: what the caller promises.
    unsafe {
        for row in 0..task.rows as usize {
            let at = sums(task, row, column);
            let mut sum = at.read_unaligned();
            for (d, right) in right.iter().enumerate() {
                let x = left(task, row, first + d);
                for (sum, y) in sum.iter_mut().zip(right) {
                    *sum = cpu.add(x, *y, *sum);
                }
            }
            at.write_unaligned(sum);
        }
    }
}

/// Any CPU.
#[derive(Clone, Copy)]
struct Plain<Add>(Add);

#[expect(unsafe_code, reason = "memory of kernels")]
impl<Add: Fn(f32, f32, f32) -> f32 + Copy> Cpu for Plain<Add> {
    #[inline(always)]
    fn add(self, x: f32, y: f32, sum: f32) -> f32 {
        self.0(x, y, sum)
    }

    #[inline(always)]
    unsafe fn turned(self, starts: [*const f32; 8], _: usize) -> [Eight; 8] {
        // SAFETY: what the caller promises.
        std::array::from_fn(|p| starts.map(|start| unsafe { *start.add(p) }))
    }

    #[inline(always)]
    fn fetch(self, _: *const f32) {}
}

/// Multiplies on any CPU.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn product(task: *const FewProduct) {
    // SAFETY: what the caller promises.
    unsafe { run(task, Plain(split)) }
}

/// Multiplies on any CPU, and rounds once.
///
/// # Safety
/// As for [`product`].
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn fused_product(task: *const FewProduct) {
    // SAFETY: what the caller promises.
    unsafe { run(task, Plain(once)) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Cpu, Eight, FewProduct, run, split};
    use crate::native::transposed::transposed;

    /// A CPU with registers of eight numbers.
    #[derive(Clone, Copy)]
    struct Avx2<Add>(Add);

    #[expect(unsafe_code, reason = "registers, and memory of kernels")]
    impl<Add: Fn(f32, f32, f32) -> f32 + Copy> Cpu for Avx2<Add> {
        #[inline(always)]
        fn add(self, x: f32, y: f32, sum: f32) -> f32 {
            self.0(x, y, sum)
        }

        #[inline(always)]
        unsafe fn turned(self, starts: [*const f32; 8], next: usize) -> [Eight; 8] {
            for start in starts {
                self.fetch(start.wrapping_add(next));
            }
            // SAFETY: what the caller promises; only functions for CPUs with AVX2 use this type.
            unsafe {
                let rows = std::array::from_fn(|r| _mm256_loadu_ps(starts[r]));
                let turned = transposed(rows);
                std::array::from_fn(|p| std::mem::transmute::<__m256, Eight>(turned[p]))
            }
        }

        #[inline(always)]
        fn fetch(self, at: *const f32) {
            // SAFETY: every CPU of this kind has the instruction, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
    }

    /// Multiplies with registers of eight numbers.
    ///
    /// # Safety
    /// As for [`super::product`], and the CPU has AVX2.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe extern "C" fn product_avx2(task: *const FewProduct) {
        // SAFETY: what the caller promises.
        unsafe { run(task, Avx2(split)) }
    }

    /// Multiplies with registers of eight numbers, and rounds once.
    ///
    /// # Safety
    /// As for [`super::product`], and the CPU has AVX2 and FMA3.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe extern "C" fn fused_avx2(task: *const FewProduct) {
        // SAFETY: what the caller promises.
        unsafe { run(task, Avx2(|x: f32, y: f32, sum: f32| x.mul_add(y, sum))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::panels::tests::number;

    /// All codes that this CPU can run give the bits of a plain loop.
    #[test]
    fn products_of_few_rows_have_the_same_bits_on_all_cpus() {
        const WIDTH: usize = 32;
        let left: Vec<f32> = (0..16 * 150).map(number).collect();
        let right: Vec<f32> = (3..3 + 160 * 160).map(number).collect();
        for own in Vectors::of_this_cpu() {
            for rounding in [Rounding::Split, Rounding::Fused] {
                for (rows, steps, last) in
                    [(1, 0, 31), (1, 128, 40), (3, 70, 31), (16, 13, 18), (10, 5, 0), (2, 8, 7)]
                {
                    for (row, step) in [(150, 1), (1, 16)] {
                        for (column, right_step) in [(1, 160), (160, 1)] {
                            let mut tile = vec![f32::NAN; 16 * WIDTH];
                            let task = FewProduct {
                                left: left.as_ptr(),
                                right: right.as_ptr(),
                                tile: tile.as_mut_ptr(),
                                rows,
                                row,
                                step,
                                column,
                                right_step,
                                steps,
                                last,
                                width: WIDTH as u32,
                            };
                            // SAFETY: rows, steps and columns are within `left`, `right` and `tile`.
                            #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                            unsafe {
                                own.few_product(rounding)(&task);
                            }
                            let expected = |r: usize, c: usize| {
                                (0..steps as usize).fold(0.0f32, |sum, p| {
                                    let x = left[r * row as usize + p * step as usize];
                                    let y = right[p * right_step as usize + c * column as usize];
                                    if rounding == Rounding::Fused { x.mul_add(y, sum) } else { sum + x * y }
                                })
                            };
                            for r in 0..rows as usize {
                                for c in 0..WIDTH.min(last as usize + 1) {
                                    let (found, expected) = (tile[r * WIDTH + c], expected(r, c));
                                    assert!(
                                        found.to_bits() == expected.to_bits(),
                                        "{own:?}, {task:?}, row {r}, column {c}: {found}, {expected}"
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
