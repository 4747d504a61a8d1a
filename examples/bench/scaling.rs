//! How much faster two replicas are than one, each on one core of a machine without a GPU (or on a GPU each).

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use unisono::Trainer;
use unisono::data::{Loader, Position};
use unisono::gpu::{Adapter, select};
use unisono_examples::{Error, table};

use crate::model::Model;
use crate::{Flags, median, trainer};

/// Steps of one before it is the other's turn: what else the machine does then slows both alike.
const TURN: usize = 5;

/// Prints the median step of each and the ratio.
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
    let times = turns(&mut trainers, &flags, &data)?;
    if let Some(path) = &flags.trace {
        trainers[1].write_trace(path)?;
    }
    let [one, two] = [median(times[0].clone()), median(times[1].clone())];
    let row = |replicas: &str, step: Duration| {
        let rate = batch as f64 / step.as_secs_f64();
        [replicas.to_owned(), format!("{:.1} ms", 1e3 * step.as_secs_f64()), format!("{rate:.0}")]
    };
    let head = ["replicas", "step (median)", "samples a second"].map(str::to_owned);
    let ratio = one.as_secs_f64() / two.as_secs_f64();
    let mut out = stdout();
    writeln!(out, "{}\n", table(&[head, row("1", one), row("2", two)]))?;
    Ok(writeln!(out, "two replicas are {ratio:.2} times as fast as one")?)
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
