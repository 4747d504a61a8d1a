//! Families of kernels with their gradients, each with about a million operands, and whole training steps.

use unisono::Precision;
use unisono_examples::Model;
use unisono_graph::ops::{Attention, Window};
use unisono_graph::{Array, DType, Feed, Frame, InputKind, Program, RandomKey, StateKind, Tape, Type, Var};
use unisono_random::Draws;
use unisono_tests::isa::Step as Training;

/// A family: its name, what it computes of inputs, and how a number for them is drawn.
pub type Family = (&'static str, fn(&Tape), fn(&mut Draws) -> f32);

/// The samples, in shards of several sizes.
const SHARDS: [usize; 3] = [3, 3, 2];

/// The families.
pub const FAMILIES: [Family; 13] = [
    ("maps", maps, number),
    ("functions", functions, number),
    ("products", |tape| product(tape, 1250, 100, 20), number),
    ("long products", |tape| product(tape, 16, 8200, 16), number),
    ("convolutions", |tape| convolution(tape, [3, 3], [1, 1]), number),
    ("convolutions in steps of two", |tape| convolution(tape, [5, 3], [2, 2]), number),
    ("pools", pools, number),
    ("sums", sums, number),
    ("softmax", |tape| rows(tape, |x| x.log_softmax()), small),
    ("normalization", |tape| rows(tape, normalized), number),
    ("attention", |tape| attention(tape, false), small),
    ("causal attention", |tape| attention(tape, true), small),
    ("embeddings", embeddings, number),
];

fn input(tape: &Tape, name: &str, dims: &[usize]) -> Var {
    tape.input(name, Type::sample(dims))
}

fn state(tape: &Tape, name: &str, dims: &[usize]) -> Var {
    tape.state(name, dims, StateKind::Parameter)
}

/// Adds a result as an output, and the gradients of its weighted sum.
fn trained(tape: &Tape, y: &Var, inputs: &[&Var]) {
    tape.output("y", y);
    // With weights, the gradients of elements differ.
    let weights = state(tape, "weights", &y.dims()[y.dims().len() - 1..]);
    let sum = (y * &weights).sum_all().sum_shards();
    let inputs: Vec<Var> = inputs.iter().map(|&input| input.clone()).collect();
    for (at, gradient) in tape.gradients(&sum, &inputs).iter().enumerate() {
        tape.output(&format!("d{at}"), gradient);
    }
}

/// Operations that round once: sums, products, quotients and roots.
fn maps(tape: &Tape) {
    let [a, b, c] = ["a", "b", "c"].map(|name| input(tape, name, &[42_000]));
    let all: [(&str, Var); 13] = [
        ("sum", &a + &b),
        ("difference", &a - &c),
        ("product", &a * &b),
        ("quotient", &a / &b),
        ("fma", a.fma(&b, &c)),
        ("recip", c.recip()),
        ("sqrt", a.abs().sqrt()),
        ("rsqrt", b.abs().rsqrt()),
        ("maximum", a.maximum(&b)),
        ("error", a.fma(&b, &-(&a * &b))),
        ("select", a.greater(&b).select(&b, &c)),
        ("round", c.round()),
        ("floor", (&a * 0.37).floor()),
    ];
    for (name, value) in &all {
        tape.output(name, value);
    }
    // Several in one kernel, as in the update of an optimizer.
    let average = a.fma(&tape.constant(0.9), &(&b * 0.1));
    let second = b.square().fma(&tape.constant(0.001), &(c.square() * 0.999));
    tape.output("update", &(&a - (average / (second.sqrt() + 1e-8)) * 0.01));
}

/// Functions that kernels approximate by sums and products.
fn functions(tape: &Tape) {
    let x = input(tape, "x", &[125_000]);
    let all: [(&str, Var); 12] = [
        ("exp", x.exp()),
        ("log", x.abs().log()),
        ("tanh", x.tanh()),
        ("sigmoid", x.sigmoid()),
        ("erf", x.erf()),
        ("gelu", x.gelu()),
        ("softplus", x.softplus()),
        ("sin", x.sin()),
        ("cos", x.cos()),
        ("pow", x.abs().pow(0.3)),
        ("mish", x.mish()),
        ("silu", x.silu()),
    ];
    for (name, value) in &all {
        tape.output(name, value);
    }
}

fn product(tape: &Tape, rows: usize, inner: usize, columns: usize) {
    let x = input(tape, "x", &[rows, inner]);
    let w = state(tape, "w", &[columns, inner]);
    trained(tape, &x.matmul_t(&w), &[&x, &w]);
}

fn convolution(tape: &Tape, kernel: [usize; 2], stride: [usize; 2]) {
    let x = input(tape, "x", &[4, 178, 178]);
    let w = state(tape, "w", &[4, 4, kernel[0], kernel[1]]);
    let window = Window { padding: [1, 1], stride, ..Window::new(kernel) };
    trained(tape, &x.conv2d(&w, &window, 1), &[&x, &w]);
}

fn pools(tape: &Tape) {
    let x = input(tape, "x", &[4, 178, 178]);
    let window = Window { stride: [2, 2], ..Window::new([2, 2]) };
    let overlapping = Window { padding: [1, 1], stride: [2, 2], ..Window::new([3, 3]) };
    trained(tape, &(x.max_pool2d(&window) + x.avg_pool2d(&overlapping)), &[&x]);
}

/// Along rows, over samples, and over all.
fn sums(tape: &Tape) {
    let x = input(tape, "x", &[125, 1000]);
    tape.output("rows", &x.sum(&[-1]));
    tape.output("columns", &x.sum(&[-2]));
    tape.output("samples", &x.sum_samples().sum_shards());
    tape.output("all", &x.square().sum_all().sum_shards());
    tape.output("greatest", &x.max(&[-1]));
    tape.output("means", &x.mean(&[-1]));
}

fn rows(tape: &Tape, of: fn(&Var) -> Var) {
    let x = input(tape, "x", &[250, 500]);
    trained(tape, &of(&x), &[&x]);
}

/// Layer normalization.
fn normalized(x: &Var) -> Var {
    let centred = x - x.mean(&[-1]).reshape(&[250, 1]);
    &centred * (centred.square().mean(&[-1]).reshape(&[250, 1]) + 1e-5).rsqrt()
}

fn attention(tape: &Tape, causal: bool) {
    let [q, k, v] = ["q", "k", "v"].map(|name| input(tape, name, &[10, 70, 60]));
    let seen = tape.apply(Attention { causal, scale: 0.13 }, &[&q, &k, &v]);
    trained(tape, &seen, &[&q, &k, &v]);
}

fn embeddings(tape: &Tape) {
    let ids = tape.input("ids", Type::sample(&[20]).of(DType::I32));
    let table = state(tape, "table", &[7, 143_000]);
    trained(tape, &table.embed(&ids), &[&table]);
}

/// Returns a family's program and values.
pub fn step((_, of, number): Family) -> (Program, Feed) {
    let tape = Tape::new();
    of(&tape);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let feed = feed(&program, &SHARDS, number);
    (program, feed)
}

/// Returns the training step of a model with AdamW, and values.
pub fn training(model: Model, batch: usize) -> (Program, Feed) {
    let step = Training { model, batch, shards: 2, replicas: 1, precision: Precision::F32 };
    let program = step.program().unwrap();
    let feed = feed(&program, &step.run().sizes, |draws| draws.range(-0.3, 0.3));
    (std::sync::Arc::unwrap_or_clone(program), feed)
}

/// Returns values for a step.
fn feed(program: &Program, shards: &[usize], number: fn(&mut Draws) -> f32) -> Feed {
    let frame = Frame { shards: shards.to_vec() };
    let mut draws = Draws::of(0, "rdna", "feed", 0, 0);
    let inputs = program.inputs().iter().enumerate().map(|(at, input)| {
        let dims = frame.dims(&input.ty);
        match input.ty.dtype {
            _ if input.kind == InputKind::Random => {
                let key = RandomKey { seed: 7, epoch: 1, position: 100 };
                Array::new(&input.ty.dims, key.words().iter().map(|&word| f64::from(word)).collect())
            }
            DType::F32 if program.scalars().contains(&at) => Array::generate(&dims, |_| 0.0625),
            DType::F32 => Array::generate(&dims, |_| f64::from(number(&mut draws))),
            _ => Array::generate(&dims, |_| f64::from(draws.below(7))),
        }
    });
    let inputs = inputs.collect();
    let states = program.states().iter().map(|state| {
        Array::generate(&state.ty.dims, |_| match state.kind {
            // Averages of squares.
            StateKind::Optimizer => f64::from(number(&mut draws).abs() * 0.01),
            _ => f64::from(number(&mut draws)),
        })
    });
    let states = states.collect();
    Feed { frame, inputs, states }
}

/// Returns a number that is hard to compute with: near a tie, near the least normal number once it is
/// multiplied, subnormal, or much larger or smaller than others.
fn number(draws: &mut Draws) -> f32 {
    let sign = draws.below(2) << 31;
    let mantissa = draws.below(1 << 23);
    let with = |exponent: u32, mantissa: u32| f32::from_bits(sign | exponent << 23 | mantissa);
    let near = |draws: &mut Draws, exponent: u32, spread: u32| exponent + draws.below(spread);
    match draws.below(16) {
        // Of one size.
        0..6 => with(near(draws, 124, 4), mantissa),
        // Products of these have ties.
        6..9 => with(near(draws, 120, 10), mantissa & 0x7f_f800 | mantissa & 1),
        9 => with(127, mantissa & 7),
        // Powers of two, and numbers just below them.
        10 => with(near(draws, 117, 20), if mantissa & 1 == 0 { 0 } else { 0x7f_ffff }),
        // Their products are near the least normal number.
        11 | 12 => with(near(draws, 62, 4), mantissa),
        13 => with(near(draws, 100, 54), mantissa),
        // Zeros, and subnormal numbers, which a device takes for zeros or not.
        14 => with(0, if mantissa & 1 == 0 { 0 } else { mantissa }),
        _ => with(near(draws, 1, 3), mantissa),
    }
}

/// Returns a number as [`number`] does, of at most 4: the exponential functions of several count in a sum.
fn small(draws: &mut Draws) -> f32 {
    let x = number(draws);
    if x.abs() < 4.0 { x } else { x / f32::from_bits(x.to_bits() & 0x7f80_0000) }
}

/// Returns the number of operands of a step.
pub fn operands(feed: &Feed) -> usize {
    feed.inputs.iter().chain(&feed.states).map(|array| array.data.len()).sum()
}
