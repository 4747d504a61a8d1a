//! What the arithmetic of docs/NUMERICS.md costs: steps of training with the kernels as they are, beside the
//! same kernels without flushing, without barriers, and with plain quotients and roots.

use std::time::{Duration, Instant};

use unisono::{AdamW, Chain, Gradient, trace_update};
use unisono_graph::{Array, Feed, Frame, Graph, StateKind, Tape, Type, Var};
use unisono_random::Draws;

use super::{Bench, Plant, Subject};

/// The samples of a step.
const BATCH: usize = 128;

/// The times of a step.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The least time with the kernels as they are. What else a machine does only adds to it.
    pub guarded: Duration,
    /// The least time without flushing, barriers, and quotients and roots of ours.
    pub plain: Duration,
}

/// Measures steps in turns on two benches of the same adapter.
///
/// # Errors
/// The adapter does not run the step.
pub fn cost(subject: &Subject, guarded: &mut Bench, plain: &mut Bench, turns: usize) -> Result<Cost, String> {
    let mut times = [Vec::new(), Vec::new()];
    let mut steps = [guarded.stepper(subject, None)?, plain.stepper(subject, Some(Plant::Unguarded))?];
    for _ in 0..turns + 2 {
        for (step, times) in steps.iter_mut().zip(&mut times) {
            let start = Instant::now();
            step()?;
            times.push(start.elapsed());
        }
    }
    let [guarded, plain] = times.map(|mut times| {
        // The first ones compile.
        times.split_off(2).into_iter().min().unwrap_or_default()
    });
    Ok(Cost { guarded, plain })
}

/// Returns steps of training by AdamW: a perceptron, a block of layer norm, GELU and softmax, and a
/// convolution with batch norm.
///
/// # Errors
/// A step cannot be traced, which would be a fault of this function.
pub fn steps() -> Result<Vec<Subject>, String> {
    type Forward = fn(&Tape, &Var) -> (Var, Vec<Var>);
    let all: [(&str, usize, Forward); 3] = [("mlp", 784, mlp), ("block", 256, block), ("norms", 784, norms)];
    all.into_iter().map(|(name, width, forward)| step(name, width, forward)).collect()
}

fn step(name: &str, width: usize, forward: fn(&Tape, &Var) -> (Var, Vec<Var>)) -> Result<Subject, String> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[width]));
    let (y, weights) = forward(&tape, &x);
    let loss = (y.softmax() + 1e-6).log().square().sum_all().sum_shards();
    tape.output("loss", &loss);
    let optimizer = Chain::from(AdamW::new(0.001));
    let gradients = tape.gradients(&loss, &weights).into_iter().zip(&weights).enumerate();
    let updates = gradients.map(|(index, (gradient, weight))| Gradient {
        name: format!("w{index}"),
        weight: weight.clone(),
        gradient,
    });
    trace_update(&tape, &optimizer, updates.collect());
    let graph = tape.finish().map_err(|error| error.to_string())?;
    let feed = feed(&graph, &optimizer);
    Ok(Subject { name: name.to_owned(), graph, feed })
}

fn feed(graph: &Graph, optimizer: &Chain) -> Feed {
    let mut draws = Draws::of(1, "vendors", "cost", 0, 0);
    let frame = Frame { shards: vec![BATCH / 8; 8] };
    let scalars = optimizer.scalars(1);
    let inputs =
        graph.inputs.iter().map(|input| match scalars.iter().find(|scalar| scalar.name == input.name) {
            Some(scalar) => Array::scalar(f64::from(scalar.value)),
            None => Array::generate(&frame.dims(&input.ty), |_| f64::from(draws.range(-1.0, 1.0))),
        });
    let inputs = inputs.collect();
    let state = |ty: &Type| Array::generate(&ty.dims, |_| f64::from(draws.range(0.0, 0.05)));
    let states = graph.states.iter().map(|decl| &decl.ty).map(state).collect();
    Feed { frame, inputs, states }
}

fn weight(tape: &Tape, name: &str, dims: &[usize]) -> Var {
    tape.state(name, dims, StateKind::Parameter)
}

fn mlp(tape: &Tape, x: &Var) -> (Var, Vec<Var>) {
    let sizes = [784, 512, 512, 10];
    let (mut y, mut weights) = (x.clone(), Vec::new());
    for (layer, pair) in sizes.windows(2).enumerate() {
        let w = weight(tape, &format!("w{layer}"), &[pair[1], pair[0]]);
        let b = weight(tape, &format!("b{layer}"), &[pair[1]]);
        y = y.matmul_t(&w) + &b;
        if layer < 2 {
            y = y.relu();
        }
        weights.extend([w, b]);
    }
    (y, weights)
}

fn block(tape: &Tape, x: &Var) -> (Var, Vec<Var>) {
    let up = weight(tape, "up", &[512, 256]);
    let down = weight(tape, "down", &[256, 512]);
    let normed = normed(x);
    let y = normed.matmul_t(&up).gelu_tanh().matmul_t(&down) + x;
    (y, vec![up, down])
}

fn norms(tape: &Tape, x: &Var) -> (Var, Vec<Var>) {
    let first = weight(tape, "first", &[784]);
    let second = weight(tape, "second", &[64, 784]);
    let y = (normed(x) * &first).gelu_tanh();
    let y = (normed(&y) * &first).silu();
    (y.matmul_t(&second), vec![first, second])
}

fn normed(x: &Var) -> Var {
    let wide = |mean: Var| mean.reshape(&[1]).expand(x.ty().lead, x.dims());
    let centred = x - &wide(x.mean(&[-1]));
    let variance = wide(centred.square().mean(&[-1]));
    &centred / &(variance + 1e-5).sqrt()
}
