//! Runs that make their own samples, as reinforcement learning does.

use std::fs;
use std::path::{Path, PathBuf};

use unisono::checkpoint;
use unisono::data::{Batch, Replay};
use unisono::{Builder, Trainer};

use crate::interrupt::{self, Interrupted};
use crate::{Error, Refused, Run};

impl Run {
    /// Trains on samples that the run makes itself, with `steps` steps in an epoch. `play` gets the number of
    /// steps done. It adds samples to the buffer, and returns a batch that it draws, for the next step.
    ///
    /// Checkpoints are saved at the ends of epochs alone, each with the buffer in a file next to it. `play`
    /// therefore starts anew in each epoch whatever else it remembers. A signal ends the run at the end of
    /// its epoch.
    ///
    /// # Errors
    /// The flags ask for several machines, for checkpoints within an epoch, or for what needs a validation
    /// set. The buffer is empty, so that its fields are not known, or it cannot be saved or opened. The
    /// errors of `play` and of [`Run::train`].
    pub fn train_by(
        &self,
        builder: Builder,
        mut replay: Replay,
        steps: u64,
        mut play: impl FnMut(&mut Trainer, &mut Replay, u64) -> Result<Batch, Error>,
    ) -> Result<Trainer, Error> {
        self.check_own_data(steps)?;
        let mut trainer = self.start(builder, replay.fields(), |_| Ok(()))?;
        if let (Some(dir), 1..) = (&self.flags.out, trainer.steps()) {
            replay = Replay::open(buffer(dir, trainer.steps()))?;
        }
        let last = u64::from(self.epochs) * steps;
        let every = self.flags.checkpoint_every.unwrap_or(last);
        while trainer.steps() < last {
            let done = trainer.steps();
            let mut batch = play(&mut trainer, &mut replay, done)?;
            let ends = (done + 1) % steps == 0;
            batch.epoch = (done / steps) as u32;
            batch.after.epoch = batch.epoch + u32::from(ends);
            let made = trainer.step(&batch)?;
            trainer.notify_step(&made);
            if !ends {
                continue;
            }
            let done = trainer.steps();
            trainer.notify_epoch_ended(&made, None)?;
            let is_stopped = done < last && interrupt::stop()?.is_asked();
            if done == last || is_stopped || done % every == 0 {
                self.save_both(&mut trainer, &replay)?;
            }
            if is_stopped {
                return Err(Interrupted { step: done, out: self.flags.out.clone(), unsaved: None }.into());
            }
        }
        trainer.notify_ended();
        trainer.save_model()?;
        let sha256 = trainer.state_sha256()?;
        let trainer = self.finish(trainer, &sha256, None)?;
        self.remove_buffers()?;
        Ok(trainer)
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

    /// Saves a run and its buffer.
    fn save_both(&self, trainer: &mut Trainer, replay: &Replay) -> Result<(), Error> {
        let Some(dir) = &self.flags.out else { return Ok(()) };
        // A checkpoint that is there has its buffer, whenever the process is killed.
        replay.save(buffer(dir, trainer.steps()))?;
        trainer.save()?;
        self.remove_buffers()
    }

    /// Removes buffers whose checkpoints are gone. A checkpoint may go some time after a newer one is saved.
    fn remove_buffers(&self) -> Result<(), Error> {
        let Some(dir) = &self.flags.out else { return Ok(()) };
        let kept: Vec<PathBuf> =
            checkpoint::list(dir)?.into_iter().map(|(step, _)| buffer(dir, step)).collect();
        for file in fs::read_dir(dir)?.filter_map(Result::ok).map(|file| file.path()) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let is_buffer = name.starts_with("replay-") && name.ends_with(".safetensors");
            if is_buffer && !kept.contains(&file) {
                fs::remove_file(&file)?;
            }
        }
        Ok(())
    }
}

/// Returns the file of the buffer that belongs to the checkpoint of a step.
fn buffer(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("replay-{step}.safetensors"))
}
