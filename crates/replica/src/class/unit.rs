//! What a matrix unit is probed with: products of hard operands, by every family of kernels that uses it, and
//! how far a result may be from the exact one.

use std::sync::Arc;

use unisono_graph::ops::{Attention, Window};
use unisono_graph::{Graph, GraphError, InputDecl, Program, Tape, Type, half};
use unisono_random::{Stream, stream};

use super::probe::{interpreted, rows};
use crate::batch::outputs::Outputs;

/// The steps of the long product: above the length of a chunk, and no multiple of a unit's size.
const LONG: usize = 1100;
/// The steps of the short product.
const SHORT: usize = 37;
/// The columns of the products.
const COLUMNS: usize = 21;
/// The queries and keys of attention: more than a workgroup has at a time, and no multiple of a block.
const PLACES: usize = 75;

/// The most that a result is off, in units of 2^-24 of the sum of its products' magnitudes. f32 rounds each
/// addition by one such unit at most, and units that cut off where they add by two; sums have up to 1,100
/// steps, but most of what they add up is much smaller than the whole.
const UNITS: f64 = 256.0;

/// The most that a result of attention is off, as a part of the largest one: weights are rounded to f16.
const OF_ATTENTION: f64 = 1.0 / 256.0;

/// Returns whether an input or an output is of attention.
fn is_of_attention(name: &str) -> bool {
    name.starts_with("attended") || ["q", "k", "v", "dy"].contains(&name)
}

/// The program, with its graph for the interpreter.
pub(super) struct UnitProbe {
    graph: Graph,
    pub program: Arc<Program>,
}

impl UnitProbe {
    pub fn new() -> Result<Self, GraphError> {
        let tape = Tape::new();
        let halved = |name: &str, ty: Type| tape.input(name, ty).round_half();
        let x = halved("x", Type::sample(&[LONG]));
        let w = halved("w", Type::global(&[COLUMNS, LONG]));
        let weights = halved("weights", Type::sample(&[COLUMNS]));
        let image = halved("image", Type::sample(&[2, 6, 6]));
        let filters = halved("filters", Type::global(&[5, 2, 3, 3]));
        let long = x.matmul_t(&w);
        let short = x.slice(-1, 0..SHORT).matmul_t(&w.slice(-1, 0..SHORT));
        let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
        let windows = image.conv2d(&filters, &window, 1);
        for (name, value) in [("long", &long), ("short", &short), ("windows", &windows)] {
            tape.output(name, value);
        }
        let loss = (&long * &weights).sum_all().sum_shards();
        for (name, gradient) in ["dx", "dw"].iter().zip(tape.gradients(&loss, &[x, w])) {
            tape.output(name, &gradient);
        }
        let part = |name: &str, width| halved(name, Type::sample(&[2, PLACES, width]));
        let (q, k, v, dy) = (part("q", 9), part("k", 9), part("v", 12), part("dy", 12));
        for (name, causal) in [("attended", false), ("attended causally", true)] {
            let y = tape.apply(Attention { causal, scale: 0.375 }, &[&q, &k, &v]);
            tape.output(name, &y);
            let loss = (&y * &dy).sum_all().sum_shards();
            let by = [q.clone(), k.clone(), v.clone()];
            for (of, gradient) in ["dq", "dk", "dv"].iter().zip(tape.gradients(&loss, &by)) {
                tape.output(&format!("{name}, {of}"), &gradient);
            }
        }
        let graph = tape.finish()?;
        let program = Arc::new(Program::compile(&graph)?);
        Ok(Self { graph, program })
    }

    /// Returns the values of the inputs as bytes.
    pub fn feed(&self) -> Vec<Arc<[u8]>> {
        let bytes = |input| values(input).into_iter().flat_map(f32::to_le_bytes).collect();
        self.program.inputs().iter().map(bytes).collect()
    }

    /// Returns what is wrong with the first output that is further from the exact result than rounding
    /// explains.
    pub fn wrong(&self, given: &Outputs) -> Option<String> {
        let [exact, most] = [false, true].map(|magnitudes| {
            let value = |x: f32| f64::from(if magnitudes { x.abs() } else { x });
            let doubles = |input: &InputDecl| values(input).into_iter().map(value).collect();
            interpreted(&self.graph, &self.program, &doubles)
        });
        self.program.outputs().iter().enumerate().find_map(|(index, output)| {
            let found = given.floats(index).unwrap_or_default();
            let [exact, most] =
                [&exact, &most].map(|all| all.get(&output.name).map_or(&[][..], |array| &array.data[..]));
            if found.len() != exact.len() {
                return Some(format!("its matrix unit gave no {}", output.name));
            }
            let largest = exact.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let off = |i: &usize| {
                let allowed = match is_of_attention(&output.name) {
                    true => OF_ATTENTION * largest,
                    false => UNITS * most[*i] * f64::from(f32::EPSILON) / 2.0,
                } + f64::from(f32::MIN_POSITIVE);
                // NaN is not near anything.
                let is_near = (f64::from(found[*i]) - exact[*i]).abs() <= allowed;
                !is_near
            };
            let first = (0..found.len()).find(off)?;
            Some(format!(
                "its matrix unit is wrong: element {first} of the product \"{}\" is {:e} and has to be {:e}",
                output.name, found[first], exact[first]
            ))
        })
    }
}

/// Returns the values of an input: numbers that f16 holds. Most are of very different sizes, so that every
/// order of a sum, and every width of an accumulator, has bits of its own. Some are the smallest numbers of
/// f16, some are large and cancel each other, and some are zeros of either sign.
fn values(input: &InputDecl) -> Vec<f32> {
    let draws = Stream::new(1, stream("unit", &input.name));
    let count = rows(input).unwrap_or(1) * input.ty.count();
    let value = |i: u64| {
        let word = draws.word(0, 0, i);
        let sign = if word & 1 == 0 { 1.0 } else { -1.0 };
        let fraction = 1.0 + (word >> 8 & 0x3ff) as f32 / 1024.0;
        if is_of_attention(&input.name) {
            return sign * fraction * 0.5;
        }
        let size = match word >> 1 & 0xf {
            0 => return sign * ((word >> 8 & 0x3ff) as f32) / (1 << 24) as f32,
            1 => return sign * 0.0,
            2 => 2048.0,
            other => 2f32.powi(other as i32 - 10),
        };
        half::round_half(sign * fraction * size)
    };
    (0..count as u64).map(value).collect()
}

#[cfg(test)]
mod tests {
    use unisono_graph::Run;
    use unisono_graph::target::{Machine, MatrixUnit, Target, UnitSums, UnitWay};

    use super::*;
    use crate::batch::shards;
    use crate::class::probe::{ROWS, SHARDS};

    #[test]
    fn every_kind_of_kernel_with_a_unit_is_probed() {
        let probe = UnitProbe::new().unwrap();
        let unit = MatrixUnit { size: 8, lanes: 8, fewest: 8, way: UnitWay::Cooperative };
        for unit in [unit, UnitSums::InTurn.unit(), UnitSums::Aligned.unit()].map(Some) {
            let max_workgroup_bytes = 32 << 10;
            let target =
                Target { machine: Machine::Gpu, f16: true, unit, max_workgroup_bytes, ..Target::default() };
            let plan = probe.program.plan(&Run::whole(&shards::sizes(ROWS, SHARDS, ROWS)), &target).unwrap();
            let names: Vec<&str> = plan.kernels.iter().map(|kernel| &kernel.name[..]).collect();
            let products = ["matmul_unit_nt", "matmul_unit_nn", "matmul_unit_ni", "contract_unit_shards"];
            let attention = ["attention_unit", "attention_query_unit", "attention_key_unit"];
            for kind in products.into_iter().chain(attention) {
                assert!(names.iter().any(|name| name.starts_with(kind)), "{kind}: {names:?}");
            }
        }
    }

    #[test]
    fn the_operands_are_halves_of_all_kinds() {
        let probe = UnitProbe::new().unwrap();
        let all: Vec<f32> = probe.program.inputs().iter().flat_map(values).collect();
        assert!(all.iter().all(|&x| half::round_half(x).to_bits() == x.to_bits()));
        assert!(all.iter().any(|x| *x != 0.0 && x.abs() < 6e-5) && all.iter().any(|x| x.abs() >= 2048.0));
        assert!(all.iter().any(|x| x.to_bits() == 1 << 31));
    }
}
