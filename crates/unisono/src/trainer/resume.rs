//! A run out of a checkpoint: it is compared with this trainer first, and then applied.

use std::path::{Path, PathBuf};

use unisono_checkpoint::Tensor;
use unisono_data::{Loader, Position};

use crate::run::identity::RunIdentity;
use crate::run::section::{Difference, Section};
use crate::run::state::SavedRun;
use crate::saving::tensors::in_order;
use crate::trainer::identity::DataHash;
use crate::trainer::trust::Trust;
use crate::{Error, Trainer};

/// Where a resumed run continues.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Resumed {
    /// The number of steps done.
    pub step: u64,
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The newer checkpoints that are not complete, each with the reason.
    pub skipped: Vec<String>,
    /// The differences between the run and this trainer that a forced resume has accepted. The data are not
    /// compared here, because only a fit has them.
    pub differs: Vec<String>,
}

impl Trainer {
    /// Resumes the run from the newest complete checkpoint of its directory (Keras's `BackupAndRestore`).
    /// Returns which checkpoint it was, and which broken ones were skipped. If there is not a checkpoint, the
    /// run starts from the beginning.
    ///
    /// # Errors
    /// The checkpoint belongs to another model, or the run had other settings, other data or another numeric
    /// class. (The result would then be that of neither run.) There are checkpoints, but none is complete.
    pub fn resume(&mut self) -> Result<Option<Resumed>, Error> {
        self.resume_newest(false)
    }

    /// Resumes like [`Trainer::resume`], but accepts another global batch, number of shards, seed or loss,
    /// and other data or adapters. [`Resumed::differs`] lists the differences. Observers are told the
    /// differences of the data. The result is then neither that of the saved run nor that of a new one.
    ///
    /// # Errors
    /// The checkpoint belongs to another model, optimizer or metrics, or was written by a later version. The
    /// optimizer cannot continue from the checkpoint's history. There are checkpoints, but none is complete.
    /// The replicas fail.
    pub fn force_resume(&mut self) -> Result<Option<Resumed>, Error> {
        self.resume_newest(true)
    }

    fn resume_newest(&mut self, force: bool) -> Result<Option<Resumed>, Error> {
        let Some(saver) = &self.saver else {
            return Err(Error::setting("resume", "no checkpoint directory is set"));
        };
        saver.share_newest(self.cluster())?;
        let Some(mut loaded) = saver.newest()? else {
            let note = format!("note: {}", saver.none_found());
            self.monitor.note(&note);
            return Ok(None);
        };
        let run = SavedRun::load(&loaded.path, loaded.step, &loaded.contents)?;
        if self.steps() > 0 {
            let own = self.steps();
            self.monitor.note(&format!(
                "note: resume replaces the {own} steps of this trainer by the run in {}, which had {}",
                loaded.path.display(),
                loaded.step
            ));
        }
        // The run has all tensors of the file. Those that remain are for the state's digest.
        loaded.contents.carries = run.state.digested_tensors()?;
        // Other settings come first, because they explain the rest. Tensors that do not fit come before the
        // carries, which then do not fit either.
        check(&loaded.path, self.state.settings.differences(&run.state.settings), force)?;
        let states = self.plan.programs.train().states();
        let tensors = in_order(&loaded.contents, states).map_err(|report| Error::Resume {
            path: loaded.path.clone(),
            problem: format!("does not fit the model and its optimizer:\n{report}"),
        })?;
        let metrics =
            run.state.running.problem(&self.plan.parts.objective().metrics, &self.plan.metric_widths());
        if let Some(problem) = metrics {
            return Err(Error::Resume { path: loaded.path, problem });
        }
        let mut differs = self.compare(&loaded.path, &run, force)?;
        differs.extend(self.compare_identity(&loaded.path, &run, force)?);
        // It is the last that may refuse: the optimizer has seen the saved history then.
        self.optimizer_goes_on(&loaded.path, &run)?;
        let before = run.state.identity.clone();
        let is_open = before.sha256.is_none();
        let state = is_open.then(|| loaded.contents.state_sha256(&run.state.digested()));
        self.apply(run, &tensors)?;
        self.state.identity.resumed_state = state;
        self.go_on_as(&before, &differs);
        let step = self.steps();
        let trusted = self.saver.as_ref().map_or(Ok(true), |saver| saver.is_trusted(step))?;
        self.trust = if trusted { Trust::Begins } else { Trust::Resumed };
        self.saver.iter_mut().for_each(|saver| saver.resumed(step, force));
        self.monitor.resumed(step);
        let skipped = loaded.skipped.iter().map(ToString::to_string).collect();
        Ok(Some(Resumed { step, path: loaded.path, skipped, differs }))
    }

    /// Compares a saved run with this trainer. Returns what differs where that is forced.
    ///
    /// # Errors
    /// The first difference that is not forced or cannot be.
    fn compare(&mut self, path: &Path, run: &SavedRun, force: bool) -> Result<Vec<String>, Error> {
        self.state.classes = self.replica_set.saved_classes()?;
        if run.classes().lacks_probe() {
            self.monitor.note(
                "note: the checkpoint names its adapters but not what a probe of them gave: they are compared by their names",
            );
        }
        check(path, self.state.differences(&run.state), force)
    }

    /// Compares what a saved run is with what this trainer is made of. Returns what differs where that is
    /// forced.
    ///
    /// # Errors
    /// All that differs, where that is not forced.
    fn compare_identity(&self, path: &Path, run: &SavedRun, force: bool) -> Result<Vec<String>, Error> {
        let problems = self.state.identity.problems(&run.state.identity);
        if force || problems.is_empty() {
            return Ok(problems);
        }
        Err(Error::Resume { path: path.into(), problem: problems.join("; ") })
    }

    /// Notes what a resumed run was, where it is not known or not what this one is.
    fn go_on_as(&mut self, before: &RunIdentity, differs: &[String]) {
        if !before.is_known() {
            let what = "the checkpoint does not say what its run is: the model and the optimizer's settings are not compared";
            self.monitor.note(&format!("note: {what}"));
            self.diverge(None, [&[what.to_owned()], differs].concat());
        } else if !differs.is_empty() {
            self.diverge(before.sha256.clone(), differs.to_vec());
        }
    }

    /// Checks that the optimizer can go on from a saved run's history.
    ///
    /// # Errors
    /// The optimizer watches something that the history does not have. The optimizer is then as before.
    fn optimizer_goes_on(&mut self, path: &Path, run: &SavedRun) -> Result<(), Error> {
        let Err(problem) = self.plan.parts.observe(run.history()) else { return Ok(()) };
        self.observe()?;
        Err(Error::Resume {
            path: path.into(),
            problem: format!("the optimizer cannot continue from it: {problem}"),
        })
    }

    /// Takes a saved run's state, and its tensors in the order of the states.
    ///
    /// # Errors
    /// Of the replicas.
    fn apply(&mut self, run: SavedRun, tensors: &[&Tensor]) -> Result<(), Error> {
        // The witness's answer and doubts about replicas would be about steps that the run no longer has.
        self.forget_witnessed();
        self.doubted = None;
        for (index, tensor) in tensors.iter().enumerate() {
            let written = self.replica_set.replicas.write_state(index, tensor.bytes());
            self.check_result(written)?;
        }
        self.replica_set.non_finite = None;
        // What predictions carried was computed with other weights.
        self.using.reset();
        let skipped = run.state.loss_scale.as_ref().map_or(0, |scaling| scaling.skipped);
        self.state.resume(run.state);
        // Without a loss scale, nothing else would know that the optimizer has made fewer steps than the run.
        if self.state.loss_scale.is_none() {
            self.state.position.weightless += skipped;
        }
        // Data that were hashed for another run are compared anew with those of this one.
        self.data_hash = DataHash::default();
        // A step that is made again is compared again.
        self.replica_set.compared = None;
        self.observe()?;
        self.restore_callbacks()
    }

    /// Checks that the data of a resumed run are those it started with.
    pub(super) fn same_data(&mut self, train: &Loader) -> Result<(), Error> {
        let found = train.ask_source("fingerprint", |source| source.fingerprint())?;
        match self.state.data.0.replace(found) {
            // No step was made on other data.
            _ if self.steps() == 0 => Ok(()),
            Some(before) if before != found && self.is_forced() => {
                let differs = format!(
                    "the run was on data with fingerprint {before:016x}, and continues with {found:016x}"
                );
                self.monitor.note(&format!("warning: {differs}"));
                self.diverge(self.state.identity.sha256.clone(), vec![differs]);
                Ok(())
            }
            Some(before) if before != found => {
                self.state.data.0 = Some(before);
                let problem = format!(
                    "the run was on data with fingerprint {before:016x}, not {found:016x}: to train on other \
                     samples, use Trainer::step, or a new trainer with the weights of this one \
                     (Trainer::weights, Trainer::load_tensors)"
                );
                Err(Error::setting("data", problem))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the order and the transforms of a run stay what they are: within an epoch always, and
    /// where a resumed run goes on. A fit that starts with an epoch may have others than the fit before, and
    /// one that has nothing to do any.
    pub(super) fn same_order(&mut self, train: &Loader, epochs: u32) -> Result<(), Error> {
        let Position { epoch, sample } = self.position();
        let found = train.settings();
        if epoch >= epochs {
            self.state.loader.see(&found);
            return self.identify_again(train);
        }
        if let Some(problem) = self.state.loader.problem(&found, sample > 0) {
            if !self.is_forced() {
                return Err(Error::setting("data", problem));
            }
            self.monitor.note(&format!("warning: {problem}"));
            self.diverge(self.state.identity.sha256.clone(), vec![problem]);
        }
        self.state.loader.set(found);
        self.identify_order(train);
        self.identify_data(train)
    }

    /// Whether the run was resumed with other settings or data than it was started with.
    pub(super) fn is_forced(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| saver.resumption().forced)
    }
}

/// Returns what differs where that is forced.
///
/// # Errors
/// The first difference that is not forced or cannot be.
fn check(path: &Path, differences: Vec<Difference>, force: bool) -> Result<Vec<String>, Error> {
    let accepted = |difference: Difference| match force && difference.forcible {
        true => Ok(difference.problem),
        false => Err(Error::Resume { path: path.into(), problem: difference.problem }),
    };
    differences.into_iter().map(accepted).collect()
}
