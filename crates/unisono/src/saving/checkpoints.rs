//! The checkpoints of a trainer: a store on its own thread, and the state of the saves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use unisono_checkpoint::{Contents, Loaded, Reopened, Report, Saver, SaverOptions, Store, load_with};
use unisono_cluster::Cluster;

use crate::observe::monitor::Monitor;
use crate::saving::machines::{dir_of_rank, dirs_of_other_ranks, has_name, share_newest_on};
use crate::saving::policy::Saving;
use crate::{Error, History};

/// A trainer's checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub saver: Saver,
    saving: Saving,
    /// The run's directory, beside which each rank has its own.
    base: PathBuf,
    /// Whether this machine is alone.
    is_alone: bool,
    /// The step that was handed over last.
    saved: Option<u64>,
    /// The step of the newest checkpoint that is known to be complete.
    durable: Option<u64>,
    /// The last step whose state an audit has confirmed.
    confirmed: u64,
    resumption: Resumption,
}

/// How a resumed run continues. It stays the same if the run is saved elsewhere from then on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resumption {
    /// The step from which the run goes on.
    pub step: Option<u64>,
    /// Whether the run goes on with other settings or data than it was started with.
    pub forced: bool,
}

/// Opens the store of a run. On several machines another rank of this one may look into the directory at this
/// moment, so a directory in use is tried again for two seconds.
fn opened(saving: &Saving, cluster: &Cluster) -> unisono_checkpoint::Result<Store> {
    const PAUSE: Duration = Duration::from_millis(20);
    let tries = if cluster.is_alone() { 1 } else { 100 };
    for _ in 1..tries {
        match Store::open_with(&saving.dir, saving.retention(), saving.disk()) {
            Err(unisono_checkpoint::Error::Locked { .. }) => std::thread::sleep(PAUSE),
            opened => return opened,
        }
    }
    Store::open_with(&saving.dir, saving.retention(), saving.disk())
}

impl Checkpoints {
    /// Returns what to tell a user who looks for checkpoints in a directory that has none: that the run
    /// starts, or where else there are some: in the directories of runs that are in it, or right in it, if it
    /// is a run's `checkpoints`.
    pub fn none_found(&self) -> String {
        let dir = &self.saving.dir;
        let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let entries = entries.map(|entry| entry.path());
        let has_steps = |dir: &Path| {
            let names = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
            names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
        };
        let run = match has_steps(dir) {
            true => dir.parent().map(Path::to_owned),
            false => entries.filter(|own| has_steps(&own.join("checkpoints"))).min(),
        };
        let none = format!("{} has no checkpoint", dir.display());
        match run {
            Some(run) => format!("{none}, but {} has: that is another run", run.display()),
            None => format!("{none}: the run starts from the beginning"),
        }
    }

    /// Opens the directory of a policy.
    ///
    /// # Errors
    /// The directory cannot be written, or another run uses it. On several machines it has no name.
    pub fn open(mut saving: Saving, cluster: &Cluster) -> Result<Self, Error> {
        let base = saving.dir.clone();
        if !cluster.is_alone() && !has_name(&base) {
            let dir = base.display();
            let problem =
                format!("{dir} has no name, so the directories of other ranks cannot be next to it");
            return Err(Error::setting("checkpoints", problem));
        }
        saving.dir = dir_of_rank(&base, cluster.rank());
        let store = opened(&saving, cluster)?;
        let saver = Saver::new(store, SaverOptions::default().require(saving.require))?;
        Ok(Self {
            saver,
            saving,
            base,
            is_alone: cluster.is_alone(),
            saved: None,
            durable: None,
            confirmed: 0,
            resumption: Resumption::default(),
        })
    }

    /// Returns the directory of this machine's checkpoints.
    pub fn dir(&self) -> &Path {
        &self.saving.dir
    }

    /// Returns the step of the newest checkpoint that is known to be complete.
    pub fn durable(&self) -> Option<u64> {
        self.durable
    }

    /// Gives all ranks the newest complete checkpoint that any of them has, see
    /// [`share_newest`](crate::share_newest).
    ///
    /// # Errors
    /// A checkpoint cannot be read or written, on any rank.
    pub fn share_newest(&self, cluster: &Cluster) -> Result<(), Error> {
        self.saver.with_store(|store| {
            let mut save = |files: &[(&str, &[u8])]| store.save_copy(files);
            share_newest_on(&*self.saving.disk(), cluster, &self.base, &mut save).map(drop)
        })
    }

    /// Loads the newest complete checkpoint.
    ///
    /// # Errors
    /// There are checkpoints, and none is complete.
    pub fn newest(&self) -> Result<Option<Loaded>, Error> {
        Ok(self.saver.with_store(|store| store.newest())?)
    }

    /// Loads one of the checkpoints.
    ///
    /// # Errors
    /// It is not complete.
    pub fn load(&self, checkpoint: &Path) -> Result<Contents, Error> {
        Ok(load_with(&*self.saving.disk(), checkpoint)?.1)
    }

    /// Sets checkpoints of later steps aside, which may be wrong. Returns their new paths.
    ///
    /// # Errors
    /// One cannot be renamed.
    pub fn distrust(&mut self, after: u64) -> Result<Vec<PathBuf>, Error> {
        // The audit that makes the state of a step trusted confirms the one after it as well.
        let after = after.max(self.confirmed.min(after + 1));
        self.confirmed = self.confirmed.min(after);
        let mut aside = self.saver.distrust(after)?;
        if self.is_alone {
            // The run may have been on several machines before.
            aside.extend(self.with_other_ranks(|store| store.distrust(after))?.into_iter().flatten());
        }
        self.durable = self.saver.with_store(|store| store.newest_step())?;
        // Steps that are made again are saved again, unless they are there.
        self.saved = self.durable.filter(|durable| *durable == after);
        Ok(aside)
    }

    /// Does something with the directories of other ranks on this machine, into which a resume looks. Those
    /// that another rank or another run uses stay as they are.
    fn with_other_ranks<T>(
        &self,
        mut act: impl FnMut(&mut Store) -> unisono_checkpoint::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let (disk, mut all) = (self.saving.disk(), Vec::new());
        let mut dirs = dirs_of_other_ranks(&*disk, &self.base);
        dirs.push(self.base.clone());
        dirs.retain(|dir| *dir != self.saving.dir && disk.is_dir(dir));
        for dir in dirs {
            match Store::open_with(dir, self.saving.retention(), Arc::clone(&disk)) {
                Err(unisono_checkpoint::Error::Locked { .. }) => {}
                opened => all.push(act(&mut opened?)?),
            }
        }
        Ok(all)
    }

    /// Whether the checkpoint of a step is trusted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn is_trusted(&self, step: u64) -> Result<bool, Error> {
        Ok(self.saver.with_store(|store| store.is_trusted(step))?)
    }

    /// Returns the step and the directory of the best checkpoint.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn best(&self) -> Result<Option<(u64, PathBuf)>, Error> {
        Ok(self.saver.with_store(|store| store.best())?)
    }

    /// Returns whether the best checkpoints are kept.
    pub fn keeps_best(&self) -> bool {
        self.saving.keeps_best()
    }

    /// Returns which of some steps was the best by a run's history.
    pub fn best_of(&self, steps: impl Iterator<Item = u64>, history: &History) -> Option<u64> {
        self.saving.best_of(steps, history)
    }

    /// Notes that a run goes on from one of the checkpoints.
    pub fn resumed(&mut self, step: u64, forced: bool) {
        (self.saved, self.durable) = (Some(step), Some(step));
        self.confirmed = 0;
        self.resumption = Resumption { step: Some(step), forced };
    }

    /// Returns the policy by which the directory was opened.
    pub fn policy(&self) -> Saving {
        let mut saving = self.saving.clone();
        saving.dir.clone_from(&self.base);
        saving
    }

    /// Returns how the run goes on, if it was resumed.
    pub fn resumption(&self) -> Resumption {
        self.resumption
    }

    /// Returns the same for a run that goes on so.
    pub fn with(self, resumption: Resumption) -> Self {
        Self { resumption, ..self }
    }

    /// Removes all checkpoints, and those that other ranks have left on this machine.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn clear(&mut self) -> Result<(), Error> {
        (self.saved, self.durable) = (None, None);
        self.saver.with_store(Store::clear)?;
        self.with_other_ranks(Store::clear).map(drop)
    }

    /// Refuses a directory that holds a later step of a run that this one does not go on with, since no save
    /// would succeed.
    ///
    /// # Errors
    /// It is such a directory. What cannot be looked at is no error here: saves tell of it.
    pub fn check_dir(&self, step: u64) -> Result<(), Error> {
        if self.saved.is_some() || self.durable.is_some() {
            return Ok(());
        }
        match self.saver.with_store(|store| store.newest_step()) {
            Ok(Some(newest)) if newest > step => {
                let dir = self.saving.dir.display();
                let problem = format!(
                    "{dir} holds step {newest} of another run: resume it, remove it (Trainer::clear_checkpoints), or save to \
                     another directory"
                );
                Err(Error::setting("checkpoints", problem))
            }
            _ => Ok(()),
        }
    }

    /// Whether a step is to be saved: where that is asked for, such as at the end of a fit, or the policy
    /// says so, unless it is saved already.
    pub fn are_due(&self, step: u64, history: &History, is_asked: bool) -> bool {
        (is_asked || self.saving.is_due(step, history)) && self.saved != Some(step)
    }

    /// Returns whether it is this step that is to be saved, and not any of those around it.
    pub fn is_due_itself(&self, step: u64, history: &History) -> bool {
        self.saving.is_due_itself(step, history)
    }

    /// Notes that an epoch ended after a step. A checkpoint of that step lacks the epoch's end, so the step
    /// is saved again.
    pub fn epoch_ended(&mut self, step: u64) {
        self.saved = self.saved.filter(|saved| *saved != step);
    }

    /// Hands a step over to be written, with what was measured at it. If it is the step `itself` that is to
    /// be saved, no later one takes its place on a slow disk.
    ///
    /// # Errors
    /// An earlier save failed, if saves are required.
    pub fn hand_over(
        &mut self,
        step: u64,
        contents: Contents,
        history: &History,
        itself: bool,
    ) -> Result<(), Error> {
        let measured = self.saving.measured(step, history);
        match itself {
            true => self.saver.save_itself(step, contents, measured)?,
            false => self.saver.save_with_metric(step, contents, measured)?,
        }
        self.saved = Some(step);
        if step <= self.confirmed {
            self.saver.trust(step);
        }
        Ok(())
    }

    /// Notes that an audit has confirmed the state of a step: checkpoints up to it are trusted.
    pub fn confirm(&mut self, step: u64) {
        self.confirmed = step;
        self.saver.trust(step);
    }

    /// Tells observers what became of saves.
    pub fn notify(&mut self, reports: Vec<Report>, monitor: &mut Monitor) {
        for report in reports {
            match report {
                Report::Saved { step, saved, .. } => {
                    self.durable = Some(step);
                    if let Some(reopened) = saved.reopened {
                        monitor.note_here(&gone(reopened, &self.saving.dir));
                    }
                    for old in &saved.not_removed {
                        monitor.note_here(&format!("warning: an old checkpoint could not be removed: {old}"));
                    }
                    for broken in &saved.set_aside {
                        monitor.note_here(&format!("warning: a broken checkpoint is set aside: {broken}"));
                    }
                    if let Some(problem) = &saved.record_problem {
                        monitor.note_here(&format!("warning: no checkpoint is trusted: {problem}"));
                    }
                    monitor.saved(&saved.path);
                }
                Report::Replaced { step, by } => monitor.note_here(&format!(
                    "note: step {step} is not saved: the disk was busy until step {by}"
                )),
                Report::Failed { step, error } => monitor.note_here(&format!(
                    "warning: step {step} is not saved: {error}; the run continues, and the next save tries again"
                )),
                Report::Dropped { step } => {
                    monitor.note_here(&format!("note: step {step} is not saved: an audit failed"));
                }
                Report::NotTrusted { step, error } => monitor.note_here(&format!(
                    "warning: the record that checkpoints up to step {step} are trusted is not written: {error}; the \
                     next save tries again"
                )),
                other => monitor.note_here(&format!("warning: {other:?}")),
            }
        }
    }

    /// Waits until what was handed over is written, and tells observers what became of each save but the last
    /// of `step`. Returns that checkpoint's directory.
    ///
    /// # Errors
    /// That step could not be written; an earlier save failed, if saves are required.
    pub fn finish_step(&mut self, step: u64, monitor: &mut Monitor) -> Result<Option<PathBuf>, Error> {
        let mut reports = self.saver.flush()?;
        // The last report counts: a step that failed was tried twice.
        let own = reports.iter().rposition(|report| match report {
            Report::Saved { step: done, .. } | Report::Failed { step: done, .. } => *done == step,
            _ => false,
        });
        let own = own.map(|at| reports.remove(at));
        self.notify(reports, monitor);
        match own {
            Some(Report::Failed { step, error }) => {
                Err(Error::NotSaved { dir: self.saving.dir.clone(), step, reason: error })
            }
            Some(Report::Saved { step, saved, took }) => {
                let path = saved.path.clone();
                self.notify(vec![Report::Saved { step, saved, took }], monitor);
                Ok(Some(path))
            }
            _ => Ok(None),
        }
    }
}
/// Says what was gone when a step was saved.
fn gone(reopened: Reopened, dir: &Path) -> String {
    match reopened {
        Reopened::Lock => format!(
            "warning: the file .lock in {} was removed or replaced, and was made anew: leave it there, since it keeps a \
             second run from this directory",
            dir.display()
        ),
        _ => format!("warning: {} was gone and was made anew", dir.display()),
    }
}
