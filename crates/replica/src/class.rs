//! The numeric class of an adapter: adapters of one class give the same bits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use unisono_gpu::Adapter;
use unisono_graph::{Program, Tape, Type};
use unisono_random::{Stream, stream};

use crate::{Digest, Feed, Options, ReplicaError, Replicas, Verdict};

/// The number of samples in the probe's batch.
const ROWS: usize = 16;
/// The number of values in each sample. It is above the lengths at which products and sums are cut into
/// chunks.
const VALUES: usize = 1500;
/// The number of columns of the probe's product.
const COLUMNS: usize = 8;

/// A numeric class: what a run's bits depend on beside the run. Within a class they are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The machine: backend, device and driver, see [`machine`].
    pub machine: String,
    /// The digest of what the probe's kernels computed from hard inputs, see [`probe`].
    pub digest: Digest,
}

/// Prints the first 16 digits of the digest.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.16}", self.digest.to_string())
    }
}

/// Returns the backend, device and driver of an adapter as text. Adapters whose machines differ are never of
/// one class.
pub fn machine(adapter: &Adapter) -> String {
    let Adapter { backend, name, driver, driver_info, .. } = adapter;
    format!("{backend} {name} {driver} {driver_info}").trim().to_owned()
}

/// Returns whether all adapters are the same machine, without which they never have one class.
pub fn is_one_machine(adapters: &[Adapter]) -> bool {
    adapters.windows(2).all(|pair| machine(&pair[0]) == machine(&pair[1]))
}

/// Probes each adapter and says in a line for each which class it has, for error messages about mixtures.
pub fn describe_classes(adapters: &[Adapter]) -> Vec<String> {
    let class = |adapter: &Adapter| match probe(adapter) {
        Ok(class) => format!("{} is of class {class}", adapter.label()),
        Err(error) => format!("{} cannot be probed ({error})", adapter.label()),
    };
    adapters.iter().map(class).collect()
}

/// The classes of the adapters that a run's replicas are on. An adapter is probed when [`Classes::probed`] is
/// first asked for its machine and not before, because a probe opens a device of its own.
#[derive(Debug, Default)]
pub struct Classes {
    /// The adapter of each replica by its number. Replicas that have left stay listed.
    adapters: BTreeMap<usize, Adapter>,
    /// The classes probed so far, by machine.
    known: BTreeMap<String, Class>,
}

impl Classes {
    /// Lists the adapters of replicas 0, 1, and so on.
    pub fn new(adapters: Vec<Adapter>) -> Self {
        Self { adapters: adapters.into_iter().enumerate().collect(), known: BTreeMap::new() }
    }

    /// Adds the adapter of a replica that joined.
    pub fn join(&mut self, replica: usize, adapter: Adapter) {
        self.adapters.insert(replica, adapter);
    }

    /// Returns one adapter of each machine listed so far, and of that of `adapter`.
    pub fn with(&self, adapter: &Adapter) -> Vec<Adapter> {
        let mut each: BTreeMap<String, &Adapter> = BTreeMap::new();
        for adapter in self.adapters.values().chain([adapter]) {
            each.entry(machine(adapter)).or_insert(adapter);
        }
        each.into_values().cloned().collect()
    }

    /// Returns the class of each machine once, in the order of the machines' names, and probes those not
    /// probed before.
    ///
    /// # Errors
    /// An adapter cannot be probed.
    pub fn probed(&mut self) -> Result<Vec<Class>, ReplicaError> {
        for adapter in self.adapters.values() {
            if let Entry::Vacant(unknown) = self.known.entry(machine(adapter)) {
                unknown.insert(probe(adapter)?);
            }
        }
        Ok(self.known.values().cloned().collect())
    }

    /// Returns the machines of some replicas, in the order in which these are given.
    pub fn machines(&self, replicas: impl Iterator<Item = usize>) -> Vec<String> {
        replicas.filter_map(|replica| self.adapters.get(&replica).map(machine)).collect()
    }
}

/// Opens an adapter and runs the probe, which computes products, sums, quotients, roots and elementary
/// functions of numbers of all sizes, subnormal ones among them. Returns the adapter's class.
///
/// # Errors
/// The adapter does not open, or does not run the probe.
pub fn probe(adapter: &Adapter) -> Result<Class, ReplicaError> {
    let program = Arc::new(program()?);
    // Fault points of the run must not fire in its probe.
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

/// Traces and compiles the probe.
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

/// Draws f32 values of both signs as bytes. Most lie between 2^-8 and 2^8, some are of any size, and some are
/// subnormal; none is infinite or not a number.
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
