//! Copies of what a product reads again and again to a panel, with the same bits on every CPU.

use super::panels::{Run, Vectors};

/// What [`Vectors::panel_copy`]'s code copies: `panel[32 * p + c]` becomes `from[p * step + min(c, last) *
/// column]` for each of the steps and 32 columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelCopy {
    pub from: *const f32,
    pub panel: *mut f32,
    pub step: u32,
    pub column: u32,
    pub steps: u32,
    pub last: u32,
}

impl Vectors {
    /// Returns the copy's code, which needs a CPU that has these vectors.
    pub fn panel_copy(self) -> Run<PanelCopy> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::copy_avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::copy_avx2,
            _ => copy,
        }
    }
}

/// Copies on any CPU.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn copy(task: *const PanelCopy) {
    // SAFETY: what the caller promises.
    unsafe {
        let task = &*task;
        copy_from(task, 0);
    }
}

/// Copies from a step on.
///
/// # Safety
/// As for [`copy`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn copy_from(task: &PanelCopy, first: usize) {
    // SAFETY: what the caller promises.
    unsafe {
        for p in first..task.steps as usize {
            let from = task.from.add(p * task.step as usize);
            let to = task.panel.add(32 * p);
            if task.column == 1 && task.last >= 31 {
                to.cast::<[f32; 32]>().write_unaligned(from.cast::<[f32; 32]>().read_unaligned());
                continue;
            }
            for c in 0..32 {
                *to.add(c) = *from.add(c.min(task.last as usize) * task.column as usize);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{PanelCopy, copy_from};
    use crate::native::transposed::{sixteen_columns, transposed};

    /// Copies blocks of 8 steps by 8 columns if the steps of a column are adjacent in memory.
    ///
    /// # Safety
    /// As for [`super::copy`], and the CPU has AVX2.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe extern "C" fn copy_avx2(task: *const PanelCopy) {
        // SAFETY: what the caller promises.
        unsafe {
            let task = &*task;
            let whole = if task.step == 1 { task.steps as usize / 8 * 8 } else { 0 };
            for p in (0..whole).step_by(8) {
                for c in (0..32).step_by(8) {
                    let start = |r: usize| {
                        let column = (c + r).min(task.last as usize);
                        _mm256_loadu_ps(task.from.add(p + column * task.column as usize))
                    };
                    let turned = transposed(std::array::from_fn(start));
                    for (r, row) in turned.into_iter().enumerate() {
                        _mm256_storeu_ps(task.panel.add(32 * (p + r) + c), row);
                    }
                }
            }
            copy_from(task, whole);
        }
    }

    /// Copies blocks of 16 steps by 16 columns if the steps of a column are adjacent in memory.
    ///
    /// # Safety
    /// As for [`super::copy`], and the CPU has AVX-512.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe extern "C" fn copy_avx512(task: *const PanelCopy) {
        // SAFETY: what the caller promises.
        unsafe {
            let task = &*task;
            let whole = if task.step == 1 { task.steps as usize / 16 * 16 } else { 0 };
            for p in (0..whole).step_by(16) {
                for c in (0..32).step_by(16) {
                    let mut rows = [_mm512_setzero_ps(); 16];
                    for (r, row) in rows.iter_mut().enumerate() {
                        let column = (c + r).min(task.last as usize);
                        *row = _mm512_loadu_ps(task.from.add(p + column * task.column as usize));
                    }
                    for (r, row) in sixteen_columns(rows).into_iter().enumerate() {
                        _mm512_storeu_ps(task.panel.add(32 * (p + r) + c), row);
                    }
                }
            }
            copy_from(task, whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each version of the code that this CPU can run gives the result of a plain loop.
    #[test]
    fn copies_are_the_same_on_all_cpus() {
        let from: Vec<f32> = (0..32 * 45).map(|i| i as f32 * 0.5 - 300.0).collect();
        for (step, column, steps, last) in
            [(1, 45, 45, 31), (1, 45, 16, 5), (1, 45, 7, 0), (32, 1, 45, 31), (32, 1, 3, 30), (64, 2, 9, 31)]
        {
            let mut expected = vec![f32::NAN; 32 * 50];
            for (at, place) in expected.iter_mut().enumerate().take(32 * steps) {
                *place = from[at / 32 * step + (at % 32).min(last) * column];
            }
            for own in Vectors::of_this_cpu() {
                let mut panel = vec![f32::NAN; 32 * 50];
                let task = PanelCopy {
                    from: from.as_ptr(),
                    panel: panel.as_mut_ptr(),
                    step: step as u32,
                    column: column as u32,
                    steps: steps as u32,
                    last: last as u32,
                };
                // SAFETY: the last element that is read is 31 * 45 + 44 or 44 * 32 + 31.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    own.panel_copy()(&task);
                }
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(
                    bits(&panel) == bits(&expected),
                    "{own:?}, {steps} steps {step} apart, columns {column} apart"
                );
            }
        }
    }
}
