//! Moving rows, sorting and running maxima, beside what NumPy and PyTorch give.

use crate::reference::interpret;
use crate::{Array, DType, Feed, Frame, Tape, Type, Var};

/// Returns what a function makes of two samples of `x` with ids, and the gradient of its sum, weighed by
/// 1, 2, 3, ..., by `x`.
fn of(
    (dims, x): (&[usize], &[f64]),
    (ids_dims, ids): (&[usize], &[f64]),
    f: impl Fn(&Var, &Var) -> Var,
) -> [Vec<f64>; 2] {
    let tape = Tape::new();
    let (a, b) =
        (tape.input("x", Type::sample(dims)), tape.input("ids", Type::sample(ids_dims).of(DType::I32)));
    let y = f(&a, &b);
    let count = y.ty().count();
    let weights = tape.apply(crate::ops::Iota { dims: vec![count], axis: 0 }, &[]).to_f32() + 1.0;
    tape.output("y", &y);
    if y.ty().dtype == DType::F32 {
        let total = (y.flatten() * weights).sum(&[-1]).sum_shards();
        tape.output("dx", &tape.gradients(&total, &[a])[0]);
    }
    let inputs = vec![
        Array::new(&[&[2], dims].concat(), x.to_vec()),
        Array::new(&[&[2], ids_dims].concat(), ids.to_vec()),
    ];
    let feed = Feed { frame: Frame { shards: vec![1, 1] }, inputs, states: vec![] };
    let out = interpret(&tape.finish().unwrap(), &feed).outputs;
    ["y", "dx"].map(|name| out.get(name).map(|array| array.data.clone()).unwrap_or_default())
}

const ROWS: [f64; 12] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0];
const NONE: (&[usize], &[f64]) = (&[1], &[0.0, 0.0]);

#[test]
fn rows_are_gathered_by_the_ids_of_each_sample() {
    let ids = (&[4][..], &[2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 9.0][..]);
    let [y, dx] = of((&[3, 2], &ROWS), ids, Var::gather_rows);
    assert_eq!(y[..8], [5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 3.0, 4.0]);
    assert_eq!(y[8..], [-1.0, -2.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    assert_eq!(dx[..6], [3.0, 4.0, 7.0, 8.0, 6.0, 8.0]);
}

#[test]
fn segments_are_summed_and_rows_without_one_left_out() {
    let ids = (&[3][..], &[1.0, 3.0, 1.0, 0.0, 7.0, -1.0][..]);
    let [y, dx] = of((&[3, 2], &ROWS), ids, |x, ids| x.segment_sum(ids, 4));
    assert_eq!(y[..8], [0.0, 0.0, 6.0, 8.0, 0.0, 0.0, 3.0, 4.0]);
    assert_eq!(y[8..], [-1.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(dx, [3.0, 4.0, 7.0, 8.0, 3.0, 4.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn sorting_is_stable_and_its_gradient_goes_back() {
    let x = (&[5][..], &[3.0, -1.0, 3.0, 0.5, -7.0, 2.0, 2.0, 2.0, 2.0, 2.0][..]);
    let [y, dx] = of(x, NONE, |x, _| x.sort().0);
    assert_eq!(y, [-7.0, -1.0, 0.5, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(dx, [4.0, 2.0, 5.0, 3.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(of(x, NONE, |x, _| x.argsort())[0], [4.0, 1.0, 3.0, 0.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(of(x, NONE, |x, _| -(-x).sort().0)[0][..5], [3.0, 3.0, 0.5, -1.0, -7.0]);
}

#[test]
fn running_maxima_are_those_of_pytorch() {
    let x = (&[5][..], &[3.0, -1.0, 4.0, 0.5, 7.0, -2.0, -3.0, -1.0, -1.5, -4.0][..]);
    let [y, dx] = of(x, NONE, |x, _| x.cumulative_max(-1));
    assert_eq!(y, [3.0, 3.0, 4.0, 4.0, 7.0, -2.0, -2.0, -1.0, -1.0, -1.0]);
    assert_eq!(dx, [3.0, 0.0, 7.0, 0.0, 5.0, 3.0, 0.0, 12.0, 0.0, 0.0]);
    assert_eq!(of(x, NONE, |x, _| x.cumulative_min(-1))[0][..5], [3.0, -1.0, -1.0, -1.0, -1.0]);
    let rows = of((&[3, 2], &ROWS), NONE, |x, _| x.cumulative_max(1));
    assert_eq!(rows[0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, -2.0, -1.0, -2.0, -1.0, -2.0]);
}

#[test]
fn indices_become_integers() {
    let x = (&[3][..], &[3.0, 5.0, 5.0, -1.0, -2.0, 0.25][..]);
    assert_eq!(of(x, NONE, |x, _| x.argmax().to_i32().one_hot(3))[0], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(of(x, NONE, |x, _| x.gather(&x.top_k(2).1.to_i32()))[0], [5.0, 5.0, 0.25, -1.0]);
    assert_eq!(of(x, NONE, |x, _| (x * 0.5).to_i32().to_f32())[0], [1.0, 2.0, 2.0, 0.0, -1.0, 0.0]);
}

#[test]
fn what_does_not_fit_says_why() {
    let problem = |f: fn(&Var, &Var) -> Var| {
        let tape = Tape::new();
        let ids = tape.input("ids", Type::sample(&[4]).of(DType::I32));
        f(&tape.input("x", Type::sample(&[3, 2])), &ids);
        tape.finish().unwrap_err().to_string()
    };
    for (f, expected) in [
        (
            (|x, ids| x.slice(1, 0..1).flatten().gather_rows(ids)) as fn(&Var, &Var) -> Var,
            "gather_rows: [B, 2] has no",
        ),
        (
            |x, ids| x.gather_rows(&ids.reshape(&[2, 2])),
            "gather_rows: [B, 2, 2] i32 does not name rows of [B, 3, 2]",
        ),
        (
            |x, ids| x.segment_sum(ids, 3),
            "segment_sum: [B, 4] i32 does not name segments of the rows of [B, 3, 2]",
        ),
        (|_, ids| ids.sort().0, "sort: [B, 4] i32 has no rows of f32"),
        (|x, _| x.flatten().matmul_t(&x.flatten()), "Var::gather_batch lets each sample see those of all"),
        (|x, ids| x.matmul(&ids.to_f32().reshape(&[1, 2, 2])), "the same axes before the last two"),
    ] {
        let problem = problem(f);
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
}
