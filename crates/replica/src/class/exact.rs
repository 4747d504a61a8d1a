//! What an adapter has to compute before it is of any class: every family of kernels, forward and backward,
//! on small whole numbers, where nothing is rounded. So all adapters give the same bytes, whatever their
//! arithmetic is, and the f64 interpreter knows them.

use std::sync::Arc;

use unisono_graph::ops::{Attention, Window};
use unisono_graph::{DType, Graph, GraphError, InputDecl, Program, Tape, Type, Var};
use unisono_random::{Stream, stream};

use crate::batch::outputs::Outputs;

use super::probe::{interpreted, rows};

/// The number of values in each sample: above the length at which sums are cut into chunks.
const VALUES: usize = 300;
/// The number of rows of the table that is looked up.
const TABLE: usize = 8;

/// The program, with its graph for the interpreter.
pub(super) struct Exact {
    graph: Graph,
    pub program: Arc<Program>,
}

impl Exact {
    pub fn new() -> Result<Self, GraphError> {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[VALUES]));
        let w = tape.input("w", Type::global(&[10, VALUES]));
        let image = tape.input("image", Type::sample(&[2, 6, 6]));
        let filters = tape.input("filters", Type::global(&[4, 2, 3, 3]));
        products(&tape, [&x, &w, &image, &filters]);
        maps(&tape, &x);
        looked_up(&tape);
        attention(&tape, &x);
        let graph = tape.finish()?;
        let program = Arc::new(Program::compile(&graph)?);
        Ok(Self { graph, program })
    }

    /// Returns the values of the inputs as bytes.
    pub fn feed(&self) -> Vec<Arc<[u8]>> {
        let words = |input: &InputDecl| -> Arc<[u8]> {
            let float = input.ty.dtype == DType::F32;
            let word = |value: i32| if float { (value as f32).to_bits() } else { value as u32 };
            values(input).into_iter().flat_map(|value| word(value).to_le_bytes()).collect()
        };
        self.program.inputs().iter().map(words).collect()
    }

    /// Returns the name of the first output that is not what it has to be.
    pub fn wrong(&self, given: &Outputs) -> Option<String> {
        let doubles = |input: &InputDecl| values(input).into_iter().map(f64::from).collect();
        let right = interpreted(&self.graph, &self.program, &doubles);
        let is_wrong = |(index, name): &(usize, &str)| {
            let found = given.floats(*index).unwrap_or_default();
            let expected = right.get(*name).map_or(&[][..], |array| &array.data[..]);
            let same =
                |(found, expected): (&f32, &f64)| found.to_bits() == (*expected as f32 + 0.0).to_bits();
            found.len() != expected.len() || !found.iter().zip(expected).all(same)
        };
        let names = self.program.outputs().iter().map(|output| &*output.name).enumerate();
        names.into_iter().find(is_wrong).map(|(_, name)| name.to_owned())
    }
}

/// Products of matrices and of an image's windows, sums over axes, samples and shards, and the gradients.
fn products(tape: &Tape, [x, w, image, filters]: [&Var; 4]) {
    let y = x.matmul_t(w);
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let seen = image.conv2d(filters, &window, 1);
    let loss = (y.square().sum(&[-1]) + seen.square().sum(&[1, 2, 3])).sum_shards();
    let gradients = tape.gradients(&loss, &[x.clone(), w.clone(), image.clone(), filters.clone()]);
    for (name, value) in [("product", &y), ("windows", &seen), ("loss", &loss)] {
        tape.output(name, value);
    }
    for (name, gradient) in ["dx", "dw", "dimage", "dfilters"].iter().zip(&gradients) {
        tape.output(name, gradient);
    }
}

/// Ops on elements, and maxima.
fn maps(tape: &Tape, x: &Var) {
    for (name, value) in [
        ("copy", x * 1.0),
        ("fma", x * x + x),
        ("relu", x.relu()),
        ("quotient", (x * 3.0) / 3.0),
        ("root", x.square().sqrt()),
        ("negative", -x),
        ("half", x.round_half()),
        ("exp", (x * 0.0).exp()),
        ("log", (x * 0.0 + 1.0).log()),
        ("max", x.max(&[-1])),
        ("sum", x.sum(&[-1])),
    ] {
        tape.output(name, &value);
    }
}

/// Rows of a table, and the gradient by the table.
fn looked_up(tape: &Tape) {
    let table = tape.input("table", Type::global(&[TABLE, 12]));
    let ids = tape.input("ids", Type::sample(&[40]).of(DType::I32));
    let rows = table.embed(&ids);
    tape.output("rows", &rows);
    let loss = rows.square().sum_all().sum_shards();
    tape.output("dtable", &tape.gradients(&loss, &[table])[0]);
}

/// Attention whose scores are all 0: each of 64 keys weighs 1/64.
fn attention(tape: &Tape, x: &Var) {
    let values = x.slice(-1, 0..256).reshape(&[1, 64, 4]);
    let none = &values * 0.0;
    let seen = tape.apply(Attention { causal: false, scale: 0.5 }, &[&none, &values, &values]);
    tape.output("attention", &seen);
}

/// Returns the values of an input: whole numbers from -3 to 3, or rows of the table.
fn values(input: &InputDecl) -> Vec<i32> {
    let draws = Stream::new(1, stream("exact", &input.name));
    let count = rows(input).unwrap_or(1) * input.ty.count();
    let float = input.ty.dtype == DType::F32;
    let value = |word: u32| if float { (word % 7) as i32 - 3 } else { (word % TABLE as u32) as i32 };
    (0..count as u64).map(|i| value(draws.word(0, 0, i))).collect()
}
