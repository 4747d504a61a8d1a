//! Sums of a product's tile and of numbers in memory, with the same bits on every CPU.

use super::panels::{Run, Vectors, canonical};

/// The most numbers in memory that [`PanelAdd`] adds to each of a tile's.
pub(crate) const MOST_ADDENDS: usize = 4;

/// What [`Vectors::panel_add`]'s code writes: for each row r and column c (at most 32), `to[r * step + c]`
/// becomes the sum of `tile[32 * r + c]` and of numbers in memory, which are added one after the other. Each
/// sum is canonical.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelAdd {
    pub tile: *const f32,
    pub to: *mut f32,
    /// How far apart two rows of the result are.
    pub step: u32,
    pub rows: u32,
    pub columns: u32,
    /// What is added to the first row.
    pub from: [*const f32; MOST_ADDENDS],
    /// How far apart two rows of it are.
    pub apart: [u32; MOST_ADDENDS],
    pub count: u32,
    /// The place of the tile's number among all that are added.
    pub product: u32,
}

impl Vectors {
    /// Returns the code that adds, which needs a CPU that has these vectors.
    pub fn panel_add(self) -> Run<PanelAdd> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => add_avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => add_avx2,
            _ => add,
        }
    }
}

/// Adds on any CPU.
///
/// # Safety
/// The task's pointers hold what it reads and writes.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn add(task: *const PanelAdd) {
    // SAFETY: what the caller promises.
    unsafe { added_rows(&*task, |_| {}) };
}

/// Adds with registers of eight numbers.
///
/// # Safety
/// As for [`add`], and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx2")]
unsafe extern "C" fn add_avx2(task: *const PanelAdd) {
    // SAFETY: what the caller promises.
    unsafe { added_rows(&*task, fetch) };
}

/// Adds with registers of sixteen numbers.
///
/// # Safety
/// As for [`add`], and the CPU has AVX-512.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "called by machine code")]
#[target_feature(enable = "avx512f")]
unsafe extern "C" fn add_avx512(task: *const PanelAdd) {
    // SAFETY: what the caller promises.
    unsafe { added_rows(&*task, fetch) };
}

/// Begins to bring 32 numbers into the cache. Nothing is read where there is no memory.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction for the cache")]
#[inline(always)]
fn fetch(from: *const f32) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in 0..2 {
        // SAFETY: the instruction has no effect but on the cache, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(16 * line).cast()) };
    }
}

/// The rows that are fetched ahead: what is added may lie far apart.
const AHEAD: usize = 6;

/// Adds and writes row by row.
///
/// # Safety
/// As for [`add`].
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn added_rows(task: &PanelAdd, fetch: impl Fn(*const f32)) {
    let PanelAdd { tile, to, step, rows, columns, from, apart, count, product } = *task;
    let (columns, count, product) = (columns as usize, count as usize, product as usize);
    for row in 0..rows as usize {
        let mut own = [tile; MOST_ADDENDS + 1];
        // SAFETY: what the caller promises.
        unsafe {
            own[product] = tile.add(32 * row);
            for n in 0..count {
                let step = apart[n] as usize;
                own[n + usize::from(n >= product)] = from[n].add(row * step);
                if step > 0 {
                    fetch(from[n].wrapping_add((row + AHEAD) * step));
                }
            }
            let (own, to) = (&own[..=count], to.add(row * step as usize));
            let mut column = 0;
            while column + 16 <= columns {
                sums::<16>(own, column, to);
                column += 16;
            }
            while column + 4 <= columns {
                sums::<4>(own, column, to);
                column += 4;
            }
            while column < columns {
                sums::<1>(own, column, to);
                column += 1;
            }
        }
    }
}

/// Adds and writes numbers that lie side by side.
///
/// # Safety
/// `COUNT` numbers can be read from `column` on in each of the rows `own`, and written in `to`.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn sums<const COUNT: usize>(own: &[*const f32], column: usize, to: *mut f32) {
    // SAFETY: what the caller promises.
    unsafe {
        let mut all = [0.0; COUNT];
        for (at, row) in own.iter().enumerate() {
            let next = row.add(column).cast::<[f32; COUNT]>().read_unaligned();
            for (sum, next) in all.iter_mut().zip(next) {
                *sum = if at == 0 { next } else { canonical(*sum + next) };
            }
        }
        to.add(column).cast::<[f32; COUNT]>().write_unaligned(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_the_same_bits_on_all_cpus() {
        let numbers = |seed: usize| -> Vec<f32> {
            (0..512).map(|i| ((i * 37 + seed) % 101) as f32 * if i % 7 == 0 { 1e-40 } else { 0.37 }).collect()
        };
        let [tile, b, c] = [3, 19, 58].map(numbers);
        for own in Vectors::of_this_cpu() {
            for (rows, columns, product, apart) in
                [(9, 32, 0, [0, 40]), (8, 31, 1, [36, 0]), (3, 4, 2, [7, 51]), (1, 1, 2, [0, 0])]
            {
                let mut expected = vec![7.5f32; 512];
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let mut all = vec![b[row * apart[0] + column], c[row * apart[1] + column]];
                    all.insert(product, tile[32 * row + column]);
                    expected[row * 40 + column] = canonical(canonical(all[0] + all[1]) + all[2]);
                }
                let mut to = vec![7.5f32; expected.len()];
                let task = PanelAdd {
                    tile: tile.as_ptr(),
                    to: to.as_mut_ptr(),
                    step: 40,
                    rows: rows as u32,
                    columns: columns as u32,
                    from: [b.as_ptr(), c.as_ptr(), b.as_ptr(), b.as_ptr()],
                    apart: [apart[0] as u32, apart[1] as u32, 0, 0],
                    count: 2,
                    product: product as u32,
                };
                // SAFETY: the loop above read and wrote the same places.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    own.panel_add()(&task);
                }
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&to) == bits(&expected), "{own:?}: {rows} rows of {columns}, {apart:?} apart");
            }
        }
    }
}
