//! When a run is saved, which checkpoints stay, and what happens where they cannot be written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use unisono_checkpoint::{Best, Export, Options, Report, Saver, SaverOptions, StdDisk, Store};

use crate::trainer::save::Resumed;
use crate::{Error, Evaluation, Trainer};

/// Where checkpoints go, how often, and which of them stay.
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    dir: PathBuf,
    every: u64,
    keep: usize,
    keep_every: u64,
    best: Option<BestBy>,
    require: bool,
}

/// What makes a checkpoint the best so far: `loss` or a metric, by name, of the samples held out where there are such and
/// else of those trained on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BestBy {
    /// Less is better, as of a loss.
    Lowest(String),
    /// More is better, as of an accuracy.
    Highest(String),
}

impl BestBy {
    fn name(&self) -> &str {
        match self {
            Self::Lowest(name) | Self::Highest(name) => name,
        }
    }

    fn of(&self, evaluation: &Evaluation) -> Option<f64> {
        if self.name() == "loss" { Some(evaluation.loss) } else { evaluation.metric(self.name()) }
    }
}

impl Saving {
    /// Into this directory, at the end of a fit, also of one that an error of the data or of their numbers ends; the last three stay.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), every: 0, keep: 3, keep_every: 0, best: None, require: false }
    }

    /// Every so many steps too; 0 for at the end only.
    pub fn every(mut self, steps: u64) -> Self {
        self.every = steps;
        self
    }

    /// So many of the last stay; 0 for all.
    pub fn keep_last(mut self, checkpoints: usize) -> Self {
        self.keep = checkpoints;
        self
    }

    /// Those whose step is a multiple of this stay besides.
    pub fn keep_every(mut self, steps: u64) -> Self {
        self.keep_every = steps;
        self
    }

    /// The best stays besides, for [`Trainer::load_best`]. The run is then saved at the end of every epoch too, which is when it is
    /// measured.
    pub fn keep_best(mut self, best: BestBy) -> Self {
        self.best = Some(best);
        self
    }

    /// A checkpoint that cannot be written stops the run. Otherwise observers are told, the run goes on, and the next
    /// interval tries again.
    pub fn require(mut self) -> Self {
        self.require = true;
        self
    }
}

/// A trainer's checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub(crate) saver: Saver,
    saving: Saving,
    /// The step that was handed over last.
    pub(crate) saved: Option<u64>,
    /// The step of the newest that is known to be complete.
    pub(crate) durable: Option<u64>,
    /// The run goes on with other settings or data than it was started with.
    pub(crate) forced: bool,
}

impl Trainer {
    /// Saves the run to `dir` every `every` steps of a fit, and at its end; 0: only at the end. The directory is tried at once.
    pub fn checkpoints(&mut self, dir: &Path, every: u64) -> Result<(), Error> {
        self.save_to(Saving::new(dir).every(every))
    }

    /// Saves the run as told. Writing happens on a thread of its own: training waits for the copy off the device, and for
    /// the disk only at the end of a fit, and for a checkpoint that is to stay for good while another is waiting.
    ///
    /// # Errors
    /// A directory that cannot be written or that another run uses; a metric that there is not; an adapter that cannot be probed.
    pub fn save_to(&mut self, saving: Saving) -> Result<(), Error> {
        let mut known = vec!["loss".to_owned()];
        known.extend(self.parts.metrics.iter().map(|metric| metric.name().to_owned()));
        if let Some(best) = saving.best.as_ref().filter(|best| !known.iter().any(|name| name == best.name()))
        {
            let problem = format!("nothing is called {:?}; there is {}", best.name(), known.join(", "));
            return Err(Error::setting("keep best", problem));
        }
        let best = saving.best.as_ref().map(|best| match best {
            BestBy::Lowest(_) => Best::Lowest(1),
            BestBy::Highest(_) => Best::Highest(1),
        });
        let options = Options::default().keep(saving.keep).every(saving.keep_every).best(best);
        // Checkpoints name it, and now nobody waits for the probe.
        self.classes.all()?;
        // The directory may be the one that is open.
        self.checkpoints = None;
        let store = Store::open_with(&saving.dir, options, Arc::new(StdDisk))?;
        let saver = Saver::new(store, SaverOptions::default().require(saving.require))?;
        self.checkpoints = Some(Checkpoints { saver, saving, saved: None, durable: None, forced: false });
        Ok(())
    }

    /// Takes the newest complete checkpoint of the directory that the run is saved to; says which one, and which broken ones
    /// were passed over. Without any checkpoint the run starts at its start.
    ///
    /// # Errors
    /// A checkpoint of another model; a run with other settings, on other data or in another numeric class, for then the
    /// answer would be neither's. No complete checkpoint among those there are.
    pub fn resume(&mut self) -> Result<Option<Resumed>, Error> {
        self.resume_newest(false)
    }

    /// [`Trainer::resume`], also with another global batch, number of shards, seed or loss, on other data or adapters.
    /// [`Resumed::differs`] and, for the data, the observers are told what differs. The answer is then this trainer's alone.
    ///
    /// # Errors
    /// As [`Trainer::resume`], but for that.
    pub fn force_resume(&mut self) -> Result<Option<Resumed>, Error> {
        self.resume_newest(true)
    }

    fn resume_newest(&mut self, force: bool) -> Result<Option<Resumed>, Error> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(Error::setting("resume", "no checkpoint directory is set"));
        };
        let Some(loaded) = checkpoints.saver.with_store(|store| store.newest())? else { return Ok(None) };
        let differs = self.restore(&loaded.path, &loaded.contents, force)?;
        if let Some(checkpoints) = &mut self.checkpoints {
            (checkpoints.saved, checkpoints.durable) = (Some(self.step), Some(self.step));
            checkpoints.forced = force;
        }
        let skipped = loaded.skipped.iter().map(ToString::to_string).collect();
        Ok(Some(Resumed { step: self.step, path: loaded.path, skipped, differs }))
    }

    /// Refuses a directory that holds a later step of a run which this one does not go on with: no save would succeed.
    pub(crate) fn may_save(&self) -> Result<(), Error> {
        let Some(Checkpoints { saver, saving, saved: None, durable: None, .. }) = &self.checkpoints else {
            return Ok(());
        };
        // What cannot be looked at, saves tell.
        match saver.with_store(|store| store.newest_step()) {
            Ok(Some(newest)) if newest > self.step => {
                let dir = saving.dir.display();
                let problem = format!(
                    "{dir} holds step {newest} of another run: resume it, remove it (Trainer::clear_checkpoints), or save to \
                     another directory"
                );
                Err(Error::setting("checkpoints", problem))
            }
            _ => Ok(()),
        }
    }

    /// Removes the checkpoints of an earlier run from the directory, for a fresh start in it.
    pub fn clear_checkpoints(&mut self) -> Result<(), Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        (checkpoints.saved, checkpoints.durable) = (None, None);
        Ok(checkpoints.saver.with_store(Store::clear)?)
    }

    /// Saves the run now, and waits until that is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub fn save(&mut self) -> Result<Option<PathBuf>, Error> {
        self.save_behind()?;
        let Some(checkpoints) = &self.checkpoints else { return Ok(None) };
        let mut reports = checkpoints.saver.flush()?;
        let step = self.step;
        // Of this step the last report counts: it was tried twice if it failed.
        let own = reports.iter().rposition(|report| match report {
            Report::Saved { step: done, .. } | Report::Failed { step: done, .. } => *done == step,
            Report::Replaced { .. } => false,
        });
        let own = own.map(|at| reports.remove(at));
        self.tell(reports);
        match own {
            Some(Report::Failed { error, .. }) => Err(error.into()),
            Some(Report::Saved { step, saved, took }) => {
                let path = saved.path.clone();
                self.tell(vec![Report::Saved { step, saved, took }]);
                Ok(Some(path))
            }
            _ => Ok(None),
        }
    }

    /// Writes the final model into the checkpoint directory: `model.safetensors` and, unless it has layers of one's own,
    /// `model.json`, as [`Trainer::export`] does.
    ///
    /// # Errors
    /// It could not be written. [`Trainer::save_model_or_warn`] does as the settings say.
    pub fn save_model(&mut self) -> Result<Option<PathBuf>, Error> {
        if self.checkpoints.is_none() {
            return Ok(None);
        }
        let (model, description) = self.described()?;
        let export = Export::default().description(description);
        let write = |c: &Checkpoints| c.saver.with_store(|store| store.export_model(&model, &export));
        Ok(self.checkpoints.as_ref().map(write).transpose()?.map(|exported| exported.weights))
    }

    /// [`Trainer::save_model`]; a file that cannot be written is an error if [`Saving::require`] says so, and else something
    /// that observers are told.
    ///
    /// # Errors
    /// Of the replicas, and of the disk where checkpoints are required.
    pub fn save_model_or_warn(&mut self) -> Result<Option<PathBuf>, Error> {
        let required = self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.saving.require);
        match self.save_model() {
            Err(Error::Checkpoint(error)) if !required && error.may_pass() => {
                self.tell_note(&format!("warning: the final model is not saved: {error}"));
                Ok(None)
            }
            result => result,
        }
    }

    /// Saves where the interval or the end of a fit asks for it, and this step is not saved yet; at the end waits until it is
    /// durable. Returns whether the fit was asked to stop.
    pub(crate) fn save_when_due(&mut self, end: bool) -> Result<bool, Error> {
        let stop = self.stop.is_asked();
        if stop && !end {
            self.tell_note(&format!("asked to stop: step {} is the last", self.step));
        }
        let Some(Checkpoints { saver, saving, saved, .. }) = &self.checkpoints else { return Ok(stop) };
        let reports = saver.poll()?;
        let interval = saving.every > 0 && self.step.is_multiple_of(saving.every);
        let measured = saving.best.is_some() && self.history.last().is_some_and(|e| e.steps == self.step);
        let due = (end || interval || measured) && *saved != Some(self.step);
        self.tell(reports);
        if due {
            self.save_behind()?;
        }
        if end {
            self.finish_saves()?;
        }
        Ok(stop)
    }

    /// Waits until what was saved is durable, as the end of a fit does. Observers are told what became of each save.
    ///
    /// # Errors
    /// What could not be written, if that is required.
    pub fn finish_saves(&mut self) -> Result<(), Error> {
        if let Some(checkpoints) = &self.checkpoints {
            let reports = checkpoints.saver.flush()?;
            self.tell(reports);
        }
        Ok(())
    }

    /// Copies the run off the devices and returns; it is written while training goes on, as at the interval of a fit. For
    /// loops of one's own, together with [`Trainer::finish_saves`].
    ///
    /// # Errors
    /// The copy's; that of an earlier save, if saves are required.
    pub fn save_behind(&mut self) -> Result<(), Error> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let spare = checkpoints.saver.spare();
        let contents = self.contents_into(spare)?;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let measured = self.history.last().filter(|epoch| epoch.steps == self.step);
        let measured = measured.map(|epoch| epoch.validation.as_ref().unwrap_or(&epoch.train));
        let metric = checkpoints.saving.best.as_ref().zip(measured).and_then(|(best, e)| best.of(e));
        checkpoints.saver.save_with_metric(self.step, contents, metric)?;
        checkpoints.saved = Some(self.step);
        Ok(())
    }

    /// Tells observers what became of saves.
    fn tell(&mut self, reports: Vec<Report>) {
        for report in reports {
            match report {
                Report::Saved { step, saved, .. } => {
                    if let Some(checkpoints) = &mut self.checkpoints {
                        checkpoints.durable = Some(step);
                    }
                    if saved.reopened {
                        let dir = saved.path.parent().unwrap_or(&saved.path).display();
                        self.tell_note(&format!("warning: {dir} was gone and was made anew"));
                    }
                    for old in &saved.not_removed {
                        self.tell_note(&format!("warning: an old checkpoint could not be removed: {old}"));
                    }
                    self.tell_saved(&saved.path);
                }
                Report::Replaced { step, by } => self.tell_note(&format!(
                    "note: step {step} is not saved: step {by} came before the disk was ready for it"
                )),
                Report::Failed { step, error } => self.tell_note(&format!(
                    "warning: step {step} is not saved: {error}; the run goes on, the next save tries again"
                )),
            }
        }
    }
}
