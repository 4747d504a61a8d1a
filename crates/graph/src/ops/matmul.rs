use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, Frame, Lead, Type};
use super::Contract;

/// y is a matrix product, plain or batched: `[..., m, k] x [..., k, n] -> [..., m, n]`. The sum over k has
/// the order of [`crate::tree`] with [`crate::tree::PRODUCT_CHUNK`], and each product is added through `fma`.
///
/// A value with samples times a global matrix, `[B, ..., k] x [k, n] -> [B, ..., n]`, is one product of all
/// rows; a global matrix times each sample's rows, `[m, k] x [B, n, k]^T -> [B, m, n]`, is one of all
/// columns. Otherwise both operands have the same axes before the last two.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct MatMul {
    /// Whether the left operand is stored `[..., k, m]`.
    pub transpose_a: bool,
    /// Whether the right operand is stored `[..., n, k]`.
    pub transpose_b: bool,
}

impl MatMul {
    /// Returns the `[rows, columns]` of a stored matrix as the product sees it.
    fn oriented(dims: &[usize], transposed: bool) -> [usize; 2] {
        let [r, c] = [dims[dims.len() - 2], dims[dims.len() - 1]];
        if transposed { [c, r] } else { [r, c] }
    }

    /// Returns the inner size k, given the type of the left operand.
    pub(crate) fn inner(&self, a: &Type) -> usize {
        let axis = if self.transpose_a && a.dims.len() > 1 { 2 } else { 1 };
        a.dims[a.dims.len() - axis]
    }

    /// Returns whether the left operand is one matrix for all samples while the right one has a matrix for
    /// each.
    pub(crate) fn is_columns(a: &Type, b: &Type) -> bool {
        a.lead == Lead::Global && b.lead == Lead::Sample && a.dims.len() == 2 && b.dims.len() == 2
    }

    /// Returns the columns of a sample if the columns of all samples lie side by side in one product and are
    /// read four at a time.
    pub(crate) fn across(&self, a: &Type, b: &Type) -> Option<usize> {
        let n = b.dims.first().copied().unwrap_or_default();
        (Self::is_columns(a, b) && n.is_multiple_of(4)).then_some(n)
    }

    /// Returns whether the rows of the left operand are those of samples while the right operand is one
    /// matrix for all.
    pub(crate) fn is_rows(a: &Type, b: &Type) -> bool {
        a.lead == Lead::Sample && b.lead == Lead::Global && b.dims.len() == 2 && !a.dims.is_empty()
    }
}

/// Returns why two values have no product, and what may have been meant.
fn no_product(a: &Type, b: &Type) -> String {
    let vectors = a.lead == Lead::Sample && b.lead == Lead::Sample && a.dims.len().min(b.dims.len()) < 2;
    let advice = match vectors {
        true => {
            "each sample has a vector, not a matrix. (a * b).sum(&[-1]) multiplies the vectors of each sample, \
             Contract sums over the samples of the batch, and Var::gather_batch lets each sample see those of all"
        }
        false => "both need two axes at least, and the same axes before the last two",
    };
    format!("no product of lhs {a} and rhs {b}: {advice}")
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn attrs(&self) -> String {
        [(self.transpose_a, "a^T"), (self.transpose_b, "b^T")].iter().filter(|t| t.0).map(|t| t.1).collect()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (a, b) = (inputs[0], inputs[1]);
        let differ = |k: usize, l: usize| format!("inner sizes differ: lhs {a} has {k}, rhs {b} has {l}");
        if Self::is_rows(a, b) && !self.transpose_a {
            let [l, n] = Self::oriented(&b.dims, self.transpose_b);
            let (k, rows) = (a.dims[a.dims.len() - 1], &a.dims[..a.dims.len() - 1]);
            let dims: Vec<usize> = rows.iter().copied().chain([n]).collect();
            return if k == l { Ok(a.with_dims(&dims)) } else { Err(differ(k, l)) };
        }
        if Self::is_columns(a, b) && self.transpose_b {
            let ([m, k], [n, l]) = (Self::oriented(&a.dims, self.transpose_a), [b.dims[0], b.dims[1]]);
            return if k == l { Ok(b.with_dims(&[m, n])) } else { Err(differ(k, l)) };
        }
        let batched = a.lead == b.lead && a.dims.len() == b.dims.len() && a.dims.len() >= 2;
        if !batched || a.dims[..a.dims.len() - 2] != b.dims[..b.dims.len() - 2] {
            return Err(no_product(a, b));
        }
        let ([m, k], [l, n]) =
            (Self::oriented(&a.dims, self.transpose_a), Self::oriented(&b.dims, self.transpose_b));
        let dims: Vec<usize> = a.dims[..a.dims.len() - 2].iter().copied().chain([m, n]).collect();
        if k == l { Ok(a.with_dims(&dims)) } else { Err(differ(k, l)) }
    }

    /// With A and B as the product sees them: dA = dy B^T, dB = A^T dy.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let (a, b) = (&x[0], &x[1]);
        let product = |a: &Var, transpose_a, b: &Var, transpose_b| {
            a.tape().apply(MatMul { transpose_a, transpose_b }, &[a, b])
        };
        let (ta, tb) = (self.transpose_a, self.transpose_b);
        if Self::is_columns(a.ty(), b.ty()) {
            // Row by row of each sample.
            let rows = dy.permute(&[1, 0]);
            let da = a.tape().apply(Contract, &if ta { [b, &rows] } else { [&rows, b] });
            // The columns of all samples again, so that the gradient of a convolution's windows is stored
            // along the pixels, which is how `Var::fold` reads it.
            let db = product(a, !ta, &rows, true).permute(&[1, 0]);
            return vec![Some(da), Some(db)];
        }
        let da = if ta { product(b, tb, dy, true) } else { product(dy, false, b, !tb) };
        let db = match (Self::is_rows(a.ty(), b.ty()), tb) {
            (true, false) => a.tape().apply(Contract, &[a, dy]),
            (true, true) => a.tape().apply(Contract, &[dy, a]),
            (false, false) => product(a, !ta, dy, false),
            (false, true) => product(dy, true, a, ta),
        };
        vec![Some(da), Some(db)]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (a, b) = (inputs[0], inputs[1]);
        let dims = frame.dims(output);
        let one_left = a.dims.len() == 2;
        let one_right = b.dims.len() == 2;
        let inner = if self.transpose_a { a.dims[a.dims.len() - 2] } else { a.dims[a.dims.len() - 1] };
        let last_two = |at: &mut Vec<usize>, i, j, swap| at.extend(if swap { [j, i] } else { [i, j] });
        Array::generate(&dims, |at| {
            let (batch, m, n) = (&at[..at.len() - 2], at[at.len() - 2], at[at.len() - 1]);
            let mut sum = 0.0;
            for k in 0..inner {
                let of = |is_one: bool| if is_one { vec![] } else { batch.to_vec() };
                let (mut i, mut j) = (of(one_left), of(one_right));
                last_two(&mut i, m, k, self.transpose_a);
                last_two(&mut j, k, n, self.transpose_b);
                sum += a.at(&i) * b.at(&j);
            }
            sum
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::MatMul { transpose_a: self.transpose_a, transpose_b: self.transpose_b, rounds: false }
    }
}

impl Var {
    /// Returns the matrix product over the last two axes; see [`MatMul`].
    pub fn matmul(&self, b: &Var) -> Var {
        self.product(b, false)
    }

    /// Returns the matrix product with a right operand that is stored `[..., n, k]`, as PyTorch stores the
    /// weight of a linear layer.
    pub fn matmul_t(&self, b: &Var) -> Var {
        self.product(b, true)
    }

    fn product(&self, b: &Var, transpose_b: bool) -> Var {
        let op = MatMul { transpose_a: false, transpose_b };
        let (l, r) = (self.ty(), b.ty());
        // A global operand that is not one matrix for all rows becomes one a sample.
        let widen = |v: &Var, like: &Type| {
            let skip = like.dims.len().saturating_sub(2);
            let own = v.dims().len().saturating_sub(2);
            let dims: Vec<usize> = like.dims[..skip].iter().chain(&v.dims()[own..]).copied().collect();
            v.expand(like.lead, &dims)
        };
        match (l.lead, r.lead) {
            (Lead::Global, Lead::Sample) if MatMul::is_columns(l, r) && transpose_b => {
                self.tape().apply(op, &[self, b])
            }
            (Lead::Global, Lead::Sample) => self.tape().apply(op, &[&widen(self, r), b]),
            (Lead::Sample, Lead::Global) if !MatMul::is_rows(l, r) => {
                self.tape().apply(op, &[self, &widen(b, l)])
            }
            _ => self.tape().apply(op, &[self, b]),
        }
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "matmul", cases }];

fn cases() -> Vec<Case> {
    let case = |a: Type, b: Type, transpose_a, transpose_b| {
        Case::random(MatMul { transpose_a, transpose_b }, &[a, b])
    };
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(s(&[5]), g(&[5, 3]), false, false),
        case(s(&[64]), g(&[48, 64]), false, true),
        case(s(&[7, 5]), g(&[5, 9]), false, false),
        case(s(&[4, 7]), g(&[9, 7]), false, true),
        case(s(&[2, 3, 4]), s(&[2, 4, 5]), false, false),
        case(s(&[4, 3]), s(&[4, 5]), true, false),
        case(s(&[3, 4]), s(&[5, 4]), false, true),
        case(g(&[4, 3]), g(&[5, 4]), true, true),
        case(g(&[5, 7]), s(&[4, 7]), false, true),
        case(g(&[36, 40]), s(&[68, 40]), false, true),
        case(g(&[7, 5]), s(&[9, 7]), true, true),
        case(g(&[3, 2100]), s(&[8, 2100]), false, true),
        case(g(&[2, 33, 70]), g(&[2, 70, 37]), false, false),
        case(s(&[2500]), g(&[2500, 6]), false, false),
        case(g(&[2, 70_000]), g(&[70_000, 3]), false, false),
    ]
}
