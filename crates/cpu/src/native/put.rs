//! Writes of a product's tile to its result, with the same bits on every CPU.

use super::panels::{Run, Vectors, canonical};

/// What [`Vectors::panel_put`]'s code writes: for each row r and column c, `to[r * step + c]` becomes
/// `canonical(tile[32 * r + c])`. There are at most 32 columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelPut {
    pub tile: *const f32,
    pub to: *mut f32,
    /// How far apart two rows of the result are.
    pub step: u32,
    pub rows: u32,
    pub columns: u32,
}

impl Vectors {
    /// Returns the code, which needs a CPU that has these vectors.
    pub fn panel_put(self) -> Run<PanelPut> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => put_avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => put_avx2,
            _ => put,
        }
    }
}

/// Writes on any CPU.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn put(task: *const PanelPut) {
    // SAFETY: what the caller promises.
    unsafe { rows(&*task) };
}

/// Writes with registers of eight numbers.
///
/// # Safety
/// As for [`put`], and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx2")]
unsafe extern "C" fn put_avx2(task: *const PanelPut) {
    // SAFETY: what the caller promises.
    unsafe { rows(&*task) };
}

/// Writes with registers of sixteen numbers.
///
/// # Safety
/// As for [`put`], and the CPU has AVX-512.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx512f")]
unsafe extern "C" fn put_avx512(task: *const PanelPut) {
    // SAFETY: what the caller promises.
    unsafe { rows(&*task) };
}

/// Writes row by row, in sixteens, fours and ones.
///
/// # Safety
/// As for [`put`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn rows(task: &PanelPut) {
    let columns = task.columns as usize;
    for row in 0..task.rows as usize {
        // SAFETY: what the caller promises.
        unsafe {
            let (from, to) = (task.tile.add(32 * row), task.to.add(row * task.step as usize));
            let mut column = 0;
            while column + 16 <= columns {
                some::<16>(from.add(column), to.add(column));
                column += 16;
            }
            while column + 4 <= columns {
                some::<4>(from.add(column), to.add(column));
                column += 4;
            }
            while column < columns {
                some::<1>(from.add(column), to.add(column));
                column += 1;
            }
        }
    }
}

/// Writes numbers that lie side by side.
///
/// # Safety
/// `COUNT` numbers can be read at `from`, and written at `to`.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn some<const COUNT: usize>(from: *const f32, to: *mut f32) {
    // SAFETY: what the caller promises.
    unsafe {
        let mut all = from.cast::<[f32; COUNT]>().read_unaligned();
        for number in &mut all {
            *number = canonical(*number);
        }
        to.cast::<[f32; COUNT]>().write_unaligned(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_the_same_bits_on_all_cpus() {
        let small = [1e-40, -1e-40, -0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::NAN, f32::INFINITY];
        let tile: Vec<f32> =
            (0..32 * 9).map(|i| if i % 5 == 0 { small[i / 5 % 7] } else { i as f32 - 90.5 }).collect();
        for own in Vectors::of_this_cpu() {
            for (rows, columns, step) in
                [(9, 32, 32), (8, 31, 40), (3, 4, 4), (1, 1, 7), (9, 20, 51), (0, 8, 8)]
            {
                let mut expected = vec![7.5f32; 9 * 51 + 32];
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    expected[row * step + column] = canonical(tile[32 * row + column]);
                }
                let mut to = vec![7.5f32; expected.len()];
                let task = PanelPut {
                    tile: tile.as_ptr(),
                    to: to.as_mut_ptr(),
                    step: step as u32,
                    rows: rows as u32,
                    columns: columns as u32,
                };
                // SAFETY: the loop above read and wrote the same places.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    own.panel_put()(&task);
                }
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&to) == bits(&expected), "{own:?}: {rows} rows of {columns}, {step} apart");
            }
        }
    }
}
