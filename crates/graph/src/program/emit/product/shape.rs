//! The sizes of a product.

use crate::ops::MatMul;
use crate::values::Type;
use crate::values::tree::PRODUCT_CHUNK;

/// The sizes of a product. A product has an entry for each sample or shard of its result, or just one.
pub(super) struct Shape {
    /// The rows of the result of one entry.
    pub m: usize,
    /// The columns of the result of one entry.
    pub n: usize,
    /// The inner size; 0 where it differs from shard to shard.
    pub k: usize,
    /// The longest inner range.
    pub longest: usize,
    /// The number of products for each entry.
    pub batch: usize,
    /// The elements from one left operand to the next.
    pub a_batch: usize,
    /// The elements from one right operand to the next.
    pub b_batch: usize,
    /// What one product holds of all samples.
    pub all: All,
    /// Whether the product sums over the samples of each shard.
    pub contract: bool,
    /// The number of rows that a sample adds to the inner range of such a product.
    pub rows_a_sample: usize,
    /// Whether the left operand is stored transposed.
    pub transpose_a: bool,
    /// Whether the right operand is stored transposed.
    pub transpose_b: bool,
    /// Whether the result is rounded to f16.
    pub rounds: bool,
    /// Whether f16 holds all numbers of both operands.
    pub halves: bool,
}

/// What one product holds of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum All {
    /// The rows of all samples are rows of one product.
    Rows,
    /// The columns of all samples are columns of one product.
    Columns,
    /// Each sample or shard has products of its own.
    Apart,
}

impl Shape {
    /// Returns the number of chunks of the inner range. A tree adds their sums.
    pub fn chunks(&self) -> usize {
        self.longest.div_ceil(PRODUCT_CHUNK).max(1)
    }

    /// Returns the rows, columns and number of the products for so many entries.
    pub fn of_entries(&self, entries: usize) -> [usize; 3] {
        match self.all {
            All::Rows => [self.m * entries, self.n, 1],
            All::Columns => [self.m, self.n * entries, 1],
            All::Apart => [self.m, self.n, self.batch * entries],
        }
    }

    /// Returns the sizes of a matrix product of `a` and `b` with the result `y`.
    pub fn matmul(a: &Type, b: &Type, y: &Type, product: MatMul) -> Self {
        let n = y.dims[y.dims.len() - 1];
        let k = product.inner(a);
        let all = match product.across(a, b) {
            Some(_) => All::Columns,
            None if MatMul::is_rows(a, b) => All::Rows,
            None => All::Apart,
        };
        let rows = all == All::Rows;
        let m = if rows { y.count() / n.max(1) } else { y.dims[y.dims.len() - 2] };
        let batch = if rows { 1 } else { y.dims[..y.dims.len() - 2].iter().product() };
        let of = |is_one: bool, count: usize| if is_one { 0 } else { count };
        Self {
            m,
            n,
            k,
            longest: k,
            batch,
            a_batch: of(all != All::Apart || MatMul::is_columns(a, b), m * k),
            b_batch: of(all != All::Apart, k * n),
            all,
            contract: false,
            rows_a_sample: 0,
            transpose_a: product.transpose_a,
            transpose_b: product.transpose_b,
            rounds: false,
            halves: false,
        }
    }

    /// Returns the sizes of a product over the samples of each shard, of the left operand `a` with the result
    /// `y`. The longest shard has `longest_shard` samples.
    pub fn contract(a: &Type, y: &Type, longest_shard: usize) -> Self {
        let (m, n) = (y.dims[0], y.dims[1]);
        let rows_a_sample = a.count() / m.max(1);
        Self {
            m,
            n,
            k: 0,
            longest: longest_shard * rows_a_sample,
            batch: 1,
            a_batch: 0,
            b_batch: 0,
            all: All::Apart,
            contract: true,
            rows_a_sample,
            transpose_a: true,
            transpose_b: false,
            rounds: false,
            halves: false,
        }
    }
}
