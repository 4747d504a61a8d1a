//! When a CPU multiplies few rows by a kernel of their own.

use super::kernel::Family;
use crate::plan::target::{Machine, Target};

/// Returns the kernel of few rows for `batch` products of `[m, k] x [k, n]` on a CPU, whose operands are
/// stored as f32, or `None` where another kernel is faster. `layers` are the products and their chunks.
///
/// Measured on one core of an AMD EPYC with AVX2, in GB of the right operand that are read in a second:
///
/// | right operand, rows | few rows | panels |
/// |---|---|---|
/// | `[k, n]`, 1 row | 10.1 | 6.1 |
/// | `[k, n]`, 10 rows | 7.4 | 4.7 |
/// | `[n, k]`, 1 row | 10.9 | 3.9 |
/// | `[n, k]`, 10 rows | 4.8 | 3.4 |
pub(super) fn few(target: &Target, [m, n, k]: [usize; 3], batch: usize, layers: usize) -> Option<Family> {
    const FEW_ROWS: usize = 16;
    const FEW_STEPS: usize = 1 << 15;
    if target.machine != Machine::Cpu || m > FEW_ROWS || n < 64 || m * n * k * batch < FEW_STEPS {
        return None;
    }
    let is_enough = |columns: &usize| n.div_ceil(*columns) * layers >= target.busy_workgroups as usize;
    let columns = [256, 128].into_iter().find(is_enough).unwrap_or(64);
    Some(Family::Few { rows: if m <= 4 { 4 } else { FEW_ROWS }, columns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_of_a_cpu_have_a_kernel_of_their_own() {
        let cpu = Target { machine: Machine::Cpu, busy_workgroups: 64, ..Target::default() };
        let columns = |rows, columns| Some(Family::Few { rows, columns });
        assert_eq!(few(&cpu, [1, 3072, 768], 1, 6), columns(4, 256));
        assert_eq!(few(&cpu, [10, 768, 768], 1, 6), columns(16, 64));
        assert_eq!(few(&cpu, [1, 128, 64], 120, 120), columns(4, 256));
        assert_eq!(few(&cpu, [17, 3072, 768], 1, 6), None);
        assert_eq!(few(&cpu, [16, 10, 3072], 1, 24), None);
        let gpu = Target { machine: Machine::Gpu, ..Target::default() };
        assert_eq!(few(&gpu, [1, 3072, 768], 1, 6), None);
    }
}
