//! Whether a matrix unit is faster than what computes without it: a product is timed both ways.

use std::fmt;
use std::time::Duration;

use unisono_gpu::{Adapter, Cache, Device, Kind, Options};
use unisono_graph::plan::{Command, Plan, Segment, WorkKind};
use unisono_graph::target::UnitWay;
use unisono_graph::{Program, Run, Tape, Type};

use super::{cache, machine};
use crate::ReplicaError;
use crate::worker::fault::{self, Fault};

/// The times of one product of square matrices of f16, by a matrix unit and without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPace {
    /// The rows, and the columns, of the matrices.
    pub size: usize,
    /// The time by the unit.
    pub by_unit: Duration,
    /// The time without the unit.
    pub without: Duration,
}

/// The rows of the product, on GPUs and on drivers that compute on the CPU. It takes a few milliseconds.
const SIZES: [usize; 2] = [1024, 256];

/// The number of timed runs. The fastest one counts.
const RUNS: usize = 3;

impl UnitPace {
    /// Returns the speedup by the matrix unit: the time without it divided by the time with it.
    pub fn times(self) -> f64 {
        self.without.as_secs_f64() / self.by_unit.as_secs_f64().max(1e-9)
    }

    /// Returns a note for users who asked for the matrix unit, if the product is slower with it than without
    /// it. Otherwise returns `None`.
    pub fn note(self, adapter: &Adapter) -> Option<String> {
        (self.by_unit > self.without).then(|| {
            format!(
                "the matrix unit of {} is {self}. It is used because matrix units were asked for; without them \
                 the run is faster, and its results have other bits",
                adapter.label()
            )
        })
    }

    /// Reads what [`UnitPace::line`] writes.
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        let [size, by_unit, without] = [next()?, next()?, next()?];
        let [by_unit, without] = [by_unit, without].map(Duration::from_nanos);
        Some(Self { size: size.try_into().ok()?, by_unit, without })
    }

    fn line(self) -> String {
        format!("{} {} {}\n", self.size, self.by_unit.as_nanos(), self.without.as_nanos())
    }
}

/// Prints the ratio and what was measured: `0.4 times as fast as plain kernels (1024 x 1024 x 1024: 2.50 ms
/// with it, 1.00 ms without)`.
impl fmt::Display for UnitPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, by_unit, without } = self;
        let [by_unit, without] = [by_unit, without].map(|took| 1e3 * took.as_secs_f64());
        write!(
            f,
            "{:.2} times as fast as plain kernels ({size} x {size} x {size}: {by_unit:.2} ms with it, \
             {without:.2} ms without)",
            self.times()
        )
    }
}

/// Returns how fast the matrix unit is that an adapter uses ([`Adapter::with_matrix_units`]), or `None` if it
/// uses none. The CPU uses none: it computes what units do in software, to check them. What was measured
/// before for the same adapter and driver is measured no more (`UNISONO_CACHE` names the folder where that is
/// kept).
///
/// # Errors
/// The adapter does not open, or does not compute the product.
pub fn unit_pace(adapter: &Adapter) -> Result<Option<UnitPace>, ReplicaError> {
    if !adapter.unit.is_some_and(|unit| unit.way == UnitWay::Cooperative) {
        return Ok(None);
    }
    let slower = match fault::at_unit_pace() {
        Some(Fault::Slow(times)) => times,
        _ => return kept(adapter, &cache::of_user()).map(Some),
    };
    let pace = measure(adapter)?;
    Ok(Some(UnitPace { by_unit: pace.by_unit.mul_f64(slower), ..pace }))
}

/// Returns what a cache has, or else what is measured now.
fn kept(adapter: &Adapter, cache: &Cache) -> Result<UnitPace, ReplicaError> {
    let title = format!("{}, pace of the unit", cache::title(&machine(adapter)));
    let is_kept = cache::tells_compiler(adapter);
    if let Some(known) = cache.read(&title).filter(|_| is_kept).and_then(|line| UnitPace::parse(&line)) {
        return Ok(known);
    }
    let pace = measure(adapter)?;
    if is_kept {
        cache.write(&title, &pace.line());
    }
    Ok(pace)
}

/// Times a product by the unit of an adapter and without it.
fn measure(adapter: &Adapter) -> Result<UnitPace, ReplicaError> {
    let size = SIZES[usize::from(adapter.kind == Kind::Cpu)];
    let mut plain = adapter.clone();
    plain.unit = None;
    let failed = |why: String| ReplicaError::Probe { why: format!("the pace of {}: {why}", adapter.label()) };
    let [by_unit, without] = [adapter, &plain].map(|own| product(own, size).map_err(failed));
    Ok(UnitPace { size, by_unit: by_unit?, without: without? })
}

/// Returns the time of a product of two matrices of f16, from the submission to its end.
fn product(adapter: &Adapter, size: usize) -> Result<Duration, String> {
    let tape = Tape::new();
    let [a, b] = ["a", "b"].map(|name| tape.input(name, Type::global(&[size, size])).round_half());
    tape.output("c", &a.matmul_t(&b));
    let text = |error: &dyn fmt::Display| error.to_string();
    let program = tape.finish().and_then(|graph| Program::compile(&graph)).map_err(|error| text(&error))?;
    let device = Device::open_with(adapter, Options::default().with(|options| options.f16 = true));
    let mut device = device.map_err(|error| text(&error))?;
    let whole = program.plan(&Run::whole(&[1]), &device.target()).map_err(|error| text(&error))?;
    let is_product = |command: &&Command| matches!(command, Command::Launch(launch) if launch.work.kind == WorkKind::Product);
    let commands = whole.segments.iter().flat_map(|segment| &segment.commands).filter(is_product);
    let segment = Segment { commands: commands.cloned().collect(), ..Segment::default() };
    let plan = Plan { segments: vec![segment], ..whole };
    let mut executable = device.load(&plan).map_err(|error| text(&error))?;
    let mut fastest = Duration::MAX;
    // The first run also takes the time in which some drivers translate kernels.
    for _ in 0..=RUNS {
        let timing = device.run(&mut executable, 0, &mut |_, _| {}, &mut |_, _| {});
        fastest = fastest.min(timing.map_err(|error| text(&error))?.total());
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(by_unit: u64, without: u64) -> UnitPace {
        let [by_unit, without] = [by_unit, without].map(Duration::from_micros);
        UnitPace { size: 1024, by_unit, without }
    }

    #[test]
    fn a_unit_that_is_slower_is_noted_by_name() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        assert_eq!(pace(500, 1000).note(&adapter), None);
        let note = pace(2500, 1000).note(&adapter).unwrap();
        let told =
            "0.40 times as fast as plain kernels (1024 x 1024 x 1024: 2.50 ms with it, 1.00 ms without)";
        assert!(note.contains(told) && note.contains(&adapter.label()), "{note}");
    }

    /// The CPU in the arithmetic of a unit stands for an adapter with one.
    #[test]
    fn what_is_measured_is_measured_once() {
        let cpu = Adapter::cpu(unisono_gpu::Arithmetic::default()).unwrap().with_matrix_units().unwrap();
        assert_eq!(unit_pace(&cpu).unwrap(), None, "the CPU has no unit");
        let folder = std::env::temp_dir().join(format!("unisono-paces-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let measured = kept(&cpu, &cache).unwrap();
        assert!(measured.by_unit > Duration::ZERO && measured.without > Duration::ZERO, "{measured:?}");
        // In software a unit is much slower than plain operations.
        assert!(measured.times() < 1.0 && measured.note(&cpu).is_some(), "{measured}");
        assert_eq!(kept(&cpu, &cache).unwrap(), measured, "another time would be another number");
        assert_eq!(UnitPace::parse(&measured.line()), Some(measured));
        assert_eq!(UnitPace::parse("1024 many 3"), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
