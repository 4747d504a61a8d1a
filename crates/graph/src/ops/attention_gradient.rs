use serde::Serialize;

use super::attention::{HIDDEN, Scores, Sizes, operands};
use crate::ops::registry::{Case, Entry};
use crate::ops::{Attention, MatMul};
use crate::trace::{AttentionResult, Io, Lowering, Op, Var};
use crate::values::{Array, Frame, Type};

/// The gradient of [`Attention`] by one of q, k and v.
///
/// Operands: q, k and v; dy `[..., T, e]`; the logarithms of the sums ([`crate::ops::AttentionLse`]) and
/// the sums of dy y over e, `[..., T]` each; and the mask, if there is one. With the scores s and the
/// weights p = e^(s - lse): dv = p^T dy, ds = p (dy v^T - sum of dy y), dq = scale ds k, dk = scale ds^T q.
#[derive(Debug, Clone, Serialize)]
pub struct AttentionGradient {
    /// The attention that is differentiated.
    pub attention: Attention,
    /// The operand by which it is differentiated.
    pub of: AttentionResult,
}

impl Op for AttentionGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn attrs(&self) -> String {
        format!("{:?} {}", self.of, self.attention.attrs())
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let &[q, k, v, dy, lse, delta, ..] = inputs else {
            return Err("has not all operands".into());
        };
        let sizes = Sizes::of(q, k, v, inputs.get(6).copied())?;
        let outer = &q.dims[..q.dims.len() - 2];
        let is_fit = dy.lead == q.lead && dy.dims == [outer, &[sizes.queries, sizes.e]].concat();
        let one = [outer, &[sizes.queries]].concat();
        if !is_fit || [lse, delta].iter().any(|ty| ty.lead != q.lead || ty.dims != one) {
            return Err(format!("dy {dy}, sums {lse} and {delta} do not fit q {q}"));
        }
        match self.of {
            AttentionResult::Query => Ok(q.clone()),
            AttentionResult::Key => Ok(k.clone()),
            AttentionResult::Value => Ok(v.clone()),
            AttentionResult::Values | AttentionResult::LogSums => Err("is no gradient by an operand".into()),
        }
    }

    /// As ops with the whole score matrix: nothing asks for it but gradients of gradients.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let [q, k, v, upstream, lse, delta] = [0, 1, 2, 3, 4, 5].map(|i| &x[i]);
        let (tape, scale) = (dy.tape(), self.attention.scale);
        let transposed =
            |a: &Var, b: &Var| tape.apply(MatMul { transpose_a: true, transpose_b: false }, &[a, b]);
        let column = |v: &Var| v.reshape(&[v.dims(), &[1]].concat());
        let (p, scaled) = (self.attention.weights([q, k], lse, x.get(6)), q * scale);
        let slopes = upstream.matmul_t(v) - column(delta);
        let ds = &p * &slopes;
        // The gradients by p, by ds, and those that are not through the scores.
        let (dp, dds, own) = match self.of {
            AttentionResult::Query => {
                let g = *dy * scale;
                let dds = g.matmul_t(k);
                (&dds * &slopes, Some(dds), [None, Some(transposed(&ds, &g)), None])
            }
            AttentionResult::Key => {
                let dds = scaled.matmul_t(dy);
                (&dds * &slopes, Some(dds), [Some(ds.matmul(dy) * scale), None, None])
            }
            _ => (upstream.matmul_t(dy), None, [None, None, Some(p.matmul(dy))]),
        };
        let dslopes = dds.map(|dds| &p * dds);
        let scores = dp * &p;
        let add = |a: Option<Var>, b: Option<Var>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        let [own_q, own_k, own_dy] = own;
        let gradients = [
            add(own_q, Some(scores.matmul(k) * scale)),
            add(own_k, Some(transposed(&scores, &scaled))),
            dslopes.as_ref().map(|d| transposed(d, upstream)),
            add(own_dy, dslopes.as_ref().map(|d| d.matmul(v))),
            Some(-scores.sum(&[-1])),
            dslopes.as_ref().map(|d| -d.sum(&[-1])),
        ];
        gradients.into_iter().chain(x.get(6).map(|_| None)).collect()
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let scores = Scores::of(&self.attention, inputs, inputs.get(6).copied());
        let [q, k, v, dy, lse, delta] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i]);
        let (t, s, d) = (scores.queries, scores.keys, scores.d);
        let e = v.dims[v.dims.len() - 1];
        let scale = f64::from(self.attention.scale);
        let mut y = Array::generate(&frame.dims(output), |_| 0.0);
        for (z, i) in (0..scores.layers * t).map(|at| (at / t, at % t)) {
            for (j, score) in scores.row(z, i).into_iter().enumerate() {
                let Some(score) = score else { continue };
                let (query, key) = (z * t + i, z * s + j);
                let p = (score - lse.data[query]).exp();
                let slope: f64 = (0..e).map(|c| dy.data[query * e + c] * v.data[key * e + c]).sum();
                let ds = p * (slope - delta.data[query]);
                match self.of {
                    AttentionResult::Query => {
                        (0..d).for_each(|c| y.data[query * d + c] += scale * ds * k.data[key * d + c]);
                    }
                    AttentionResult::Key => {
                        (0..d).for_each(|c| y.data[key * d + c] += scale * ds * q.data[query * d + c]);
                    }
                    _ => (0..e).for_each(|c| y.data[key * e + c] += p * dy.data[query * e + c]),
                }
            }
        }
        y
    }

    fn lowering(&self) -> Lowering {
        let Attention { causal, scale } = self.attention;
        Lowering::Attention { causal, scale, result: self.of }
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "attention_gradient", cases }];

fn cases() -> Vec<Case> {
    let of = [AttentionResult::Query, AttentionResult::Key, AttentionResult::Value];
    let case = |of, causal, ty: fn(&[usize]) -> Type, outer: &[usize], sizes: [usize; 4], mask: Option<Type>| {
        let [t, _, _, e] = sizes;
        let mut types = operands(ty, outer, sizes);
        types.extend([&[t, e][..], &[t], &[t]].map(|last| ty(&[outer, last].concat())));
        let at = types.len();
        types.extend(mask);
        let masked = types.len() > at;
        let case = Case::random(AttentionGradient { attention: Attention { causal, scale: 0.4 }, of }, &types);
        if masked { case.with(at, &HIDDEN) } else { case }
    };
    let sample = Type::sample as fn(&[usize]) -> Type;
    let of_each = |of| {
        [
            case(of, false, sample, &[], [5, 7, 4, 4], None),
            case(of, true, sample, &[2], [9, 9, 3, 5], None),
            case(of, true, Type::global, &[2], [11, 35, 4, 3], None),
            case(of, true, sample, &[2], [7, 7, 4, 4], Some(sample(&[1, 1, 7]))),
        ]
    };
    of.into_iter().flat_map(of_each).collect()
}
