//! The list of all ops with cases that tests run on every adapter and differentiate numerically.

use std::sync::Arc;

use super::*;
use crate::op::{Op, ReduceKind, Reduction};
use crate::tape::RandomKey;
use crate::types::{DType, Lead, Type};

/// An op of the registry.
pub struct Entry {
    /// The op's name.
    pub name: &'static str,
    /// Its cases.
    pub cases: fn() -> Vec<Case>,
}

/// An op with operands: what tests run.
pub struct Case {
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// The operands' types.
    pub types: Vec<Type>,
    /// Values to use for operands instead of random ones.
    pub values: Vec<Option<Vec<f64>>>,
}

impl Case {
    /// A case with random operands.
    fn random(op: impl Op + 'static, types: &[Type]) -> Self {
        Self { op: Arc::new(op), types: types.to_vec(), values: vec![None; types.len()] }
    }

    /// A case in which operand `index` is `values`, repeated as needed.
    fn with(mut self, index: usize, values: &[f64]) -> Self {
        let shortest = values.iter().copied();
        self.values[index] = Some(shortest.collect());
        self
    }
}

/// A pointwise op on its own cases, with samples and without.
fn pointwise<P: Pointwise + 'static>(op: fn() -> P) -> Vec<Case> {
    let column = |i: usize| P::CASES.iter().map(|row| row[i]).collect::<Vec<_>>();
    let at =
        |ty: Type| (0..P::ARITY).fold(Case::random(op(), &vec![ty; P::ARITY]), |c, i| c.with(i, &column(i)));
    vec![at(Type::global(&[P::CASES.len()])), at(Type::sample(&[P::CASES.len()])), at(Type::sample(&[3, 5]))]
}

macro_rules! pointwise_entries {
    ($($op:ident),*) => {
        [$(Entry { name: <$op as Pointwise>::NAME, cases: || pointwise(|| $op) }),*]
    };
}

/// All ops that compute.
pub static REGISTRY: &[&[Entry]] = &[
    &pointwise_entries![
        Abs, Add, Cos, Div, Eq, Erf, Exp, Fma, Greater, Log, Maximum, Minimum, Mul, Neg, Relu, RoundHalf,
        Select, Sigmoid, Sign, Sin, Sqrt, Sub, Tanh
    ],
    &[
        Entry { name: "concat", cases: concat },
        Entry { name: "contract", cases: contract },
        Entry {
            name: "again",
            cases: || vec![Case::random(Again, &[Type::sample(&[3]), Type::sample(&[2])])],
        },
        Entry { name: "detach", cases: || vec![Case::random(Detach, &[Type::sample(&[3])])] },
        Entry { name: "dropout", cases: dropout },
        Entry { name: "embed", cases: embed },
        Entry { name: "expand", cases: expand },
        Entry { name: "iota", cases: || vec![Case::random(Iota { dims: vec![3, 4], axis: 1 }, &[])] },
        Entry { name: "matmul", cases: matmul },
        Entry { name: "matmul_half", cases: matmul_half },
        Entry { name: "max", cases: || reduce(ReduceKind::Max) },
        Entry { name: "pad", cases: pad },
        Entry { name: "permute", cases: permute },
        Entry { name: "reshape", cases: reshape },
        Entry { name: "rewindow", cases: rewindow },
        Entry { name: "slice", cases: slice },
        Entry { name: "sum", cases: || reduce(ReduceKind::Sum) },
        Entry {
            name: "sum_shards",
            cases: || vec![Case::random(SumShards, &[Type::global(&[3, 2]).with_lead(Lead::Shard)])],
        },
        Entry { name: "take", cases: take },
        Entry { name: "unwindow", cases: unwindow },
        Entry { name: "to_f32", cases: || vec![Case::random(ToF32, &[Type::sample(&[4]).of(DType::I32)])] },
    ],
];

fn concat() -> Vec<Case> {
    let case = |axis, types: &[Type]| Case::random(Concat { axis }, types);
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(0, &[s(&[3]), s(&[4]), s(&[1])]),
        case(1, &[s(&[2, 3]), s(&[2, 1])]),
        case(0, &[s(&[1, 4]), s(&[2, 4]), s(&[1, 4])]),
        case(0, &[g(&[3, 2]), g(&[1, 2])]),
    ]
}

fn contract() -> Vec<Case> {
    let case = |rows: &[usize], k, n| {
        let ty = |last| Type::sample(&rows.iter().copied().chain([last]).collect::<Vec<_>>());
        Case::random(Contract, &[ty(k), ty(n)])
    };
    vec![case(&[], 5, 3), case(&[], 64, 48), case(&[7], 9, 4), case(&[600], 3, 2), case(&[30_000], 2, 1)]
}

fn dropout() -> Vec<Case> {
    let key = RandomKey { seed: 0x1234_5678_9abc_def0, epoch: 3, position: (1 << 32) - 2 };
    let words: Vec<f64> = key.words().iter().map(|&w| f64::from(w)).collect();
    let op = Dropout { rate: 0.3, stream: unisono_random::stream("dropout", "1.dropout") };
    vec![Case::random(op, &[Type::sample(&[4, 5]), RandomKey::ty()]).with(1, &words)]
}

fn embed() -> Vec<Case> {
    let ids = |ty: Type| Case::random(Embed, &[Type::global(&[4, 5]), ty.of(DType::I32)]);
    vec![ids(Type::sample(&[])), ids(Type::sample(&[7])), ids(Type::global(&[6]))]
}

fn pad() -> Vec<Case> {
    let case = |ty: Type, before: &[usize], dims: &[usize]| {
        Case::random(Pad { before: before.to_vec(), dims: dims.to_vec() }, &[ty])
    };
    vec![case(Type::sample(&[2, 3]), &[0, 1], &[4, 4]), case(Type::global(&[3]), &[2], &[5])]
}

fn slice() -> Vec<Case> {
    let case = |ty: Type, start: &[usize], dims: &[usize]| {
        Case::random(Slice { start: start.to_vec(), dims: dims.to_vec() }, &[ty])
    };
    vec![case(Type::sample(&[4, 5]), &[1, 0], &[2, 5]), case(Type::global(&[6]), &[2], &[3])]
}

fn expand() -> Vec<Case> {
    let case = |from: Type, lead, dims: &[usize]| Case::random(Expand { lead, dims: dims.to_vec() }, &[from]);
    vec![
        case(Type::global(&[3]), Lead::Sample, &[3]),
        case(Type::global(&[]), Lead::Sample, &[2, 3]),
        case(Type::global(&[2, 1]), Lead::Global, &[4, 2, 3]),
        case(Type::sample(&[2, 1]), Lead::Sample, &[2, 5]),
        case(Type::sample(&[1, 4]), Lead::Sample, &[3, 4]),
    ]
}

fn matmul() -> Vec<Case> {
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

/// On eighths, whose sums f32 holds: what is rounded then is the same number everywhere.
fn matmul_half() -> Vec<Case> {
    let eighths = [1.0, -6.0, 4.0, 11.0, -2.0, 7.0, -13.0].map(|x: f64| x / 8.0);
    let case = |a: Type, b: Type, transpose_b| {
        let case = Case::random(MatMulHalf(MatMul { transpose_a: false, transpose_b }), &[a, b]);
        case.with(0, &eighths).with(1, &eighths[..5])
    };
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(s(&[5]), g(&[5, 3]), false),
        case(s(&[64]), g(&[48, 64]), true),
        case(s(&[2, 3, 4]), s(&[2, 5, 4]), true),
        case(g(&[6, 9]), s(&[12, 9]), true),
        case(g(&[33, 70]), g(&[70, 36]), false),
    ]
}

fn reduce(kind: ReduceKind) -> Vec<Case> {
    let case = |ty: Type, axes: &[usize], samples| {
        Case::random(Reduce(Reduction { kind, axes: axes.to_vec(), samples }), &[ty])
    };
    let mut cases = vec![
        case(Type::sample(&[10]), &[0], false),
        case(Type::sample(&[3, 4, 5]), &[1], false),
        case(Type::sample(&[3, 4, 5]), &[0, 2], false),
        case(Type::global(&[4, 300]), &[1], false),
        case(Type::global(&[300, 4]), &[0], false),
        case(Type::global(&[70_001]), &[0], false),
        case(Type::global(&[270_000, 2]), &[0], false),
    ];
    if kind == ReduceKind::Sum {
        cases.push(case(Type::sample(&[7]), &[], true));
        cases.push(case(Type::sample(&[3, 200]), &[1], true));
        cases.push(case(Type::sample(&[3, 4]), &[0, 1], true));
        cases.push(case(Type::sample(&[30_000]), &[0], true));
    }
    cases
}

fn permute() -> Vec<Case> {
    let case = |ty: Type, order: &[usize]| Case::random(Permute { order: order.to_vec() }, &[ty]);
    vec![case(Type::sample(&[2, 3, 4]), &[2, 0, 1]), case(Type::global(&[5, 3]), &[1, 0])]
}

fn window_cases() -> [(Window, [usize; 2]); 4] {
    let plain = Window::new([2, 3]);
    [
        (plain.clone(), [4, 5]),
        (Window { stride: [2, 1], padding: [1, 0], ..plain.clone() }, [5, 4]),
        (Window { dilation: [2, 1], padding: [1, 2], ..plain.clone() }, [4, 4]),
        (Window { stride: [3, 2], dilation: [1, 2], padding: [0, 1], ..plain }, [7, 6]),
    ]
}

fn rewindow() -> Vec<Case> {
    let case = |(window, [h, w]): (Window, [usize; 2])| {
        let [kh, kw] = window.kernel;
        Case::random(Rewindow { window, fill: 0.5 }, &[Type::sample(&[2, h, w, kh, kw])])
    };
    window_cases().into_iter().map(case).collect()
}

fn unwindow() -> Vec<Case> {
    let case = |(window, image): (Window, [usize; 2])| {
        let [kh, kw] = window.kernel;
        let [down, across] = window.count(image).unwrap_or_default();
        Case::random(Unwindow { window, image }, &[Type::sample(&[2, down, across, kh, kw])])
    };
    window_cases().into_iter().map(case).collect()
}

fn reshape() -> Vec<Case> {
    let case = |ty: Type, dims: &[usize]| Case::random(Reshape { dims: dims.to_vec() }, &[ty]);
    vec![case(Type::sample(&[2, 6]), &[3, 4]), case(Type::global(&[6]), &[2, 3])]
}

fn take() -> Vec<Case> {
    let case = |x: Type| {
        let index = x.with_dims(&x.dims[..x.dims.len() - 1]).of(DType::I32);
        Case::random(Take, &[x, index]).with(1, &[2.0, 0.0, 1.0, 3.0])
    };
    vec![case(Type::sample(&[4])), case(Type::sample(&[3, 4])), case(Type::global(&[2, 4]))]
}
