//! The life of one process of a run.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use unisono::data::{DataError, Loader};
use unisono::{Audits, BestBy, Error, Observer, Saving, Step, Stop, Trainer};
use unisono_replica::ReplicaError;
use unisono_tests::perceptron;

use super::data::{BATCH, INJECTED, SAMPLES, loader};
use super::plan::{DiskFault, EPOCHS, Life};
use super::power::PowerDisk;
use super::world::{Faults, World};

/// What a life's observer saw.
#[derive(Default)]
struct Seen {
    rolled_back: usize,
    left: usize,
    notes: Vec<String>,
}

/// Watches a life, and ends it at its step.
struct Watching {
    seen: Arc<Mutex<Seen>>,
    disk: PowerDisk,
    fault: DiskFault,
    stops_at: Option<u64>,
    stop: Stop,
}

impl Observer for Watching {
    fn step(&mut self, step: &Step) {
        if let DiskFault::KilledAt(at) | DiskFault::PowerAt(at) = self.fault
            && step.step >= at
        {
            self.disk.fails_after(0);
            self.stop.ask();
        }
        if self.stops_at == Some(step.step) {
            self.stop.ask();
        }
    }
    fn rolled_back(&mut self, _: u64) {
        self.seen.lock().unwrap().rolled_back += 1;
    }
    fn note(&mut self, text: &str) {
        let mut seen = self.seen.lock().unwrap();
        seen.left += usize::from(text.contains(" left at step "));
        seen.notes.push(text.to_owned());
    }
}

/// Lives a life. Returns whether the run is done.
///
/// # Errors
/// A result that is not the undisturbed run's, or an error that follows from none of the life's faults.
pub fn live(world: &mut World<'_>, life: &Life) -> Result<bool, String> {
    let faults = world.begin(life);
    let stop = Stop::new();
    let seen = Arc::default();
    let lived = Living { world, life, stop, faults, seen: Arc::clone(&seen) }.live();
    let seen = seen.lock().unwrap();
    world.story.extend(seen.notes.iter().map(|note| format!("  {note}")));
    world.counts.rolled_back += seen.rolled_back;
    world.counts.lost += seen.left;
    world.has_shown |= seen.rolled_back > 0;
    if let Err(Wrong::Error(error)) = &lived {
        world.story.push(format!("  ended by: {error}"));
    }
    let error = match lived {
        Ok(done) => {
            world.counts.ended += usize::from(done);
            return Ok(done);
        }
        Err(Wrong::Result(wrong)) => return Err(wrong),
        Err(Wrong::Error(error)) => error,
    };
    if seen.rolled_back > 0 && !world.alters(life) {
        return Err(format!("the run went back for nothing: {error}"));
    }
    named(world, life, &error).then_some(false).ok_or_else(|| format!("no fault explains: {error}"))
}

/// Whether an error is of a kind that follows from one of the life's faults.
fn named(world: &mut World<'_>, life: &Life, error: &Error) -> bool {
    let counts = &mut world.counts;
    match error {
        Error::NoneLeft { .. } => life.loses,
        // While the trainer is built there is no run that could have lost its replicas.
        Error::Replica(ReplicaError::NoneLeft { .. } | ReplicaError::Start { .. }) => life.is_hasty,
        Error::NotSaved { .. } | Error::Checkpoint(_) => {
            counts.disk += 1;
            life.disk != DiskFault::None
        }
        Error::Data(error) => {
            counts.data += 1;
            is_injected(error)
        }
        Error::Validation(error) => {
            counts.data += 1;
            matches!(&**error, Error::Data(error) if is_injected(error))
        }
        Error::Refused { .. } => {
            (counts.refused, world.has_shown) = (counts.refused + 1, true);
            world.alters(life)
        }
        Error::Untrusted { .. } => {
            counts.refused += 1;
            (world.has_shown, world.begins_anew) = (true, life.disk == DiskFault::None);
            world.alters(life)
        }
        _ => false,
    }
}

fn is_injected(error: &DataError) -> bool {
    error.to_string().contains(INJECTED)
}

/// Why a life ends early.
enum Wrong {
    /// An error of the trainer.
    Error(Error),
    /// A result that is not that of the undisturbed run.
    Result(String),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

struct Living<'a, 'w> {
    world: &'a mut World<'w>,
    life: &'a Life,
    stop: Stop,
    faults: Faults,
    seen: Arc<Mutex<Seen>>,
}

impl Living<'_, '_> {
    fn live(mut self) -> Result<bool, Wrong> {
        let mut trainer = self.build()?;
        let lived = self.train(&mut trainer);
        let overlapped = trainer.reports().into_iter().map(|report| report.overlapped as usize);
        self.world.counts.overlapped += overlapped.sum::<usize>();
        lived
    }

    fn train(&mut self, trainer: &mut Trainer) -> Result<bool, Wrong> {
        let Self { life, .. } = *self;
        let train = loader(false, &life.train, &self.stop);
        let held_out = loader(true, &life.held_out, &self.stop);
        let held_out = self.world.evaluates.then_some(&held_out);
        trainer.save_to(self.saving())?;
        if std::mem::take(&mut self.world.begins_anew) {
            trainer.clear_checkpoints()?;
        }
        if let Some(resumed) = trainer.resume()? {
            self.world.counts.resumed += 1;
            self.world.story.push(format!("  resumed from step {}", resumed.step));
        }
        trainer.stop_on(&self.stop);
        self.own_loop(trainer, &train)?;
        for &epochs in &life.fits {
            if trainer.position().epoch < epochs || epochs == EPOCHS {
                self.fit(trainer, &train, held_out, epochs)?;
            }
        }
        Ok(trainer.position().epoch == EPOCHS)
    }

    fn build(&self) -> Result<Trainer, Error> {
        let life = self.life;
        let watching = Watching {
            seen: Arc::clone(&self.seen),
            disk: self.world.disk.clone(),
            fault: life.disk.clone(),
            stops_at: life.stops_at,
            stop: self.stop.clone(),
        };
        let mut builder = perceptron(8)
            .global_batch(BATCH)
            .replicas(life.replicas)
            .steps_in_flight(2)
            .audits(Audits::Every(life.audit_every))
            .digest_every(life.digest_every)
            .fault_scope(&self.faults.scope)
            .observer(watching);
        if life.is_hasty {
            builder = builder.deadline(Duration::from_millis(400));
        }
        builder.build(&unisono_tests::loader(SAMPLES, 5)?.fields()?)
    }

    fn saving(&self) -> Saving {
        let life = self.life;
        let mut saving = Saving::new(self.world.dir.path())
            .every(life.save_every)
            .keep_last(life.keep)
            .on(Arc::new(self.world.disk.clone()));
        if life.keeps_best {
            saving = saving.keep_best(BestBy::Lowest("loss".into()));
        }
        if life.requires { saving.require() } else { saving }
    }

    /// Does some steps of an epoch in a loop of its own, and saves them. Only a fit ends epochs.
    fn own_loop(&mut self, trainer: &mut Trainer, train: &Loader) -> Result<(), Wrong> {
        let Life { own_steps, mut joins_at, .. } = *self.life;
        let train = train.clone().batch(BATCH);
        let mut done = 0;
        // It goes on where the trainer is, also after that went back.
        'again: while done < own_steps {
            let start = trainer.position();
            if start.epoch == EPOCHS || start.sample == SAMPLES as u64 {
                break;
            }
            for batch in train.epochs(start, EPOCHS).map_err(Error::from)? {
                let batch = batch.map_err(Error::from)?;
                if batch.after.epoch > batch.epoch || done == own_steps {
                    break 'again;
                }
                if joins_at == Some(done) {
                    joins_at = None;
                    match trainer.join("") {
                        Ok(_) => self.world.counts.joined += 1,
                        Err(Error::RolledBack { .. }) => continue 'again,
                        // The run goes on without it.
                        Err(_) => {}
                    }
                }
                done += 1;
                match trainer.step(&batch) {
                    Ok(_) => {}
                    Err(Error::RolledBack { .. }) => continue 'again,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match trainer.save_behind() {
            Err(Error::RolledBack { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Trains until `epochs` epochs are done, or the process is asked to stop for good.
    fn fit(
        &mut self,
        trainer: &mut Trainer,
        train: &Loader,
        held_out: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Wrong> {
        // A fit goes back to none of the steps before it.
        let mut has_steps_before = self.life.own_steps > 0 || trainer.steps() > 0;
        loop {
            let goes_on = self.life.goes_on;
            match trainer.fit(train, held_out, epochs).map(drop) {
                Err(error @ (Error::Data(_) | Error::Validation(_))) if goes_on => {
                    if !named(self.world, self.life, &error) {
                        return Err(error.into());
                    }
                }
                // It went back to steps of a loop or a fit before it.
                Err(Error::RolledBack { .. }) if has_steps_before && self.world.alters(self.life) => {}
                Err(error) => return Err(error.into()),
                Ok(()) if self.stop.is_asked() && trainer.position().epoch < epochs => {
                    self.world.counts.stopped += 1;
                    if !goes_on || matches!(self.life.disk, DiskFault::KilledAt(_) | DiskFault::PowerAt(_)) {
                        return Ok(());
                    }
                    trainer.stop_on(&Stop::new());
                }
                Ok(()) => break,
            }
            has_steps_before = true;
        }
        let sha256 = trainer.state_sha256()?;
        let checked = self.world.reference.check(trainer, &sha256, trainer.position().epoch);
        checked.map_err(Wrong::Result)
    }
}
