//! Fault points: faults that are injected through the `fail` crate, where the feature `faults` is on.
//!
//! | point | when it is passed |
//! | --- | --- |
//! | `replica-1` | whenever replica 1 runs segments |
//! | `replica-1:step-3` | when it runs the first segments of step 3 (of [`crate::Replicas::step`], from 0) |
//! | `replica-1:step-3:segment-2` | when it runs segment 2 of step 3 |
//! | `probe-gl` | when an adapter of this backend is probed; whatever the fault, its class is another |
//! | `probe-unit` | when a matrix unit is probed; whatever the fault, a bit of its first product flips |
//! | `unit-pace` | when a matrix unit is timed; `slow:N` makes it N times slower |
//! | `exchange:step-3` | in a run on several machines, when blocks of step 3 are sent and no sum has come |
//! | `agree:step-3` | when this machine is about to agree on step 3 with the others |
//! | `agreed:step-3` | when all have agreed on step 3, before it commits |
//! | `replica-1:load` | when it makes a plan ready that it does not have; only faults that occur before a run have an effect |
//!
//! Each may be given an action of the `fail` crate, such as `sleep(500)`, or `return(FAULT)` with one of
//!
//! | fault | what happens |
//! | --- | --- |
//! | `lose` | the device is lost |
//! | `drop:2` | the driver drops the second run of commands (copies in a row, or a pass) and reports it as done |
//! | `skip:2` | from now on the driver leaves out the second launch of each plan |
//! | `nothing` | from now on the driver runs no command, and reports all of them as done |
//! | `zeros` | from now on the host reads zeros instead of what the device computed |
//! | `stale` | from now on the host reads what earlier commands left, as if it read too early |
//! | `panic` | the thread panics |
//! | `abort` | the process ends, as if it were killed |
//! | `out-of-memory` | the device has no memory left |
//! | `transfer` | a transfer between host and device fails |
//! | `slow:3` | its shards take three times as long, up to the last cut |
//! | `sample:200` | its shards take 200 microseconds a sample, up to the last cut, unless they take longer |
//! | `gradient` | a bit of the first sum that it gives away flips |
//! | `exchange` | a bit of the first sum that it is given flips |
//! | `not-finite` | it takes the numbers of its samples for NaN, and so computes what is not finite |
//! | `state:0` | a bit of tensor 0 of the state flips |
//!
//! `FAILPOINTS="replica-1:step-3=return(lose)"` in the environment of a program that calls
//! `fail::FailScenario::setup` sets a fault from outside. The names begin with
//! [`crate::Options::fault_scope`], which distinguishes several runs in one process.

use unisono_gpu::{Backend, Lie};

/// A fault that is injected.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(not(any(test, feature = "faults")), expect(dead_code, reason = "nothing goes wrong on purpose"))]
pub(crate) enum Fault {
    Lose,
    Drop(u64),
    Skip(u64),
    Lie(Lie),
    Panic,
    Abort,
    OutOfMemory,
    Transfer,
    Slow(f64),
    Sample(f64),
    Gradient,
    Exchange,
    NotFinite,
    State(usize),
}

impl Fault {
    #[cfg(any(test, feature = "faults"))]
    fn parse(text: &str) -> Option<Self> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        Some(match name {
            "lose" => Self::Lose,
            "drop" => Self::Drop(value.parse().ok()?),
            "skip" => Self::Skip(value.parse().ok()?),
            "nothing" => Self::Lie(Lie::Nothing),
            "zeros" => Self::Lie(Lie::Zeros),
            "stale" => Self::Lie(Lie::Stale),
            "panic" => Self::Panic,
            "abort" => Self::Abort,
            "out-of-memory" => Self::OutOfMemory,
            "transfer" => Self::Transfer,
            "slow" => Self::Slow(value.parse().ok()?),
            "sample" => Self::Sample(value.parse().ok()?),
            "gradient" => Self::Gradient,
            "exchange" => Self::Exchange,
            "not-finite" => Self::NotFinite,
            "state" => Self::State(value.parse().ok()?),
            _ => return None,
        })
    }
}

/// Returns the faults of the points that are passed when a replica runs segments.
#[cfg(feature = "faults")]
pub(crate) fn passed(
    scope: &str,
    replica: usize,
    step: u64,
    segments: &std::ops::Range<usize>,
) -> Vec<Fault> {
    let own = format!("{scope}replica-{replica}");
    let mut names = vec![own.clone()];
    if segments.start == 0 {
        names.push(format!("{own}:step-{step}"));
    }
    names.extend(segments.clone().map(|segment| format!("{own}:step-{step}:segment-{segment}")));
    names.iter().filter_map(|name| at(name)).collect()
}

/// Passes a point of what this machine does together with others in a step.
#[cfg(feature = "faults")]
pub(crate) fn together(scope: &str, what: &str, step: u64) {
    if at(&format!("{scope}{what}:step-{step}")) == Some(Fault::Abort) {
        std::process::abort();
    }
}

#[cfg(not(feature = "faults"))]
pub(crate) fn together(_: &str, _: &str, _: u64) {}

/// Returns the fault of the point that is passed when a plan is made ready.
#[cfg(feature = "faults")]
pub(crate) fn at_load(scope: &str, replica: usize) -> Option<Fault> {
    at(&format!("{scope}replica-{replica}:load"))
}

/// Returns whether a bit of what a matrix unit computed in the probe flips, as with a unit that is wrong.
#[cfg(feature = "faults")]
pub(crate) fn at_unit() -> bool {
    at("probe-unit").is_some()
}

/// Returns the fault of the point that is passed when a matrix unit is timed.
#[cfg(feature = "faults")]
pub(crate) fn at_unit_pace() -> Option<Fault> {
    at("unit-pace")
}

/// Returns whether the adapters of a backend count as of another class.
#[cfg(feature = "faults")]
pub(crate) fn at_probe(backend: Backend) -> bool {
    at(&format!("probe-{backend}")).is_some()
}

#[cfg(feature = "faults")]
fn at(name: &str) -> Option<Fault> {
    fn action(name: &str) -> Option<String> {
        fail::fail_point!(name, |argument| argument);
        None
    }
    Fault::parse(&action(name)?)
}

#[cfg(not(feature = "faults"))]
pub(crate) fn at_unit() -> bool {
    false
}

#[cfg(not(feature = "faults"))]
pub(crate) fn at_unit_pace() -> Option<Fault> {
    None
}

#[cfg(not(feature = "faults"))]
pub(crate) fn at_probe(_: Backend) -> bool {
    false
}

#[cfg(not(feature = "faults"))]
pub(crate) fn at_load(_: &str, _: usize) -> Option<Fault> {
    None
}

#[cfg(not(feature = "faults"))]
pub(crate) fn passed(_: &str, _: usize, _: u64, _: &std::ops::Range<usize>) -> Vec<Fault> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_go_by_their_names() {
        assert_eq!(Fault::parse("lose"), Some(Fault::Lose));
        assert_eq!(Fault::parse("drop:2"), Some(Fault::Drop(2)));
        assert_eq!(Fault::parse("stale"), Some(Fault::Lie(Lie::Stale)));
        assert_eq!(Fault::parse("skip:3"), Some(Fault::Skip(3)));
        assert_eq!(Fault::parse("abort"), Some(Fault::Abort));
        assert_eq!(Fault::parse("slow:2.5"), Some(Fault::Slow(2.5)));
        assert_eq!(Fault::parse("state:3"), Some(Fault::State(3)));
        assert_eq!((Fault::parse("slow"), Fault::parse("break")), (None, None));
    }
}
