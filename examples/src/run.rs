//! Trains a model from the settings of a run to its last line of output.

use std::io::stdout;
use std::path::Path;

use unisono::data::{Loader, Source};
use unisono::{
    BestBy, Builder, CsvLog, EarlyStopping, Identity, JsonLines, Precision, Progress, Saving, TensorBoard,
    Trainer, World,
};

use crate::interrupt::{self, Interrupted};
use crate::{Error, RunFlags, onnx, say};

/// The settings of a run. [`RunFlags::settle`] makes them.
#[derive(Clone, Debug)]
pub struct Run {
    /// The number of samples in a step, over all replicas together.
    pub global_batch: usize,
    /// The number of shards that a step is cut into.
    pub shards: usize,
    /// The number of epochs, counted from the start of the run.
    pub epochs: u32,
    /// The seed of initial weights, dropout and the order of the data.
    pub seed: u64,
    /// The precision of products.
    pub precision: Precision,
    /// The machines of the run.
    pub world: World,
    pub(crate) flags: RunFlags,
}

impl Run {
    /// Returns a loader with the seed and the threads of the run.
    pub fn loader(&self, source: impl Source + 'static) -> Loader {
        let loader = Loader::new(source).seed(self.seed);
        match self.flags.loader_threads {
            Some(threads) => loader.threads(threads),
            None => loader,
        }
    }

    /// Trains what `builder` describes with the settings of the run. It resumes and saves as the flags say,
    /// shows the model, the progress and where the time went on standard error, and writes the history to
    /// standard output if asked for. For a resumed run this is the history of the whole run.
    ///
    /// # Errors
    /// It returns the error that stopped the run, [`Interrupted`] if that was a signal. It is an error too if
    /// the last checkpoint or the final model cannot be written to the directory of `--out`.
    pub fn train(&self, builder: Builder, train: &Loader, held_out: &Loader) -> Result<Trainer, Error> {
        self.train_from(builder, train, held_out, |_| Ok(()))
    }

    /// Trains as [`Run::train`] does, after `prepare` has loaded weights into the trainer.
    ///
    /// # Errors
    /// Those of [`Run::train`] and of `prepare`.
    pub fn train_from(
        &self,
        builder: Builder,
        train: &Loader,
        held_out: &Loader,
        prepare: impl FnOnce(&mut Trainer) -> Result<(), Error>,
    ) -> Result<Trainer, Error> {
        let mut trainer = self.builder(builder).build(&train.fields()?)?;
        prepare(&mut trainer)?;
        say!("{}", trainer.summary());
        trainer.notes().iter().for_each(|note| say!("note: {note}"));
        if let Some(dir) = &self.flags.out {
            self.open(dir, &mut trainer)?;
        }
        trainer.stop_on(&interrupt::stop()?);
        trainer.fit(train, Some(held_out), self.epochs)?;
        // A run that was asked to stop during its last step is complete.
        // Of several machines another one may have been asked.
        let asked = interrupt::stop()?.is_asked() || !self.world.is_alone() && trainer.stopped().is_none();
        if asked && trainer.position().epoch < self.epochs {
            return Err(Interrupted { step: trainer.steps(), out: self.flags.out.clone() }.into());
        }
        trainer.save_model()?;
        // What follows predicts, and what the model carries is part of the state.
        let sha256 = trainer.state_sha256()?;
        if let Some(dir) = &self.flags.onnx {
            onnx::write(&mut trainer, held_out, dir)?;
        }
        crate::machines::follow(trainer.world());
        say!("{}", trainer.report());
        if let Some(path) = &self.flags.trace {
            trainer.write_trace(path)?;
        }
        say!("{} steps, state {sha256}", trainer.steps());
        print_identity(&trainer.identity());
        if self.flags.json && self.world.is_first() {
            let done = JsonLines::new(stdout()).done(trainer.steps(), trainer.history().last(), &sha256);
            done.map_err(|error| format!("standard output: {error}"))?;
        }
        Ok(trainer)
    }

    fn builder(&self, builder: Builder) -> Builder {
        let RunFlags { adapter, replicas, json, .. } = &self.flags;
        let mut builder = builder
            .global_batch(self.global_batch)
            .shards(self.shards)
            .seed(self.seed)
            .precision(self.precision)
            .world(self.world.clone());
        builder = adapter.iter().fold(builder, |builder, name| builder.adapter(name));
        if let Some(replicas) = replicas {
            builder = builder.replicas(*replicas);
        }
        if *json {
            builder = builder.observer(JsonLines::new(stdout()));
        }
        if let Some(dir) = &self.flags.logdir {
            builder = builder.observer(TensorBoard::new(dir));
        }
        if let Some(path) = &self.flags.csv {
            builder = builder.observer(CsvLog::new(path));
        }
        if let Some(epochs) = self.flags.early_stopping {
            builder = builder.callback(EarlyStopping::lowest("loss").patience(epochs).restore_best());
        }
        if let Some(mib) = self.flags.memory_limit {
            builder = builder.memory_limit(mib << 20);
        }
        if let Some(owners) = self.flags.shard_optimizer {
            builder = builder.shard_optimizer(owners);
        }
        builder = builder.mixed(self.flags.mixed);
        if self.flags.trace.is_some() {
            builder = builder.timeline();
        }
        self.shown(builder)
    }

    /// Adds what shows the progress.
    fn shown(&self, builder: Builder) -> Builder {
        #[cfg(feature = "dashboard")]
        if self.flags.dashboard {
            return builder.observer(unisono::Dashboard::new());
        }
        if self.flags.dashboard {
            say!("note: there is no dashboard: build with --features dashboard");
        }
        builder.observer(Progress::new())
    }

    fn saving(&self, dir: &Path) -> Saving {
        let RunFlags { checkpoint_every, keep_last, keep_every, keep_best, require_checkpoints, .. } =
            &self.flags;
        let mut saving = Saving::new(dir)
            .every(checkpoint_every.unwrap_or(0))
            .keep_last(keep_last.unwrap_or(3))
            .keep_every(keep_every.unwrap_or(0));
        saving = match keep_best.as_deref() {
            Some("loss") => saving.keep_best(BestBy::Lowest("loss".into())),
            Some(metric) => saving.keep_best(BestBy::Highest(metric.into())),
            None => saving,
        };
        if *require_checkpoints { saving.require() } else { saving }
    }

    /// Makes the trainer save checkpoints to a directory, and resumes from the newest one there if the flags
    /// say so.
    fn open(&self, dir: &Path, trainer: &mut Trainer) -> Result<(), Error> {
        trainer.save_to(self.saving(dir))?;
        if !self.flags.resume {
            return Ok(());
        }
        let resumed = if self.flags.force { trainer.force_resume() } else { trainer.resume() };
        match resumed? {
            Some(resumed) => {
                resumed.differs.iter().for_each(|differs| say!("warning: {differs}"));
                resumed.skipped.iter().for_each(|skipped| say!("note: passed over {skipped}"));
                say!("resumed at step {} from {}", resumed.step, resumed.path.display());
            }
            None => say!("note: no checkpoint in {}: the run starts at its start", dir.display()),
        }
        Ok(())
    }
}

/// Writes what makes the run this run: the first digits of its identity, what is not in it, and the runs that
/// it was made of by force.
fn print_identity(identity: &Identity) {
    say!("identity  {identity}");
    identity.not_covered.iter().for_each(|what| say!("note: the identity does not cover {what}"));
    for ancestor in &identity.ancestors {
        let from =
            ancestor.identity.as_deref().and_then(|digits| digits.get(..12)).unwrap_or("an unknown run");
        say!("note: forced at step {} from {from}: {}", ancestor.step, ancestor.differs.join("; "));
    }
}
