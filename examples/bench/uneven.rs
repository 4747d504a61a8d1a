//! Measures two replicas of which one has a third of the other's speed: both together, against the sum of the
//! speeds that each has alone.

use std::io::{Write, stdout};

use unisono::Assignment;
use unisono::gpu::select;
use unisono_examples::{Error, table};

use super::scaling::{QUANTILES, SideBySide, seconds_of, turns};
use super::{Flags, builder, heading};

/// The number of shards: enough to give a quarter of them to the slow replica.
const SHARDS: u32 = 32;
/// How many times as long as the fast replica the slow one takes.
const SLOWER: u32 = 3;

/// A run of one or two replicas.
struct Case {
    name: &'static str,
    replicas: usize,
    /// Whether the last replica is the slow one.
    slow: bool,
    assignment: Assignment,
}

const CASES: [Case; 4] = [
    Case { name: "a alone", replicas: 1, slow: false, assignment: Assignment::Speed },
    Case { name: "b alone, slowed", replicas: 1, slow: true, assignment: Assignment::Speed },
    Case { name: "a and b", replicas: 2, slow: true, assignment: Assignment::Speed },
    Case { name: "a and b, split evenly", replicas: 2, slow: true, assignment: Assignment::Even },
];

/// Prints the times of steps of each case, the shards of each replica in the last steps, and the ratios to
/// the sum.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let flags = Flags { shards: SHARDS, ..flags.clone() };
    let adapters = select(&flags.adapter)?;
    heading(&flags, &adapters)?;
    let batch = flags.batch();
    let data = flags.noise()?;
    let mut runs = Vec::new();
    for case in &CASES {
        let scope = format!("{}:", case.name);
        let point = |replica: usize| format!("{scope}replica-{replica}");
        let last = case.replicas - 1;
        match flags.sample_micros {
            None if case.slow => set(&point(last), &format!("return(slow:{SLOWER})"))?,
            None => {}
            Some(micros) => {
                // If the only replica is the slow one, this is overridden below.
                set(&point(0), &format!("return(sample:{micros})"))?;
                if case.slow {
                    set(&point(last), &format!("return(sample:{})", SLOWER * micros))?;
                }
            }
        }
        let builder = builder(&flags).fault_scope(&scope).assignment(case.assignment);
        runs.push(SideBySide::one(builder.replicas(case.replicas).build(&data.fields()?)?, &data));
    }
    for run in &mut runs {
        run.steps(flags.warmup as usize)?;
    }
    let before: Vec<Vec<[u64; 2]>> = runs.iter().map(shards).collect();
    let times = turns(&mut runs, &flags)?;
    if let Some(path) = &flags.trace {
        runs[2].trainers[0].write_trace(path)?;
    }
    let [median, tenth, fastest] = QUANTILES.map(|(_, name)| name);
    let mut rows = vec![["", median, tenth, fastest, "samples a second", "shards a step"].map(str::to_owned)];
    let mut steps = Vec::new();
    for (((case, run), before), mut times) in CASES.iter().zip(&runs).zip(before).zip(times) {
        times.sort();
        let step = QUANTILES.map(|(part, _)| seconds_of(&times, part));
        steps.push(step);
        let each = shards(run).into_iter().zip(before).map(|(now, before)| {
            let [shards, steps] = [0, 1].map(|i| (now[i] - before[i]) as f64);
            format!("{:.1}", shards / steps)
        });
        let shards = each.collect::<Vec<_>>().join(" + ");
        let [a, b, c] = step.map(|seconds| format!("{:.1} ms", 1e3 * seconds));
        rows.push([case.name.to_owned(), a, b, c, format!("{:.0}", batch as f64 / step[0]), shards]);
    }
    let percent = |case: usize, i: usize| {
        let alone: f64 = steps[..2].iter().map(|step| 1.0 / step[i]).sum();
        100.0 / (steps[case][i] * alone)
    };
    let [median, tenth, fastest] = [0, 1, 2].map(|i| percent(2, i));
    let mut out = stdout();
    writeln!(out, "{}\n", table(&rows))?;
    let even = percent(3, 0);
    writeln!(out, "together they reach {median:.0}% of the sum of their speeds, split evenly {even:.0}%")?;
    Ok(writeln!(out, "by the tenth {tenth:.0}%, by the fastest {fastest:.0}%")?)
}

/// Returns the shards and the steps of each replica so far.
fn shards(run: &SideBySide) -> Vec<[u64; 2]> {
    run.trainers[0].reports().iter().map(|report| [report.shards, report.steps]).collect()
}

#[cfg(feature = "faults")]
fn set(point: &str, action: &str) -> Result<(), Error> {
    Ok(fail::cfg(point, action)?)
}

#[cfg(not(feature = "faults"))]
fn set(_: &str, _: &str) -> Result<(), Error> {
    Err("a replica is slowed through a fault point: build without --no-default-features".into())
}
