//! Two replicas of which one has a third of the other's speed: together, against the sum of what each does alone.

use std::io::{Write, stdout};

use unisono::gpu::{Adapter, select};
use unisono::{AdamW, Assignment, Trainer};
use unisono_examples::{Error, table};

use crate::scaling::{steps, turns};
use crate::{Flags, median};

/// Enough to give a quarter of them to the slow one.
const SHARDS: u16 = 32;
/// The slow one takes so many times as long.
const SLOWER: u32 = 3;

/// A run of some replicas, and which of them is slow.
struct Case {
    name: &'static str,
    replicas: usize,
    /// The last of them is the slow one.
    slow: bool,
    assignment: Assignment,
}

const CASES: [Case; 4] = [
    Case { name: "a alone", replicas: 1, slow: false, assignment: Assignment::Speed },
    Case { name: "b alone, slowed", replicas: 1, slow: true, assignment: Assignment::Speed },
    Case { name: "a and b", replicas: 2, slow: true, assignment: Assignment::Speed },
    Case { name: "a and b, split evenly", replicas: 2, slow: true, assignment: Assignment::Even },
];

/// Prints the median step of each case, the shards of each replica in the last ones, and the ratios to the sum.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let flags = Flags { shards: SHARDS, ..flags.clone() };
    let adapters = select(&flags.adapter)?;
    let labels: Vec<String> = adapters.iter().map(Adapter::label).collect();
    let (model, batch) = (flags.model.name(), flags.batch());
    println!("{model}, batch {batch} in {SHARDS} shards, AdamW, on {}\n", labels.join(", "));
    let data = flags.noise()?;
    let mut trainers = Vec::new();
    for case in &CASES {
        let scope = format!("{}:", case.name);
        let point = |replica: usize| format!("{scope}replica-{replica}");
        let last = case.replicas - 1;
        match flags.sample_micros {
            None if case.slow => set(&point(last), &format!("return(slow:{SLOWER})"))?,
            None => {}
            Some(micros) => {
                // Of one replica that is the slow one this is overridden.
                set(&point(0), &format!("return(sample:{micros})"))?;
                if case.slow {
                    set(&point(last), &format!("return(sample:{})", SLOWER * micros))?;
                }
            }
        }
        let builder = Trainer::builder(flags.model.layers()).optimizer(AdamW::new(1e-3)).fault_scope(&scope);
        let builder = builder.global_batch(batch).shards(SHARDS.into()).assignment(case.assignment);
        let builder = flags.adapter.iter().fold(builder, |builder, name| builder.adapter(name));
        let builder = if flags.trace.is_some() { builder.timeline() } else { builder };
        trainers.push(builder.replicas(case.replicas).build(&data.fields()?)?);
    }
    for trainer in &mut trainers {
        steps(trainer, &data, flags.warmup as usize)?;
    }
    let before: Vec<Vec<[u64; 2]>> = trainers.iter().map(shards).collect();
    let times = turns(&mut trainers, &flags, &data)?;
    if let Some(path) = &flags.trace {
        trainers[2].write_trace(path)?;
    }
    let mut rows = vec![["", "step (median)", "samples a second", "shards a step"].map(str::to_owned)];
    let mut rates = Vec::new();
    for (((case, trainer), before), times) in CASES.iter().zip(&trainers).zip(before).zip(times) {
        let step = median(times);
        rates.push(batch as f64 / step.as_secs_f64());
        let each = shards(trainer).into_iter().zip(before).map(|(now, before)| {
            let [shards, steps] = [0, 1].map(|i| (now[i] - before[i]) as f64);
            format!("{:.1}", shards / steps)
        });
        let shards = each.collect::<Vec<_>>().join(" + ");
        rows.push([
            case.name.to_owned(),
            format!("{:.1} ms", 1e3 * step.as_secs_f64()),
            format!("{:.0}", rates[rates.len() - 1]),
            shards,
        ]);
    }
    let percent = |rate: f64| 100.0 * rate / (rates[0] + rates[1]);
    let mut out = stdout();
    writeln!(out, "{}\n", table(&rows))?;
    Ok(writeln!(
        out,
        "together they reach {:.0}% of the sum of their speeds, split evenly {:.0}%",
        percent(rates[2]),
        percent(rates[3])
    )?)
}

/// Shards and steps of each replica so far.
fn shards(trainer: &Trainer) -> Vec<[u64; 2]> {
    trainer.reports().iter().map(|report| [report.shards, report.steps]).collect()
}

#[cfg(feature = "faults")]
fn set(point: &str, action: &str) -> Result<(), Error> {
    Ok(fail::cfg(point, action)?)
}

#[cfg(not(feature = "faults"))]
fn set(_: &str, _: &str) -> Result<(), Error> {
    Err("a replica is slowed through a fault point: build with --features faults, as `cargo xtask bench uneven` does".into())
}
