//! Products of panels, which kernels of products spend most of their time in, for the vectors that this CPU
//! has, and with the same bits on every CPU.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{Rounding, fused};

/// What [`Vectors::panel_product`]'s code computes: eight rows of 32 numbers. Row r is the sum over p, in
/// order from +0, of `left[rows[r] + p * step] * panel[32 * p..][..32]`, where each product and each sum is
/// rounded, or with [`Rounding::Fused`] both at once. What waits at the first `levels` levels is added to it,
/// level by level, as `waiting + canonical(row)`. The canonical row goes to level `waits_at` of `waiting`, or
/// to `goal`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelProduct {
    pub left: *const f32,
    pub panel: *const f32,
    pub waiting: *mut f32,
    pub goal: Goal,
    /// Where the rows of `left` begin.
    pub rows: [u32; 8],
    /// How far apart two steps of `left` are.
    pub step: u32,
    pub steps: u32,
    pub levels: u32,
    /// The level at which the rows wait, or [`COMPLETE`].
    pub waits_at: u32,
    /// How far apart two levels are.
    pub level: u32,
}

/// The memory that a block of sums is written to. Column c of row r goes to `to[r * step + c]`, as long
/// as c is less than `split`. The columns from `split` on are cut into pieces of `width` columns, such as
/// those of one sample, and each piece lies `jump` elements further than the piece before it. A block has
/// at most 8 rows and 32 columns. `split` and `width` are multiples of four, and not 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub to: *mut f32,
    pub step: u32,
    pub rows: u32,
    pub columns: u32,
    pub split: u32,
    pub width: u32,
    pub jump: u32,
}

impl Goal {
    /// Returns the ranges of columns that lie side by side, each with where its column 0 would be.
    fn pieces(&self) -> impl Iterator<Item = (Range<usize>, *mut f32)> {
        let [columns, split, width] = [self.columns, self.split, self.width].map(|count| count as usize);
        let (mut next, mut to, jump) = (0..split.min(columns), self.to, self.jump as usize);
        std::iter::from_fn(move || {
            let own = (!next.is_empty()).then(|| (next.clone(), to))?;
            next = next.end..(next.end + width).min(columns);
            to = to.wrapping_add(jump);
            Some(own)
        })
    }
}

/// Says of sums that they do not wait for others.
pub(crate) const COMPLETE: u32 = u32::MAX;

/// Code that does what a task says.
pub(crate) type Run<Task> = unsafe extern "C" fn(*const Task);

/// The vectors that native code may use, from the shortest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "these are of x86-64"))]
pub(crate) enum Vectors {
    /// Those that every CPU has.
    Plain,
    Avx2,
    Avx512,
}

/// Returns the vectors of this CPU.
pub(crate) fn vectors() -> Vectors {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && !cfg!(miri) {
            return Vectors::Avx512;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return Vectors::Avx2;
        }
    }
    Vectors::Plain
}

/// Returns whether this CPU has an instruction for `fma` with [`Rounding::Fused`]: FMA3, or that of
/// AArch64, on which every CPU has it.
pub fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

impl Vectors {
    /// Returns all vectors of this CPU, for tests that run each version of a code.
    #[cfg(test)]
    pub fn of_this_cpu() -> impl Iterator<Item = Self> {
        [Self::Plain, Self::Avx2, Self::Avx512].into_iter().filter(|own| *own <= vectors())
    }

    /// Returns the product's code, which needs a CPU that has these vectors.
    pub fn panel_product(self, rounding: Rounding) -> Run<PanelProduct> {
        match (self, rounding) {
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512, Rounding::Split) => avx512::product,
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512, Rounding::Fused) => avx512::fused,
            #[cfg(target_arch = "x86_64")]
            (Self::Avx2, Rounding::Split) => avx2::product,
            #[cfg(target_arch = "x86_64")]
            (Self::Avx2, Rounding::Fused) if has_fma() => avx2::fused,
            (_, Rounding::Split) => product,
            (_, Rounding::Fused) => fused_product,
        }
    }
}

/// Returns +0 for a number of magnitude 2^-126 or less, and any other as it is.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    if x.to_bits() & 0x7fff_ffff <= 0x0080_0000 { 0.0 } else { x }
}

/// Eight rows of sums before anything is added to them.
type Tile = [[f32; 32]; 8];

/// Computes `ROWS` rows and `WIDTH` columns of a [`Tile`], for which all sums are in registers.
///
/// # Safety
/// As for [`product`], and `tile` is that of [`in_tile`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn block<const ROWS: usize, const WIDTH: usize>(
    task: &PanelProduct,
    tile: *mut f32,
    (first, column): (usize, usize),
    add: impl Fn(f32, f32, f32) -> f32,
) {
    let mut sums = [[0.0f32; WIDTH]; ROWS];
    // SAFETY: what the caller promises: rows, panel, tile and levels hold what is read and written.
    unsafe {
        let starts: [*const f32; ROWS] =
            std::array::from_fn(|r| task.left.add(task.rows[first + r] as usize));
        let panel = task.panel.add(column);
        for p in 0..task.steps as usize {
            let columns = panel.add(32 * p).cast::<[f32; WIDTH]>().read_unaligned();
            for (sums, start) in sums.iter_mut().zip(starts) {
                let x = *start.add(p * task.step as usize);
                for (sum, y) in sums.iter_mut().zip(columns) {
                    *sum = add(x, y, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            tile.add(32 * (first + r) + column).cast::<[f32; WIDTH]>().write_unaligned(sums);
        }
    }
}

/// Computes a task, where `sums` writes the sums to a tile before anything is added to them. Then adds what
/// waits, and writes the sums to where they go.
///
/// # Safety
/// As for [`product`], and `sums` writes a whole tile.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn in_tile(task: &PanelProduct, sums: impl FnOnce(*mut f32)) {
    let mut tile = MaybeUninit::<Tile>::uninit();
    // If the compiler knew this memory, it would put sums there instead of in registers.
    let at = std::hint::black_box(tile.as_mut_ptr());
    sums(at.cast());
    // SAFETY: what the caller promises.
    let tile = unsafe { &mut *at };
    let level = |number: u32| task.waiting.wrapping_add(number as usize * task.level as usize);
    // SAFETY: what the caller promises: levels hold eight rows, and the goal what goes there.
    unsafe {
        let sums = tile.as_flattened_mut();
        for number in 0..task.levels {
            let waiting = std::slice::from_raw_parts(level(number), 256);
            for (sum, waiting) in sums.iter_mut().zip(waiting) {
                *sum = waiting + canonical(*sum);
            }
        }
        if task.waits_at != COMPLETE {
            let waiting = std::slice::from_raw_parts_mut(level(task.waits_at), 256);
            for (place, sum) in waiting.iter_mut().zip(sums) {
                *place = canonical(*sum);
            }
            return;
        }
        let goal = &task.goal;
        for (columns, to) in goal.pieces() {
            for (r, row) in tile[..goal.rows as usize].iter().enumerate() {
                let to = to.wrapping_add(r * goal.step as usize);
                let mut column = columns.start;
                while column + 16 <= columns.end {
                    put::<16>(row, column, to);
                    column += 16;
                }
                while column + 4 <= columns.end {
                    put::<4>(row, column, to);
                    column += 4;
                }
                while column < columns.end {
                    put::<1>(row, column, to);
                    column += 1;
                }
            }
        }
    }
}

/// Writes numbers that lie side by side.
///
/// # Safety
/// `COUNT` numbers can be written from `to[column]` on.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn put<const COUNT: usize>(row: &[f32; 32], column: usize, to: *mut f32) {
    let mut numbers = [0.0; COUNT];
    numbers.copy_from_slice(&row[column..column + COUNT]);
    // SAFETY: what the caller promises.
    unsafe { to.wrapping_add(column).cast::<[f32; COUNT]>().write_unaligned(numbers.map(canonical)) };
}

/// Computes all blocks of a tile, where `add(x, y, sum)` adds a product to a sum.
///
/// # Safety
/// As for [`product`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn blocks<const ROWS: usize, const WIDTH: usize>(
    task: *const PanelProduct,
    add: impl Fn(f32, f32, f32) -> f32,
) {
    // SAFETY: what the caller promises; `ROWS` divides 8 and `WIDTH` 32.
    unsafe {
        let task = &*task;
        in_tile(task, |tile| {
            for first in (0..8).step_by(ROWS) {
                for column in (0..32).step_by(WIDTH) {
                    block::<ROWS, WIDTH>(task, tile, (first, column), &add);
                }
            }
        });
    }
}

/// Multiplies on any CPU with 16 registers of four numbers.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn product(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe { blocks::<4, 8>(task, split) }
}

/// Multiplies on any CPU, and rounds once.
///
/// # Safety
/// As for [`product`].
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn fused_product(task: *const PanelProduct) {
    // SAFETY: what the caller promises.
    unsafe { blocks::<4, 8>(task, once) }
}

/// Adds a product to a sum, and rounds the product and the sum.
#[inline(always)]
pub(super) fn split(x: f32, y: f32, sum: f32) -> f32 {
    sum + x * y
}

/// Adds a product to a sum on any CPU, and rounds once.
#[inline(always)]
pub(super) fn once(x: f32, y: f32, sum: f32) -> f32 {
    // AArch64 has the instruction always.
    if cfg!(target_arch = "aarch64") { x.mul_add(y, sum) } else { fused(x, y, sum) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns numbers of many sizes. Some are zeros and subnormal numbers.
    pub fn number(i: usize) -> f32 {
        let small = [0.0, -0.0, 1e-40, -1e-40, f32::MIN_POSITIVE][i % 5];
        if i.is_multiple_of(7) { small } else { ((i * 2_654_435_761) % 1_000_003) as f32 * 1e-3 - 500.0 }
    }

    fn bits(all: &[f32]) -> Vec<u32> {
        all.iter().map(|x| x.to_bits()).collect()
    }

    /// All codes that this CPU can run give the bits of a plain loop.
    #[test]
    fn products_have_the_same_bits_on_all_cpus() {
        let left: Vec<f32> = (0..2000).map(number).collect();
        let panel: Vec<f32> = (7..7 + 32 * 70).map(number).collect();
        let start: Vec<f32> = (11..11 + 4 * 300).map(number).map(canonical).collect();
        let cases = [
            (0, 1, 0, COMPLETE),
            (0, 1, 1, COMPLETE),
            (1, 3, 0, 0),
            (67, 8, 0, COMPLETE),
            (70, 1, 1, COMPLETE),
            (65, 19, 3, COMPLETE),
            (16, 1, 2, 2),
            (16, 2, 1, 0),
        ];
        let both = [Rounding::Split, Rounding::Fused];
        for ((steps, step, levels, waits_at), rounding) in
            cases.into_iter().flat_map(|case| both.map(|rounding| (case, rounding)))
        {
            let rows: [u32; 8] = std::array::from_fn(|r| (r * 91 % 500) as u32);
            // Three pieces of ten columns or less, in seven rows of 50 each; or all of a tile.
            let goal = |to: &mut [f32]| Goal {
                to: to.as_mut_ptr(),
                step: if levels == 1 { 50 } else { 32 },
                rows: if levels == 1 { 7 } else { 8 },
                columns: if levels == 1 { 23 } else { 32 },
                split: if levels == 1 { 4 } else { 32 },
                width: 10,
                jump: 341,
            };
            let (mut expected, mut expected_waiting) = (vec![7.5; 1100], start.clone());
            let to = goal(&mut expected);
            for at in 0..256 {
                let mut sum = 0.0f32;
                for p in 0..steps {
                    let (x, y) = (left[rows[at / 32] as usize + p * step], panel[32 * p + at % 32]);
                    sum = if rounding == Rounding::Fused { x.mul_add(y, sum) } else { sum + x * y };
                }
                for level in 0..levels {
                    sum = start[300 * level + at] + canonical(sum);
                }
                let (row, column) = (at as u32 / 32, at as u32 % 32);
                match waits_at {
                    COMPLETE if row >= to.rows || column >= to.columns => {}
                    COMPLETE => {
                        let jumps = if column < to.split { 0 } else { 1 + (column - to.split) / to.width };
                        expected[(row * to.step + column + jumps * to.jump) as usize] = canonical(sum);
                    }
                    level => expected_waiting[300 * level as usize + at] = canonical(sum),
                }
            }
            for own in Vectors::of_this_cpu() {
                let (mut found, mut waiting) = (vec![7.5; expected.len()], start.clone());
                let task = PanelProduct {
                    left: left.as_ptr(),
                    panel: panel.as_ptr(),
                    waiting: waiting.as_mut_ptr(),
                    goal: goal(&mut found),
                    rows,
                    step: step as u32,
                    steps: steps as u32,
                    levels: levels as u32,
                    waits_at,
                    level: 300,
                };
                // SAFETY: the last element that is read is 499 + 64 * 19 of `left` and 32 * 70 of `panel`;
                // each level has 300 floats; the last
                // element of the goal that is written is 6 * 50 + 22 + 2 * 341.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    own.panel_product(rounding)(&task);
                }
                let case = format!(
                    "{own:?}, {rounding:?}, {steps} steps {step} apart, {levels} levels, waits at {waits_at}"
                );
                assert!(bits(&waiting) == bits(&expected_waiting), "{case}");
                assert!(bits(&found) == bits(&expected), "{case}");
            }
        }
    }
}
