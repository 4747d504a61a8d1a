//! The numeric class of an adapter: adapters of one class give the same bits.

mod cache;
mod exact;
mod pace;
mod probe;
mod unit;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use unisono_gpu::{Adapter, Arithmetic, is_unprotected};
use unisono_graph::GraphError;

pub use pace::{UnitPace, unit_pace};

use crate::worker::fault;
use exact::Exact;
use unit::UnitProbe;

use crate::{Digest, Feed, Options, ReplicaError, Replicas, Verdict};

/// The version of the arithmetic of all kernels. It grows with every change of a result's bits, and
/// checkpoints contain it. Version 1 is that of all versions that did not record one.
pub const ARITHMETIC: u32 = 2;

/// The version of the probe: of what it runs, and so of its digest. What an older probe found is not
/// believed.
const PROBE: u32 = 4;

/// A numeric class: a set of adapters that give the same bits. The result of a run depends on its class, and
/// not on the machines within the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The machine that was probed: backend, device and driver, see [`machine`].
    pub machine: String,
    /// How the machine's fma rounds.
    pub rounding: Rounding,
    /// Whether compilers are kept from changing float operations. Only then may other machines have the same
    /// class. Otherwise kernels that the probe does not contain may be compiled differently, so the class is
    /// that of this machine only.
    pub is_portable: bool,
    /// Whether products were computed by a matrix unit ([`Adapter::with_matrix_units`]). The class is then
    /// that of the unit too, and equal to none without it.
    pub by_unit: bool,
    /// The digest of what the probe's kernels computed from hard inputs, see [`probe`]. Equal digests are one
    /// class.
    pub digest: Digest,
}

/// How often an adapter's `fma(a, b, c)` rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// It rounds once, as on GPUs and by default on the CPU.
    Fused,
    /// It rounds the product and the sum, as on software drivers.
    Split,
}

impl Rounding {
    const ALL: [Self; 2] = [Self::Fused, Self::Split];

    /// Returns the word for it: `fused` or `split`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Split => "split",
        }
    }
}

/// What the names of classes with a matrix unit begin with.
const OF_UNIT: &str = "matrix:";

impl Class {
    /// Returns whether another machine gives the same bits.
    pub fn is_same(&self, other: &Self) -> bool {
        let may_be = self.is_portable && other.is_portable || self.machine == other.machine;
        may_be && self.digest == other.digest
    }
}

/// Prints the first 16 digits of the digest, after `matrix:` if a matrix unit took part, and for a class that
/// is not portable the machine.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.by_unit { OF_UNIT } else { "" };
        write!(f, "{unit}{:.16}", self.digest.to_string())?;
        match self.is_portable {
            true => Ok(()),
            false => write!(f, ", not portable: of {} alone", self.machine),
        }
    }
}

/// Returns the backend, device and driver of an adapter as text. Adapters with equal texts are of one class.
/// Adapters with different texts may also be of one class: [`probe`] tells. The text also says whether the
/// matrix unit is in use, and whether nothing keeps the compiler from changing float operations
/// ([`unisono_gpu::is_unprotected`]), so these cases count as other machines.
pub fn machine(adapter: &Adapter) -> String {
    let Adapter { backend, name, driver, driver_info, .. } = adapter;
    let protection = if is_unprotected() { " unprotected" } else { "" };
    let unit = adapter.unit.map(|unit| format!(" matrix units of {}", unit.size)).unwrap_or_default();
    format!("{}{unit}{protection}", format!("{backend} {name} {driver} {driver_info}").trim())
}

/// Returns whether all adapters are the same machine, so that they are of one class without a probe. Several
/// whose driver says nothing about itself are not: nobody knows whether their compilers are of one version.
pub fn is_one_machine(adapters: &[Adapter]) -> bool {
    adapters.windows(2).all(|pair| has_version(&pair[0]) && machine(&pair[0]) == machine(&pair[1]))
}

/// Returns whether a driver says anything about itself, so that another version of it is another machine.
fn has_version(adapter: &Adapter) -> bool {
    !adapter.driver.trim().is_empty() || !adapter.driver_info.trim().is_empty()
}

/// Returns the arithmetics in which the CPU is of the class that [`Class`] prints as `digest`. It probes the
/// CPU in each.
pub fn cpus_of(digest: &str) -> Vec<Arithmetic> {
    let by_unit = digest.starts_with(OF_UNIT);
    let is_of = |arithmetic: &Arithmetic| {
        let cpu = Adapter::cpu(*arithmetic);
        let cpu = if by_unit { cpu.and_then(|cpu| cpu.with_matrix_units().ok()) } else { cpu };
        let class = cpu.map(|cpu| probe(&cpu));
        matches!(class, Some(Ok(class)) if class.is_portable && class.to_string() == digest)
    };
    Arithmetic::distinct(by_unit).filter(is_of).collect()
}

/// Probes each adapter and says in a line for each which class it has, for error messages about mixtures.
/// Where the CPU is one of them, the others' lines say in which arithmetic the CPU computes the same.
pub fn describe_classes(adapters: &[Adapter]) -> Vec<String> {
    let has_cpu = adapters.iter().any(|adapter| adapter.arithmetic.is_some());
    let cpu = |adapter: &Adapter, class: &Class| {
        let same = if has_cpu && adapter.arithmetic.is_none() { cpus_of(&class.to_string()) } else { vec![] };
        same.first().map(|arithmetic| format!(", as is cpu:{arithmetic}")).unwrap_or_default()
    };
    let class = |adapter: &Adapter| match probe(adapter) {
        Ok(class) => {
            let cpu = cpu(adapter, &class);
            format!("{} is of class {} {class}{cpu}", adapter.label(), class.rounding.name())
        }
        Err(error) => format!("{} cannot be probed ({error})", adapter.label()),
    };
    adapters.iter().map(class).collect()
}

/// Returns whether all adapters are of one class. It probes them unless they are one machine.
///
/// # Errors
/// An adapter cannot be probed.
pub fn is_one_class(adapters: &[Adapter]) -> Result<bool, ReplicaError> {
    if is_one_machine(adapters) {
        return Ok(true);
    }
    let mut classes = Classes::new(adapters.to_vec());
    Ok(classes.probed()?.windows(2).all(|pair| pair[0].is_same(&pair[1])))
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

/// Returns the adapter's class: what a probe of the same adapter, driver and arithmetic found before
/// (`UNISONO_CACHE` names the folder where that is kept), or else what [`probe_now`] finds. Nothing is kept
/// where an adapter does not tell the version of its compiler.
///
/// # Errors
/// The adapter does not open, or does not run the probe.
pub fn probe(adapter: &Adapter) -> Result<Class, ReplicaError> {
    if fault::at_probe(adapter.backend) || fault::at_unit() {
        return probe_now(adapter);
    }
    let cache = cache::of_user();
    if let Some(known) = cache::read(&cache, adapter) {
        return Ok(known);
    }
    let class = probe_now(adapter)?;
    cache::write(&cache, adapter, &class);
    Ok(class)
}

/// Opens an adapter and runs the probe: every family of kernels (products, convolutions, attention,
/// lookups, reductions, maps), forward and backward, on numbers of all sizes, with signed zeros, subnormal
/// numbers, products that round to the smallest normal one, ties, long sums, and the shapes that compilers
/// are known to rewrite.
///
/// Before that it runs the same families on small whole numbers, where nothing is rounded, and compares them
/// with what the host knows: an adapter that does not compute is of no class. If the adapter's matrix unit is
/// in use, its products of hard operands are compared with the exact results, within the bounds of sums in
/// f32.
///
/// # Errors
/// The adapter does not open, or does not run the probe; [`ReplicaError::Wrong`] if it does not compute.
pub fn probe_now(adapter: &Adapter) -> Result<Class, ReplicaError> {
    let untraced = |error: GraphError| ReplicaError::Probe { why: error.to_string() };
    let program = Arc::new(probe::program().map_err(untraced)?);
    let exact = Exact::new().map_err(untraced)?;
    // Fault points of the run must not fire in its probe.
    let fault_scope = "probe:".to_owned();
    let options =
        Options { global_batch: probe::ROWS, shards: probe::SHARDS, fault_scope, ..Options::default() };
    let unit = adapter.unit.map(|_| UnitProbe::new()).transpose().map_err(untraced)?;
    let mut programs = vec![Arc::clone(&program), Arc::clone(&exact.program)];
    programs.extend(unit.iter().map(|unit| Arc::clone(&unit.program)));
    let mut replicas = Replicas::start(std::slice::from_ref(adapter), programs, options)?;
    let feed = Feed { rows: probe::ROWS, inputs: exact.feed(), ..Feed::default() };
    let outcome = replicas.step(1, &feed, &mut |_| Verdict::Commit)?;
    if let Some(output) = exact.wrong(&outcome.outputs) {
        let what = format!("its {output} of whole numbers is wrong");
        return Err(ReplicaError::Wrong { adapter: adapter.label(), what });
    }
    let inputs = program.inputs().iter().map(|input| probe::numbers(&input.name, &input.ty));
    let feed = Feed { rows: probe::ROWS, inputs: inputs.collect(), ..Feed::default() };
    let outcome = replicas.step(0, &feed, &mut |_| Verdict::Commit)?;
    let mut digest = Digest::default();
    digest.update(&ARITHMETIC.to_le_bytes());
    if fault::at_probe(adapter.backend) {
        digest.update(b"a fault");
    }
    let mut rounding = Rounding::Split;
    for (index, output) in program.outputs().iter().enumerate() {
        let Some(bytes) = outcome.outputs.bytes(index) else { continue };
        digest.update(bytes);
        if output.name == probe::TIE && bytes.iter().any(|&byte| byte != 0) {
            rounding = Rounding::Fused;
        }
    }
    if let Some(unit) = &unit {
        let feed = Feed { rows: probe::ROWS, inputs: unit.feed(), ..Feed::default() };
        let mut outputs = replicas.step(2, &feed, &mut |_| Verdict::Commit)?.outputs;
        if let Some(words) = outputs.words(0).filter(|_| fault::at_unit()) {
            let mut words = words.to_vec();
            words.iter_mut().take(1).for_each(|word| *word ^= 1 << 20);
            outputs.set(0, &words);
        }
        if let Some(what) = unit.wrong(&outputs) {
            return Err(ReplicaError::Wrong { adapter: adapter.label(), what });
        }
        digest.update(b"matrix unit");
        (0..unit.program.outputs().len())
            .filter_map(|index| outputs.bytes(index))
            .for_each(|bytes| digest.update(bytes));
    }
    let (machine, is_portable, by_unit) = (machine(adapter), !is_unprotected(), unit.is_some());
    Ok(Class { machine, rounding, is_portable, by_unit, digest })
}
