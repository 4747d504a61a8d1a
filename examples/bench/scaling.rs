//! How much faster two replicas are than one, each on one core of a machine without a GPU (or on a GPU each).

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use unisono::Trainer;
use unisono::data::{Loader, Position};
use unisono::gpu::{Adapter, select};
use unisono_examples::{Error, table};

use crate::model::Model;
use crate::{Flags, trainer};

/// Steps of one before it is the other's turn: what else the machine does then slows both alike.
const TURN: usize = 5;

/// Prints the median step of each and the ratio; and that of the steps that only a quarter of all are faster than, since what
/// else a machine does only adds to a step, and two replicas wait for whichever is disturbed.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let flags = Flags { model: Model::Wide, ..flags.clone() };
    let adapters = select(&flags.adapter)?;
    let labels: Vec<String> = adapters.iter().map(Adapter::label).collect();
    let (model, batch) = (flags.model.name(), flags.batch());
    println!("{model}, batch {batch} in {} shards, AdamW, on {}\n", flags.shards, labels.join(", "));
    let data = flags.noise()?;
    let mut trainers = [trainer(&flags, 1, &data)?, trainer(&flags, 2, &data)?];
    for trainer in &mut trainers {
        steps(trainer, &data, flags.warmup as usize)?;
    }
    let mut times = turns(&mut trainers, &flags, &data)?;
    if let Some(path) = &flags.trace {
        trainers[1].write_trace(path)?;
    }
    times.iter_mut().for_each(|times| times.sort());
    let of = |part: usize| [0, 1].map(|i: usize| times[i][times[i].len() / part]);
    let (medians, quarters) = (of(2), of(4));
    let milliseconds = |time: Duration| format!("{:.1} ms", 1e3 * time.as_secs_f64());
    let row = |i: usize, replicas: &str| {
        let rate = batch as f64 / medians[i].as_secs_f64();
        [replicas.to_owned(), milliseconds(medians[i]), milliseconds(quarters[i]), format!("{rate:.0}")]
    };
    let head =
        ["replicas", "step (median)", "a quarter are faster than", "samples a second"].map(str::to_owned);
    let ratio = |[one, two]: [Duration; 2]| one.as_secs_f64() / two.as_secs_f64();
    let mut out = stdout();
    writeln!(out, "{}\n", table(&[head, row(0, "1"), row(1, "2")]))?;
    writeln!(out, "two replicas are {:.2} times as fast as one", ratio(medians))?;
    Ok(writeln!(out, "by the steps that a quarter are faster than: {:.2}", ratio(quarters))?)
}

/// The times of each trainer's steps, a few of one and then a few of the next.
pub fn turns(trainers: &mut [Trainer], flags: &Flags, data: &Loader) -> Result<Vec<Vec<Duration>>, Error> {
    let mut times = vec![Vec::new(); trainers.len()];
    while times[0].len() < flags.steps as usize {
        for (trainer, times) in trainers.iter_mut().zip(&mut times) {
            times.extend(steps(trainer, data, TURN)?);
        }
    }
    Ok(times)
}

/// How long each step took, beginning with its batch in memory.
pub fn steps(trainer: &mut Trainer, data: &Loader, count: usize) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    for batch in data.epochs_from(Position::default())?.take(count) {
        let batch = batch?;
        let started = Instant::now();
        trainer.step(&batch)?;
        times.push(started.elapsed());
    }
    Ok(times)
}
