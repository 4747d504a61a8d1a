//! Runs that make their own samples, as reinforcement learning does.

use unisono::data::{Batch, Replay};
use unisono::{Builder, Stop, Trainer};

use crate::interrupt::{self, Interrupted};
use crate::{Error, Refused, Run};

impl Run {
    /// Trains on samples that the run makes itself, with `steps` steps in an epoch. `play` gets the trainer.
    /// It adds samples to the trainer's replay buffer, and returns a batch that it draws, for the next step.
    ///
    /// Checkpoints, which have the buffer, are saved at the ends of epochs alone. `play` therefore starts
    /// anew in each epoch whatever else it remembers. A signal ends the run at the end of its epoch.
    ///
    /// # Errors
    /// The flags ask for several machines, for checkpoints within an epoch, or for what needs a validation
    /// set. The buffer is empty, so that its fields are not known. The errors of `play` and of
    /// [`Run::train`].
    pub fn train_by(
        &self,
        builder: Builder,
        replay: Replay,
        steps: u64,
        mut play: impl FnMut(&mut Trainer) -> Result<Batch, Error>,
    ) -> Result<Trainer, Error> {
        self.check_own_data(steps)?;
        let fields = replay.fields().to_vec();
        let mut trainer = self.start(builder, &fields, |_| Ok(()))?;
        // A run that was resumed has its buffer.
        if trainer.replay().is_none() {
            trainer.keep_replay(replay);
        }
        // From here on a signal asks the run to end.
        let stop = interrupt::stop()?;
        let before = trainer.steps();
        let sha256 = match self.play_and_save(&mut trainer, steps, &mut play, &stop) {
            Ok(sha256) => sha256,
            Err(error) => {
                self.trace_despite(&error, &mut trainer, before);
                return Err(error);
            }
        };
        self.finish(trainer, &sha256, None)
    }

    /// Trains to the last epoch, and saves the final model. Returns the digest of the state.
    fn play_and_save(
        &self,
        trainer: &mut Trainer,
        steps: u64,
        play: &mut impl FnMut(&mut Trainer) -> Result<Batch, Error>,
        stop: &Stop,
    ) -> Result<String, Error> {
        let last = u64::from(self.epochs) * steps;
        let every = self.flags.checkpoint_every.unwrap_or(last);
        while trainer.steps() < last {
            let done = trainer.steps();
            let mut batch = play(trainer)?;
            let ends = (done + 1).is_multiple_of(steps);
            batch.epoch = (done / steps) as u32;
            batch.after.epoch = batch.epoch + u32::from(ends);
            let made = trainer.step(&batch)?;
            trainer.notify_step(&made);
            if !ends {
                continue;
            }
            let done = trainer.steps();
            trainer.notify_epoch_ended(&made, None)?;
            let is_stopped = done < last && stop.is_asked();
            if self.flags.out.is_some() {
                match done == last || is_stopped {
                    true => drop(trainer.save()?),
                    // A checkpoint that is not written in the middle of a run does not end it.
                    false if done.is_multiple_of(every) => trainer.save_behind()?,
                    false => {}
                }
            }
            if is_stopped {
                return Err(Interrupted { step: done, out: self.flags.out.clone(), unsaved: None }.into());
            }
        }
        trainer.notify_ended();
        trainer.save_model()?;
        Ok(trainer.state_sha256()?)
    }

    /// Refuses flags that a run which makes its own samples cannot follow.
    fn check_own_data(&self, steps: u64) -> Result<(), Error> {
        let flags = &self.flags;
        let refused = |what: String| Err(Refused(what).into());
        if !self.cluster.is_alone() {
            return refused(
                "this program makes its own samples, on one machine: run it without mpirun".into(),
            );
        }
        for (flag, is_given) in [
            ("--early-stopping", flags.early_stopping.is_some()),
            ("--keep-best", flags.keep_best.is_some()),
            ("--onnx", flags.onnx.is_some()),
        ] {
            if is_given {
                return refused(format!("{flag} needs a validation set, which this program does not have"));
            }
        }
        match flags.checkpoint_every {
            Some(every) if every % steps != 0 => refused(format!(
                "--checkpoint-every {every}: this program saves at the ends of its epochs of {steps} steps: give a \
                 multiple of {steps}"
            )),
            _ => Ok(()),
        }
    }
}
