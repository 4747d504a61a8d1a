//! Random graphs of fused ops, forward and backward, on numbers of all kinds.

use unisono_graph::{Array, Feed, Frame, StateKind, Tape, Type, Var};
use unisono_random::Draws;

use super::Subject;

/// The sizes of the shards.
const SHARDS: [usize; 3] = [3, 2, 2];
/// The number of values in a sample, which is no multiple of four in every second graph.
const WIDTHS: [usize; 2] = [8, 5];

/// Returns a random graph: 4 to 14 ops on two inputs, a weight and constants, then the gradients of all
/// three.
///
/// # Errors
/// The graph cannot be traced, which would be a fault of this function.
pub fn fuzz(seed: u64) -> Result<Subject, String> {
    let mut draws = Draws::of(seed, "vendors", "graph", 0, 0);
    let width = WIDTHS[draws.below(2) as usize];
    let tape = Tape::new();
    let inputs = ["x", "y"].map(|name| tape.input(name, Type::sample(&[width])));
    let weight = tape.state("w", &[width], StateKind::Parameter);
    let mut values: Vec<Var> = inputs.to_vec();
    values.push(weight.expand_like(&inputs[0]));
    for _ in 0..4 + draws.below(11) {
        let new = step(&mut draws, &values, width);
        values.push(new);
    }
    let last = values[values.len() - 1].clone();
    tape.output("y", &last);
    let loss = (&last * &inputs[1]).sum_all().sum_shards();
    tape.output("loss", &loss);
    let wanted = [inputs[0].clone(), inputs[1].clone(), weight];
    let gradients = tape.gradients(&loss, &wanted);
    for (name, gradient) in ["dx", "dy"].iter().zip(&gradients) {
        tape.output(name, gradient);
    }
    tape.update(&wanted[2], &(&wanted[2] - &gradients[2] * 0.125));
    let graph = tape.finish().map_err(|error| format!("fuzz {seed}: {error}"))?;
    let rows: usize = SHARDS.iter().sum();
    let array = |dims: &[usize], draws: &mut Draws| Array::generate(dims, |_| number(draws));
    let feed = Feed {
        frame: Frame { shards: SHARDS.to_vec() },
        inputs: (0..2).map(|_| array(&[rows, width], &mut draws)).collect(),
        states: vec![array(&[width], &mut draws)],
    };
    Ok(Subject { name: format!("fuzz {seed}"), graph, feed })
}

/// A value is taken as the last ones more often than as earlier ones, so that chains are long.
fn pick<'a>(draws: &mut Draws, values: &'a [Var]) -> &'a Var {
    let back = draws.below(3).min(draws.below(values.len() as u32)) as usize;
    &values[values.len() - 1 - back.min(values.len() - 1)]
}

/// Returns a new value made of those before.
fn step(draws: &mut Draws, values: &[Var], width: usize) -> Var {
    let (a, b, c) = (pick(draws, values), pick(draws, values), pick(draws, values));
    let constant = CONSTANTS[draws.below(CONSTANTS.len() as u32) as usize];
    match draws.below(32) {
        0..=2 => a + b,
        3..=4 => a - b,
        5..=7 => a * b,
        8..=9 => a / &(b.abs() + constant),
        10..=12 => a * b + c,
        13 => c - &(a * b),
        14..=15 => a * constant,
        16 => a + constant,
        17..=18 => a / constant,
        19 => a.abs().sqrt(),
        20 => (a.abs() + constant).rsqrt(),
        21 => a.tanh(),
        22 => a.sigmoid(),
        23 => a.tanh().exp(),
        24 => (a.abs() + constant).log(),
        25 => a.erf(),
        26 => a.relu() - &b.maximum(c),
        27 => -a,
        28 => a.greater(b).select(b, c),
        29 => &(a - &a.mean(&[-1]).reshape(&[1]).expand_like(a)) * b,
        30 => (a * b).sum_keep(&[-1]).expand_like(a),
        _ => (a * constant) * CONSTANTS[draws.below(CONSTANTS.len() as u32) as usize] + c * (width as f32),
    }
}

/// Numbers that compilers like to fold, some of them no power of two.
const CONSTANTS: [f32; 10] = [0.5, 2.0, 3.0, 72.0, 0.1, 1e-5, 0.797_884_6, 0.044_715, 7.0, 1.5];

/// Returns a number of either sign: most lie between 2^-4 and 2^4, some are of any size that squares of which
/// f32 holds, some are halves of units in the last place, subnormal, or zeros.
fn number(draws: &mut Draws) -> f64 {
    let word = draws.next_u32();
    let mantissa = word & 0x007f_ffff;
    let exponent = match draws.below(24) {
        0 => return f64::from(f32::from_bits(word & 0x8000_0000)),
        1 => 0,
        2 => 1 + draws.below(4),
        3 => 64 + draws.below(40),
        4 => 140 + draws.below(16),
        5 => return f64::from(draws.below(9)) / 2.0 - 2.0,
        _ => 123 + draws.below(8),
    };
    f64::from(f32::from_bits(word & 0x8000_0000 | exponent << 23 | mantissa))
}

trait ExpandLike {
    /// Repeats a value until it has the type of another.
    fn expand_like(&self, other: &Var) -> Var;
}

impl ExpandLike for Var {
    fn expand_like(&self, other: &Var) -> Var {
        self.expand(other.ty().lead, other.dims())
    }
}
