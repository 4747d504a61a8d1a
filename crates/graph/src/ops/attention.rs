use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::ops::{AttentionGradient, Iota, MatMul};
use crate::trace::{AttentionResult, Io, Lowering, Op, Var};
use crate::values::{Array, DType, Frame, Lead, Type};

/// The number of keys, or of queries where the gradients of keys and values are computed, that a kernel of
/// attention goes over at a time.
pub const BLOCK: usize = 32;
/// The most features of a head that the kernels of attention take.
pub const MAX_WIDTH: usize = 256;

/// Softmax(scale q k^T) v without scores in memory (Vaswani et al. 2017; Dao et al. 2022).
///
/// Operands: q `[..., T, d]`, k `[..., S, d]`, v `[..., S, e]` and, if there is one, a mask
/// `[..., T, S]`, each of whose axes may be 1, to `[..., T, e]`. A query sees the keys whose mask is not 0
/// and, if `causal`, that do not come after it. A query that sees none gets zeros.
///
/// The order of its sums is that of `docs/NUMERICS.md`: keys in blocks of [`BLOCK`].
#[derive(Debug, Clone, Serialize)]
pub struct Attention {
    /// Whether query t sees the keys up to t only.
    pub causal: bool,
    /// The factor of the scores.
    pub scale: f32,
}

/// The logarithm of the sum of e^score over the keys that a query of [`Attention`] sees, `[..., T]`. It takes
/// the operands of [`Attention`], and one kernel computes both. The gradients need it.
#[derive(Debug, Clone, Serialize)]
pub struct AttentionLse(pub Attention);

/// The sizes of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The number of pairs of queries and keys that a sample has: heads.
    pub layers: usize,
    pub queries: usize,
    pub keys: usize,
    /// The features of queries and keys.
    pub d: usize,
    /// The features of values.
    pub e: usize,
}

impl Sizes {
    /// Returns the sizes of attention on q, k, v and a mask.
    pub(crate) fn of(q: &Type, k: &Type, v: &Type, mask: Option<&Type>) -> Result<Self, String> {
        let problem = || format!("q {q}, k {k} and v {v} do not fit each other");
        let last = |ty: &Type| ty.dims.last_chunk::<2>().copied().ok_or_else(problem);
        let ([queries, d], [keys, own_d], [own_keys, e]) = (last(q)?, last(k)?, last(v)?);
        let outer = |ty: &Type| (ty.lead, ty.dtype, ty.dims[..ty.dims.len() - 2].to_vec());
        let same = outer(q) == outer(k) && outer(q) == outer(v) && q.dtype == DType::F32;
        if !same || d != own_d || keys != own_keys || [q, k, v].iter().any(|ty| ty.count() == 0) {
            return Err(problem());
        }
        if d.max(e) > MAX_WIDTH {
            return Err(format!("{} features are more than {MAX_WIDTH}", d.max(e)));
        }
        let (_, _, mut dims) = outer(q);
        let layers = dims.iter().product();
        dims.extend([queries, keys]);
        if let Some(mask) = mask {
            let fits = (mask.dims.len(), mask.dtype) == (dims.len(), DType::F32)
                && (mask.lead == q.lead || mask.lead == Lead::Global)
                && mask.dims.iter().zip(&dims).all(|(own, all)| own == all || *own == 1);
            fits.then_some(()).ok_or_else(|| format!("mask {mask} does not broadcast to {dims:?}"))?;
        }
        Ok(Self { layers, queries, keys, d, e })
    }
}

impl Attention {
    fn lowering(&self, result: AttentionResult) -> Lowering {
        Lowering::Attention { causal: self.causal, scale: self.scale, result }
    }

    /// Returns the weights e^(score - lse) of the keys that queries see, as ops with the whole score matrix.
    pub(super) fn weights(&self, [q, k]: [&Var; 2], lse: &Var, mask: Option<&Var>) -> Var {
        let tape = q.tape();
        let scores = (q * self.scale).matmul_t(k);
        let dims = scores.dims().to_vec();
        let [t, s] = [dims[dims.len() - 2], dims[dims.len() - 1]];
        let own: Vec<usize> = lse.dims().iter().copied().chain([1]).collect();
        let mut weights = (scores - lse.reshape(&own)).exp();
        let zero = tape.constant(0.0);
        if self.causal {
            let place = |axis| tape.apply(Iota { dims: vec![t, s], axis }, &[]);
            weights = place(1).greater(&place(0)).select(&zero, &weights);
        }
        match mask {
            Some(mask) => mask.select(&weights, &zero),
            None => weights,
        }
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attrs(&self) -> String {
        format!("{}{}", if self.causal { "causal " } else { "" }, self.scale)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
        let sizes = Sizes::of(q, k, v, inputs.get(3).copied())?;
        let mut dims = q.dims.clone();
        dims.pop();
        dims.push(sizes.e);
        Ok(q.with_dims(&dims))
    }

    /// See [`AttentionGradient`]. It needs the sum over e of dy y of each query, which is the sum of all
    /// weights times their gradients.
    fn gradient(&self, Io { x, y, dy }: &Io<'_>) -> Vec<Option<Var>> {
        let operands: Vec<&Var> = x.iter().collect();
        let lse = dy.tape().apply(AttentionLse(self.clone()), &operands);
        let delta = (*dy * *y).sum(&[-1]);
        let of = [AttentionResult::Query, AttentionResult::Key, AttentionResult::Value];
        let gradient = |of| {
            let op = AttentionGradient { attention: self.clone(), of };
            let operands = [&x[0], &x[1], &x[2], *dy, &lse, &delta];
            Some(dy.tape().apply(op, &operands.into_iter().chain(x.get(3)).collect::<Vec<_>>()))
        };
        of.map(gradient).into_iter().chain(x.get(3).map(|_| None)).collect()
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let scores = Scores::of(self, inputs, inputs.get(3).copied());
        let v = inputs[2];
        let e = output.dims[output.dims.len() - 1];
        let mut y = Array::generate(&frame.dims(output), |_| 0.0);
        for z in 0..scores.layers {
            for i in 0..scores.queries {
                let row = scores.row(z, i);
                let (highest, total) = softmax(&row);
                for (j, score) in row.iter().enumerate().filter(|(_, score)| score.is_some()) {
                    let weight = (score.unwrap_or_default() - highest).exp() / total;
                    for c in 0..e {
                        y.data[(z * scores.queries + i) * e + c] +=
                            weight * v.data[(z * scores.keys + j) * e + c];
                    }
                }
            }
        }
        y
    }

    fn lowering(&self) -> Lowering {
        self.lowering(AttentionResult::Values)
    }
}

impl Op for AttentionLse {
    fn name(&self) -> &'static str {
        "attention_lse"
    }

    fn attrs(&self) -> String {
        self.0.attrs()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let y = self.0.infer(inputs)?;
        Ok(y.with_dims(&y.dims[..y.dims.len() - 1]))
    }

    /// ds = dy times the weights.
    fn gradient(&self, Io { x, y, dy }: &Io<'_>) -> Vec<Option<Var>> {
        let weights = self.0.weights([&x[0], &x[1]], y, x.get(3));
        let own: Vec<usize> = dy.dims().iter().copied().chain([1]).collect();
        let ds = weights * dy.reshape(&own);
        let transposed = MatMul { transpose_a: true, transpose_b: false };
        let dk = dy.tape().apply(transposed, &[&ds, &(&x[0] * self.0.scale)]);
        let dq = ds.matmul(&x[1]) * self.0.scale;
        [Some(dq), Some(dk), None].into_iter().chain(x.get(3).map(|_| None)).collect()
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let scores = Scores::of(&self.0, inputs, inputs.get(3).copied());
        let all = (0..scores.layers).flat_map(|z| (0..scores.queries).map(move |i| (z, i)));
        let data = all.map(|(z, i)| {
            let (highest, total) = softmax(&scores.row(z, i));
            highest + total.ln()
        });
        Array::new(&frame.dims(output), data.collect())
    }

    fn lowering(&self) -> Lowering {
        self.0.lowering(AttentionResult::LogSums)
    }
}

/// Returns the highest score of a query, and the sum of e^(score - highest) over the keys that it sees.
fn softmax(row: &[Option<f64>]) -> (f64, f64) {
    let seen = || row.iter().flatten();
    let highest = seen().copied().fold(f64::NEG_INFINITY, f64::max);
    (highest, seen().map(|score| (score - highest).exp()).sum())
}

/// The scores of the interpreter.
pub(super) struct Scores<'a> {
    q: &'a Array,
    k: &'a Array,
    mask: Option<&'a Array>,
    causal: bool,
    scale: f64,
    /// The pairs of queries and keys, over all samples.
    pub layers: usize,
    pub queries: usize,
    pub keys: usize,
    pub d: usize,
}

impl<'a> Scores<'a> {
    pub fn of(op: &Attention, inputs: &[&'a Array], mask: Option<&'a Array>) -> Self {
        let (q, k) = (inputs[0], inputs[1]);
        let [queries, d] = *q.dims.last_chunk::<2>().unwrap_or(&[0, 0]);
        let [keys, _] = *k.dims.last_chunk::<2>().unwrap_or(&[0, 0]);
        let layers = q.dims[..q.dims.len() - 2].iter().product();
        Self { q, k, mask, causal: op.causal, scale: f64::from(op.scale), layers, queries, keys, d }
    }

    /// Returns the scores of query i with each key, `None` for keys that it does not see.
    pub fn row(&self, z: usize, i: usize) -> Vec<Option<f64>> {
        let score = |j: usize| {
            let is_seen = (!self.causal || j <= i) && self.mask_at(z, i, j) != 0.0;
            let dot = |c: usize| {
                self.q.data[(z * self.queries + i) * self.d + c] * self.k.data[(z * self.keys + j) * self.d + c]
            };
            is_seen.then(|| (0..self.d).map(dot).sum::<f64>() * self.scale)
        };
        (0..self.keys).map(score).collect()
    }

    /// Returns the mask at a place of the scores. It has all axes of theirs, with samples or without.
    fn mask_at(&self, z: usize, i: usize, j: usize) -> f64 {
        let Some(mask) = self.mask else { return 1.0 };
        let outer = &self.q.dims[..self.q.dims.len() - 2];
        let mut at = vec![0; outer.len()];
        let mut rest = z;
        for (place, &length) in at.iter_mut().zip(outer).rev() {
            (*place, rest) = (rest % length, rest / length);
        }
        at.extend([i, j]);
        let own = at[at.len() - mask.dims.len()..].iter().zip(&mask.dims);
        mask.at(&own.map(|(&place, &length)| place.min(length - 1)).collect::<Vec<_>>())
    }
}

pub(super) const ENTRIES: &[Entry] =
    &[Entry { name: "attention", cases }, Entry { name: "attention_lse", cases: lse_cases }];

/// Returns the operands of attention over T queries and S keys of `d` features, with values of `e`.
pub(super) fn operands(of: impl Fn(&[usize]) -> Type, outer: &[usize], sizes: [usize; 4]) -> Vec<Type> {
    let [t, s, d, e] = sizes;
    [[t, d], [s, d], [s, e]].map(|last| of(&[outer, &last].concat())).to_vec()
}

/// A mask that hides some keys, and the first ones from every query.
pub(super) const HIDDEN: [f64; 7] = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];

fn all(op: impl Fn(Attention) -> Case, mask: impl Fn(Case, Type) -> Case) -> Vec<Case> {
    let plain = |causal, scale| op(Attention { causal, scale });
    let with = |mut case: Case, types: Vec<Type>| {
        case.values = vec![None; types.len()];
        case.types = types;
        case
    };
    let (g, s) = (Type::global as fn(&[usize]) -> Type, Type::sample as fn(&[usize]) -> Type);
    vec![
        with(plain(false, 0.5), operands(s, &[], [5, 7, 4, 4])),
        with(plain(true, 0.3), operands(s, &[2], [9, 9, 3, 5])),
        with(plain(true, 0.2), operands(s, &[2], [35, 35, 4, 8])),
        with(plain(false, 0.125), operands(g, &[2], [5, 37, 8, 20])),
        with(plain(true, 1.0), operands(g, &[], [4, 6, 130, 2])),
        mask(with(plain(false, 0.5), operands(s, &[2], [6, 7, 4, 4])), s(&[1, 1, 7])),
        mask(with(plain(true, 0.5), operands(s, &[2], [7, 7, 4, 4])), g(&[2, 7, 7])),
    ]
}

fn cases() -> Vec<Case> {
    let mask = |mut case: Case, ty: Type| {
        case.types.push(ty);
        case.values.push(Some(HIDDEN.to_vec()));
        case
    };
    all(|op| Case::random(op, &[]), mask)
}

fn lse_cases() -> Vec<Case> {
    // A query that sees no key has no logarithm: each sees one of these.
    let mask = |mut case: Case, ty: Type| {
        case.types.push(ty);
        case.values.push(Some(vec![1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]));
        case
    };
    all(|op| Case::random(AttentionLse(op), &[]), mask)
}
