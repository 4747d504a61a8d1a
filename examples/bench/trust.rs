//! Measures what audits cost: a trainer with the default ones against one without, taking turns.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use unisono::data::Loader;
use unisono::gpu::select;
use unisono::{Audits, Trainer};
use unisono_examples::{Error, table};

use super::scaling::{SideBySide, TURN};
use super::{Flags, builder, counts, heading, median, ticks, trainer};

/// The number of fits of one epoch that are timed after the first one.
const FITS: u32 = 9;

/// What a trainer took.
#[derive(Default)]
struct Took {
    /// The time of each step.
    steps: Vec<Duration>,
    /// The time of all steps on the host's CPUs, in ticks.
    busy: u64,
    /// The time of each fit of one epoch.
    fits: Vec<Duration>,
}

impl Took {
    fn mean(&self) -> Duration {
        self.steps.iter().sum::<Duration>() / self.steps.len().max(1) as u32
    }
}

/// Prints, for each number of replicas, the mean and median time of a step and the time of a fit of one epoch
/// of 8 batches with its evaluation, without audits and with them.
///
/// An audited step takes a few times as long as others and is rare, so the mean needs many steps. A fit
/// audits its last step and a batch of its evaluation, however short it is.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let adapters = select(&flags.adapter)?;
    heading(flags, &adapters)?;
    let data = flags.noise()?;
    let head = ["replicas", "audits", "step (mean)", "step (median)", "first fit", "later fits (median)"]
        .map(str::to_owned);
    let (mut rows, mut notes) = (vec![head.to_vec()], Vec::new());
    for replicas in counts(flags, &adapters) {
        let pair = || -> Result<[Trainer; 2], Error> {
            let unaudited = builder(flags).audits(Audits::Never).replicas(replicas.into());
            Ok([unaudited.build(&data.fields()?)?, trainer(flags, replicas, &data)?])
        };
        let mut took = [Took::default(), Took::default()];
        fits(pair()?, &data, &mut took)?;
        let mut runs = pair()?.map(|trainer| SideBySide::one(trainer, &data));
        steps(&mut runs, flags, &mut took)?;
        for (took, name) in took.iter().zip(["none", "default"]) {
            let times =
                [took.mean(), median(took.steps.clone()), took.fits[0], median(took.fits[1..].to_vec())];
            let times = times.map(|time| format!("{:.2} ms", 1e3 * time.as_secs_f64()));
            rows.push([&[replicas.to_string(), name.to_owned()], &times[..]].concat());
        }
        let ratio = |of: &dyn Fn(&Took) -> f64| of(&took[1]) / of(&took[0]);
        let audits = runs[1].trainers[0].audits();
        notes.push(format!(
            "{replicas} replica(s): {:.3} x by the mean, {:.3} x by the median, {:.3} x by the time on the host's CPUs; \
             {} of {} steps audited, now one in {}",
            ratio(&|took| took.mean().as_secs_f64()),
            ratio(&|took| median(took.steps.clone()).as_secs_f64()),
            ratio(&|took| took.busy as f64),
            audits.passed,
            audits.steps,
            audits.interval
        ));
    }
    Ok(writeln!(stdout(), "{}\n\n{}", table(&rows), notes.join("\n"))?)
}

/// Times fits of one epoch that are evaluated on the same data, in turns.
fn fits(mut trainers: [Trainer; 2], data: &Loader, took: &mut [Took; 2]) -> Result<(), Error> {
    for epochs in 1..=1 + FITS {
        for (trainer, took) in trainers.iter_mut().zip(took.iter_mut()) {
            let started = Instant::now();
            trainer.fit(data, Some(data), epochs)?;
            took.fits.push(started.elapsed());
        }
    }
    Ok(())
}

/// Times steps after the warm-up, a few of one run, then a few of the other.
fn steps(runs: &mut [SideBySide; 2], flags: &Flags, took: &mut [Took; 2]) -> Result<(), Error> {
    for run in runs.iter_mut() {
        run.steps(flags.warmup as usize)?;
    }
    while took[1].steps.len() < flags.steps as usize {
        for (run, took) in runs.iter_mut().zip(took.iter_mut()) {
            let before = ticks();
            took.steps.extend(run.steps(TURN)?);
            took.busy += ticks() - before;
        }
    }
    Ok(())
}
