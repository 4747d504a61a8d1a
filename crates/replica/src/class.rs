//! Numeric classes: adapters that give the same bits.

use std::fmt;
use std::sync::Arc;

use unisono_gpu::Adapter;
use unisono_graph::{Program, Tape, Type};
use unisono_random::{Stream, stream};

use crate::{Digest, Feed, Options, ReplicaError, Replicas, Verdict};

/// Samples of the probe, and values of each: a product's chunk and a sum's chunk are both shorter.
const ROWS: usize = 16;
const VALUES: usize = 1500;
const COLUMNS: usize = 8;

/// What a run's bits depend on, beside the run: within a class they are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Backend, device and driver.
    pub machine: String,
    /// Of what the kernels of a probe gave for hard inputs.
    pub digest: Digest,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.16}", self.digest.to_string())
    }
}

/// Backend, device and driver: adapters that differ in these are never of one class.
pub fn machine(adapter: &Adapter) -> String {
    let Adapter { backend, name, driver, driver_info, .. } = adapter;
    format!("{backend} {name} {driver} {driver_info}").trim().to_owned()
}

/// Opens an adapter and runs the probe: products, sums, quotients, roots and elementary functions of numbers of all sizes,
/// subnormal ones among them.
///
/// # Errors
/// The adapter does not open, or does not run the probe.
pub fn probe(adapter: &Adapter) -> Result<Class, ReplicaError> {
    let program = Arc::new(program()?);
    // Drills are meant for the run, not for this.
    let fault_scope = "probe:".to_owned();
    let options = Options { global_batch: ROWS, shards: 1, fault_scope, ..Options::default() };
    let mut replicas = Replicas::start(std::slice::from_ref(adapter), vec![Arc::clone(&program)], options)?;
    let inputs = program.inputs().iter().map(|input| {
        let rows = if input.name == "w" { COLUMNS } else { ROWS };
        numbers(&input.name, rows * VALUES)
    });
    let feed = Feed { rows: ROWS, inputs: inputs.collect(), ..Feed::default() };
    let outcome = replicas.step(0, &feed, &mut |_| Verdict::Commit)?;
    let mut digest = Digest::default();
    (0..program.outputs().len())
        .filter_map(|i| outcome.outputs.bytes(i))
        .for_each(|bytes| digest.update(bytes));
    Ok(Class { machine: machine(adapter), digest })
}

fn program() -> Result<Program, ReplicaError> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[VALUES]));
    let y = tape.input("y", Type::sample(&[VALUES]));
    let w = tape.input("w", Type::global(&[COLUMNS, VALUES]));
    let size = x.abs();
    for (name, value) in [
        ("product", x.matmul_t(&w)),
        ("sum", x.sum(&[-1])),
        ("mixed", &x * &y + &(&x - &y)),
        ("quotient", &x / &y),
        ("root", size.sqrt()),
        ("exp", x.exp()),
        ("log", size.log()),
        ("tanh", x.tanh()),
        ("erf", x.erf()),
        ("sigmoid", x.sigmoid()),
    ] {
        tape.output(name, &value);
    }
    let bad = |error: unisono_graph::GraphError| ReplicaError::Probe { why: error.to_string() };
    Program::compile(&tape.finish().map_err(bad)?).map_err(bad)
}

/// Of both signs; most between 2^-8 and 2^8, some of any size, some subnormal; none infinite or not a number.
fn numbers(name: &str, count: usize) -> Arc<[u8]> {
    let draws = Stream::new(1, stream("probe", name));
    let number = |i: usize| {
        let word = draws.word(0, 0, i as u64);
        let (sign, mantissa) = (word & 0x8000_0000, word & 0x007f_ffff);
        let exponent = match (word >> 23) % 16 {
            0 => 0,
            1 => 1 + (word >> 13) % 253,
            other => 118 + other,
        };
        sign | exponent << 23 | mantissa
    };
    (0..count).flat_map(|i| number(i).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_has_numbers_of_all_kinds_and_no_others() {
        let bytes = numbers("x", 4000);
        let all: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert!(all.iter().all(|x| x.is_finite()));
        assert!(all.iter().any(|x| x.is_subnormal()) && all.iter().any(|x| x.abs() > 1e20));
        assert!(all.iter().any(|x| *x < 0.0) && all.iter().any(|x| (0.5..2.0).contains(x)));
        assert_ne!(numbers("x", 8), numbers("y", 8));
    }
}
