//! Measures how much faster two replicas are than one, each on one core of a machine without a GPU, or each
//! on a GPU.

use std::io::{Write, stdout};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use unisono::Trainer;
use unisono::data::{Loader, Position};
use unisono::gpu::select;
use unisono_examples::{Error, Model, table};

use super::{Flags, heading, trainer};

/// The number of steps of one run before it is the other's turn. With short turns, other work of the machine
/// slows both alike.
pub const TURN: usize = 5;

/// Prints the times of steps of one replica, of two replicas, and of two separate trainers side by side with
/// half of the batch each. What the separate trainers lose is due to the machine: the optimizer's work is
/// done twice, both share one memory, and other programs run. What two replicas lose beyond that is due to
/// them. Beside the median it prints the fastest step and the step that only a tenth of all are faster than,
/// because a disturbance can only add time.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let flags = Flags { model: Model::Wide, ..flags.clone() };
    let adapters = select(&flags.adapter)?;
    heading(&flags, &adapters)?;
    let batch = flags.batch();
    let half =
        Flags { batch: u16::try_from(batch / 2).ok(), shards: (flags.shards / 2).max(1), ..flags.clone() };
    let (whole, halves) = (flags.noise()?, half.noise()?);
    let mut runs = [
        SideBySide::one(trainer(&flags, 1, &whole)?, &whole),
        SideBySide::one(trainer(&flags, 2, &whole)?, &whole),
        SideBySide { trainers: vec![trainer(&half, 1, &halves)?, trainer(&half, 1, &halves)?], data: halves },
    ];
    for run in &mut runs {
        run.steps(flags.warmup as usize)?;
    }
    let mut times = turns(&mut runs, &flags)?;
    if let Some(path) = &flags.trace {
        runs[1].trainers[0].write_trace(path)?;
    }
    times.iter_mut().for_each(|times| times.sort());
    let seconds = [0, 1, 2].map(|i: usize| QUANTILES.map(|(part, _)| seconds_of(&times[i], part)));
    let row = |name: &str, i: usize| {
        let rate = format!("{:.0}", batch as f64 / seconds[i][0]);
        let [a, b, c] = seconds[i].map(|seconds| format!("{:.1} ms", 1e3 * seconds));
        [name.to_owned(), a, b, c, rate]
    };
    let [a, b, c] = QUANTILES.map(|(_, name)| name.to_owned());
    let head = [String::new(), a, b, c, "samples a second".to_owned()];
    let rows = [head, row("one replica", 0), row("two replicas", 1), row("two halves, separate", 2)];
    let ratio = |of: usize| [0, 1, 2].map(|i| format!("{:.2}", seconds[0][i] / seconds[of][i]));
    let ([median, tenth, fastest], [own, own_tenth, own_fastest]) = (ratio(1), ratio(2));
    let mut out = stdout();
    writeln!(out, "{}\n", table(&rows))?;
    writeln!(
        out,
        "two replicas are {median} times as fast as one (by the tenth {tenth}, by the fastest {fastest})"
    )?;
    Ok(writeln!(out, "two halves with nothing to exchange: {own} ({own_tenth}, {own_fastest})")?)
}

/// The times that are printed of all steps: one step in so many is faster, with the name of the line.
pub const QUANTILES: [(usize, &str); 3] =
    [(2, "step (median)"), (10, "a tenth are faster than"), (usize::MAX, "the fastest")];

/// Returns, in seconds, the time that one in `part` of these sorted times is below.
pub fn seconds_of(times: &[Duration], part: usize) -> f64 {
    times[times.len() / part].as_secs_f64()
}

/// Trainers that are independent of each other and take each step at the same time.
pub struct SideBySide {
    pub trainers: Vec<Trainer>,
    pub data: Loader,
}

impl SideBySide {
    pub fn one(trainer: Trainer, data: &Loader) -> Self {
        Self { trainers: vec![trainer], data: data.clone() }
    }

    /// Returns the time of each step until all trainers were done. A step begins with its batches in memory.
    pub fn steps(&mut self, count: usize) -> Result<Vec<Duration>, Error> {
        let (barrier, data) = (Barrier::new(self.trainers.len()), &self.data);
        let run = |trainer: &mut Trainer| -> Result<Vec<Duration>, Error> {
            let (mut times, mut result) = (Vec::new(), Ok(()));
            let mut batches = data.epochs_from(Position::default())?;
            for _ in 0..count {
                let batch = batches.next();
                barrier.wait();
                let started = Instant::now();
                // A trainer that fails must not keep the others waiting.
                if let (Some(batch), Ok(())) = (batch, &result) {
                    result = batch.map_err(Error::from).and_then(|b| Ok(trainer.step(&b).map(drop)?));
                }
                barrier.wait();
                times.push(started.elapsed());
            }
            result.map(|()| times)
        };
        let all: Vec<Result<Vec<Duration>, Error>> = std::thread::scope(|scope| {
            let running: Vec<_> =
                self.trainers.iter_mut().map(|trainer| scope.spawn(|| run(trainer))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
                .collect()
        });
        all.into_iter().collect::<Result<Vec<_>, _>>().map(|mut all| all.swap_remove(0))
    }
}

/// Returns the times of each run's steps, measured in turns: a few steps of one run, then a few of the next.
pub fn turns(runs: &mut [SideBySide], flags: &Flags) -> Result<Vec<Vec<Duration>>, Error> {
    let mut times = vec![Vec::new(); runs.len()];
    while times[0].len() < flags.steps as usize {
        for (run, times) in runs.iter_mut().zip(&mut times) {
            times.extend(run.steps(TURN)?);
        }
    }
    Ok(times)
}
