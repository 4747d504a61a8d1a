//! What an adapter is probed with: every family of kernels, on inputs that tell arithmetics apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono_graph::ops::{Attention, Window};
use unisono_graph::{
    Array, DType, Frame, Graph, GraphError, InputDecl, Lead, Program, Tape, Type, Var, interpret,
};
use unisono_random::{Stream, stream};

use crate::batch::shards;

/// The number of samples in the probe's batch. They are in [`SHARDS`] shards.
pub(super) const ROWS: usize = 16;
/// The number of shards of the probe.
pub(super) const SHARDS: usize = 3;
/// The number of values in each sample. It is above the lengths at which products and sums are cut into
/// chunks.
const VALUES: usize = 1500;
/// The number of columns of the probe's product.
const COLUMNS: usize = 8;
/// The sides of a sample's image.
const SIDE: usize = 6;

/// The number of rows of the table that is looked up.
const TABLE: usize = 10;

/// The name of the output that tells how fma rounds.
pub(super) const TIE: &str = "tie";

/// 2^-63: the square of it is the smallest normal number.
const EDGE: f32 = 1.0 / (1u64 << 63) as f32;

/// Returns the rows of an input, if it has samples.
pub(super) fn rows(input: &InputDecl) -> Option<usize> {
    (input.ty.lead == Lead::Sample).then_some(ROWS)
}

/// Returns the outputs of a program by name, as the f64 interpreter computes them from the values of each
/// input.
pub(super) fn interpreted(
    graph: &Graph,
    program: &Program,
    values: &dyn Fn(&InputDecl) -> Vec<f64>,
) -> BTreeMap<String, Array> {
    let array = |input: &InputDecl| {
        let dims: Vec<usize> = rows(input).into_iter().chain(input.ty.dims.iter().copied()).collect();
        Array::new(&dims, values(input))
    };
    let feed = unisono_graph::Feed {
        frame: Frame { shards: shards::sizes(ROWS, SHARDS, ROWS) },
        inputs: program.inputs().iter().map(array).collect(),
        states: Vec::new(),
    };
    interpret(graph, &feed).outputs
}

/// Traces and compiles the probe.
pub(super) fn program() -> Result<Program, GraphError> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[VALUES]));
    let y = tape.input("y", Type::sample(&[VALUES]));
    let w = tape.input("w", Type::global(&[COLUMNS, VALUES]));
    let image = tape.input("image", Type::sample(&[2, SIDE, SIDE]));
    let near = tape.input("near", Type::sample(&[4]));
    let edge = [tape.input("above", Type::sample(&[4])), tape.input("below", Type::global(&[2, 4]))];
    tie(&tape, &near);
    underflow(&tape, &edge);
    subnormal(&tape);
    products(&tape, [&x, &y, &w], &image);
    pointwise(&tape, &x, &y);
    shapes(&tape, &x, &y);
    merged(&tape, &x, &y);
    looked_up(&tape, &w);
    attention(&tape, &x, &y);
    gradients(&tape, [&x, &y, &w]);
    Program::compile(&tape.finish()?)
}

/// (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 if fma rounds once. If it rounds the product too, it is 0.
fn tie(tape: &Tape, near: &Var) {
    let square = near.zip(unisono_graph::ops::Fma, &[near, &(near * -2.0 + 1.0)]);
    tape.output(TIE, &square);
}

/// Sums of (1 + 2^-23) 2^-63 times (1 - 2^-23) 2^-63, which is 2^-126 - 2^-172. The nearest number is 2^-126,
/// the smallest normal one. Where subnormal numbers are zeros, x86-64 rounds first and keeps it, and AArch64
/// looks first and makes 0 of it.
fn underflow(tape: &Tape, [above, below]: &[Var; 2]) {
    tape.output("underflow", &above.matmul_t(below));
}

/// A sum of products that are 2^-130 each. It is 0 where subnormal numbers are zeros, and 1,500 times as much
/// where they are kept.
fn subnormal(tape: &Tape) {
    let small = tape.input("small", Type::sample(&[VALUES]));
    let smaller = tape.input("smaller", Type::global(&[2, VALUES]));
    tape.output("subnormal", &small.matmul_t(&smaller));
}

/// Matrix products with long and with short inner axes, of a matrix and of an image's windows, and long sums.
fn products(tape: &Tape, [x, y, w]: [&Var; 3], image: &Var) {
    let wide = x.reshape(&[15, 100]).matmul_t(&y.reshape(&[15, 100]));
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let filters = w.slice(-1, 0..18).reshape(&[COLUMNS, 2, 3, 3]);
    for (name, value) in [
        ("product", x.matmul_t(w)),
        ("wide", wide),
        ("windows", image.conv2d(&filters, &window, 1)),
        ("sum", x.sum(&[-1])),
        ("max", x.max(&[-1])),
        ("samples", (x * 0.1).sum_samples().sum_shards()),
    ] {
        tape.output(name, &value);
    }
}

/// Every op that rounds, on numbers of all sizes.
fn pointwise(tape: &Tape, x: &Var, y: &Var) {
    let size = x.abs();
    for (name, value) in [
        ("plus", x + y),
        ("minus", x - y),
        ("times", x * y),
        ("fma", x * y + x),
        ("quotient", x / y),
        ("root", size.sqrt()),
        ("exp", x.exp()),
        ("log", size.log()),
        ("tanh", x.tanh()),
        ("erf", x.erf()),
        ("sigmoid", x.sigmoid()),
        ("negative", -x),
        ("half", x.round_half()),
    ] {
        tape.output(name, &value);
    }
}

/// Shapes that compilers are known to rewrite: nested fma that share a factor, sums of products, products of
/// constants, division by a constant, and the inverse of a root.
fn shapes(tape: &Tape, x: &Var, y: &Var) {
    let a = x.tanh();
    let b = y.tanh();
    for (name, value) in [
        ("factored", &a * &b + (&a * 3.0 + &b)),
        ("reassociated", (&a * &b + (&b * 2.0) * &a) + &b),
        ("constants", a.square() * 0.044_715 * 0.797_884_6 + &b),
        ("by_constant", &(x / 72.0) + &(y / 7.0)),
        ("inverse_root", 1.0 / (b.square() + 1e-5).sqrt()),
        ("gelu", x.gelu_tanh()),
        ("deviation", (&a - &a.mean(&[-1]).reshape(&[1]).expand(a.ty().lead, a.dims())) * &b),
    ] {
        tape.output(name, &value);
    }
}

/// Products of constants where their first factor is stored as well: Mesa merges the constants over the
/// select that makes the product between them canonical, if nothing keeps it from that.
fn merged(tape: &Tape, x: &Var, y: &Var) {
    let kept = x.tanh() * y.tanh() + x.sigmoid();
    tape.output("kept", &kept);
    tape.output("merged", &((&kept * 0.797_884_6) * 0.044_715 + y.tanh()));
    tape.output("merged_thrice", &(((&kept * 72.0) * 0.1) * 7.0));
}

/// An embedding and its gradient.
fn looked_up(tape: &Tape, w: &Var) {
    let ids = tape.input("ids", Type::sample(&[60]).of(DType::I32));
    let table = w.tanh().reshape(&[TABLE, COLUMNS * VALUES / TABLE]).slice(-1, 0..COLUMNS);
    let rows = table.embed(&ids);
    tape.output("rows", &rows);
    let loss = rows.square().sum_all().sum_shards();
    tape.output("dtable", &tape.gradients(&loss, std::slice::from_ref(w))[0]);
}

/// Attention over more than one block of keys, and its gradients.
fn attention(tape: &Tape, x: &Var, y: &Var) {
    let dims = [2, 50, 15];
    let [q, k] = [x.tanh().reshape(&dims), y.tanh().reshape(&dims)];
    let seen = tape.apply(Attention { causal: true, scale: 0.3 }, &[&q, &k, &q]);
    tape.output("attention", &seen);
    let loss = (&seen * &k).sum_all().sum_shards();
    for (name, gradient) in ["dquery", "dkey"].iter().zip(tape.gradients(&loss, &[x.clone(), y.clone()])) {
        tape.output(name, &gradient);
    }
}

/// The gradients of a small model, which sum over samples and shards.
fn gradients(tape: &Tape, [x, y, w]: [&Var; 3]) {
    let hidden = x.tanh().matmul_t(w).gelu_tanh();
    let loss = (hidden.softmax() * y.tanh().slice(-1, 0..COLUMNS)).sum_all().sum_shards();
    for (name, gradient) in
        ["dx", "dy", "dw"].iter().zip(tape.gradients(&loss, &[x.clone(), y.clone(), w.clone()]))
    {
        tape.output(name, &gradient);
    }
}

/// Returns the values of an input as bytes: f32 of both signs. Most lie between 2^-8 and 2^8, some are of any
/// size of which a sum of products holds, and some are subnormal, halves, or zeros; none is infinite or not a
/// number. Numbers called `y` are never zero, since they divide. Integers are rows of the table.
pub(super) fn numbers(name: &str, ty: &Type) -> Arc<[u8]> {
    let rows = if ty.lead == unisono_graph::Lead::Sample { ROWS } else { 1 };
    if ty.dtype == DType::I32 {
        let draws = Stream::new(1, stream("probe", name));
        let id = |i: usize| draws.word(0, 0, i as u64) % TABLE as u32;
        return (0..rows * ty.count()).flat_map(|i| id(i).to_le_bytes()).collect();
    }
    let all = match name {
        "near" => Some(1.0 + 1.0 / 4096.0),
        "above" => Some((1.0 + f32::EPSILON) * EDGE),
        "below" => Some((1.0 - f32::EPSILON) * EDGE),
        "small" => Some(EDGE / 2.0),
        "smaller" => Some(EDGE / 8.0),
        _ => None,
    };
    if let Some(number) = all {
        return (0..rows * ty.count()).flat_map(|_| number.to_le_bytes()).collect();
    }
    let draws = Stream::new(1, stream("probe", name));
    let number = |i: usize| {
        let word = draws.word(0, 0, i as u64);
        let (sign, mantissa) = (word & 0x8000_0000, word & 0x007f_ffff);
        let exponent = match (word >> 23) % 32 {
            0 if name != "y" => 0,
            1 => 1 + (word >> 13) % 180,
            2 => return sign | (((word >> 9) % 16) as f32 / 2.0 + 0.5).to_bits(),
            3 if name != "y" => return sign,
            other => 118 + other / 2,
        };
        sign | exponent << 23 | mantissa
    };
    (0..rows * ty.count()).flat_map(|i| number(i).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_has_numbers_of_all_kinds_and_no_others() {
        let of = |name| numbers(name, &Type::global(&[4000]));
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let all = floats(&of("x"));
        assert!(all.iter().all(|x| x.is_finite()));
        assert!(all.iter().any(|x| x.is_subnormal()) && all.iter().any(|x| x.abs() > 1e12));
        assert!(all.iter().any(|x| *x < 0.0) && all.iter().any(|x| (0.5..2.0).contains(x)));
        assert!(all.iter().any(|x| x.to_bits() == 1 << 31));
        assert!(floats(&of("y")).iter().all(|y| y.is_normal()));
        assert_ne!(of("x"), of("w"));
    }
    #[test]
    fn the_probe_has_products_that_round_to_the_smallest_normal_number() {
        let [above, below] = ["above", "below"].map(|name| {
            let bytes = numbers(name, &Type::global(&[1]));
            f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        });
        // f64 holds the product.
        let product = above * below;
        assert!(product < f64::from(f32::MIN_POSITIVE));
        assert_eq!(product as f32, f32::MIN_POSITIVE);
    }
}
