//! Compares adapters byte by byte: drivers of different makers have to give the same bits.
//!
//! A [`Subject`] is a graph with the values that it is run on: a case of an op, a layer, a loss or an
//! optimizer (`subjects.rs`), or a random graph ([`fuzz`]). A [`Fleet`] runs many on several adapters, and
//! [`compare`] runs one on two. Where they differ, [`Difference`] names the first op and the first kernel
//! that do.

mod bench;
mod cost;
mod digests;
mod fleet;
mod fuzz;
mod locate;
mod models;
mod plant;
mod program;
mod subjects;

use std::fmt;

use unisono_graph::{Feed, Graph};

pub use bench::Bench;
pub use cost::{Cost, cost, steps};
pub use digests::digests;
pub use fleet::{Fleet, Tally};
pub use fuzz::fuzz;
pub use models::{Model, models};
pub use plant::Plant;
pub use program::main;
pub use subjects::{ops, suites};

/// A graph, and the values of its inputs and states.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name for messages.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// The values that it is run on.
    pub feed: Feed,
}

/// Two adapters gave other bits.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The subject's name.
    pub subject: String,
    /// The labels of the adapters.
    pub adapters: [String; 2],
    /// The first output or state that differs.
    pub value: String,
    /// The first element of it that differs, and its bits on either adapter.
    pub element: (usize, [u32; 2]),
    /// Whether either adapter made a value that is not a number. What follows from it is not promised.
    pub follows_nan: bool,
    /// The first op that differs, with its operands. It is `None` if every op alone agrees.
    pub op: Option<String>,
    /// The name and the WGSL of the first kernel that differs, if both adapters run the same kernels.
    pub kernel: Option<(String, String)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, adapters: [a, b], value, element: (at, bits), op, kernel, .. } = self;
        writeln!(f, "{subject}: {a} and {b} differ")?;
        let [own, other] = bits.map(|bits| format!("{:e} (0x{bits:08x})", f32::from_bits(bits)));
        writeln!(f, "  value: {value}[{at}] is {own} and {other}")?;
        writeln!(f, "  first op: {}", op.as_deref().unwrap_or("none alone"))?;
        match kernel {
            Some((name, wgsl)) => write!(f, "  first kernel: {name}\n{wgsl}"),
            None => write!(f, "  first kernel: none, if both run the same kernels"),
        }
    }
}

/// Runs a subject on two adapters. Returns the difference, if there is one.
///
/// # Errors
/// An adapter does not run the subject.
pub fn compare(subject: &Subject, mut benches: [&mut Bench; 2]) -> Result<Option<Difference>, String> {
    let [first, second] = &mut benches;
    let (own, other) = (first.run(subject)?, second.run(subject)?);
    let Some((value, element)) = first_difference(&own, &other) else { return Ok(None) };
    let adapters = [first.label(), second.label()];
    let follows_nan = has_nan(&own) || has_nan(&other);
    let (op, kernel) = match follows_nan {
        true => (None, None),
        false => (locate::op(subject, &mut benches)?, locate::kernel(subject, &mut benches)?),
    };
    Ok(Some(Difference { subject: subject.name.clone(), adapters, value, element, follows_nan, op, kernel }))
}

/// Values by name, as bits.
pub type Values<N = String> = Vec<(N, Vec<u32>)>;

/// Returns the first value that differs, and its first element that does with both bits. Two NaN are equal,
/// whatever else their bits say.
fn first_difference<N: Clone>(own: &Values<N>, other: &Values<N>) -> Option<(N, (usize, [u32; 2]))> {
    own.iter().zip(other).find_map(|((name, a), (_, b))| {
        let differ = |(a, b): (&u32, &u32)| a != b && !(is_nan(*a) && is_nan(*b));
        let at = a.iter().zip(b).position(differ)?;
        Some((name.clone(), (at, [a[at], b[at]])))
    })
}

/// Returns whether any value is not a number.
fn has_nan(values: &Values) -> bool {
    values.iter().any(|(_, bits)| bits.iter().any(|&bits| is_nan(bits)))
}

fn is_nan(bits: u32) -> bool {
    bits & 0x7fff_ffff > 0x7f80_0000
}
