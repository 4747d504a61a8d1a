//! A run into checkpoints: when it is saved, and what happens where it cannot be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use unisono_checkpoint::{Contents, Export, Plan, Tensor, Tensors};
use unisono_cluster::{pack, unpack};
use unisono_graph::StateKind;

use crate::observe::events;
use crate::saving::checkpoints::Checkpoints;
use crate::saving::machines::{all_or_none, hand_round, writes};
use crate::saving::policy::Saving;
use crate::saving::tensors::info;
use crate::{Error, Trainer};

impl Trainer {
    /// Saves the run to `dir` every `every` steps of a fit, and at its end. If `every` is 0, only at the end.
    /// The directory is checked at once. On several machines the first two remaining ranks save, each to the
    /// directory that [`dir_of_rank`](crate::dir_of_rank) names.
    ///
    /// # Errors
    /// As [`Trainer::save_to`].
    pub fn checkpoints(&mut self, dir: &Path, every: u64) -> Result<(), Error> {
        self.save_to(Saving::new(dir).every(every))
    }

    /// Sets where and how often the run is saved (Keras's `ModelCheckpoint`). A separate thread writes the
    /// checkpoints. Training waits while the state is copied off the device. It waits for the disk only at
    /// the end of a fit, or if a checkpoint that must be kept is waiting and another one is due.
    ///
    /// # Errors
    /// The directory cannot be written, or another run uses it. On several machines, the directory has no
    /// name, as `/` has none, so the other ranks' directories cannot be named after it. The metric of
    /// [`Saving::keep_best`] does not exist. An adapter cannot be probed. An observer would overwrite the
    /// directory's final model, lock file or checkpoints.
    pub fn save_to(&mut self, mut saving: Saving) -> Result<(), Error> {
        let note = saving.settle(&self.plan.parts.objective().metrics)?;
        self.monitor.check_files_beside(&saving.dir)?;
        note.iter().for_each(|note| self.monitor.note(note));
        // Checkpoints name the classes. Probing now delays no step.
        self.replica_set.classes.probed()?;
        // The directory may be the one that is open. Observers are told what became of the saves to it.
        self.durable();
        let before = self.saver.take().map(|saver| (saver.policy(), saver.resumption()));
        let opened = Checkpoints::open(saving, self.cluster());
        let (opened, problem) = match (opened, &before) {
            // The run is saved on where it was saved so far.
            (Err(error), Some((saving, _))) => {
                (Checkpoints::open(saving.clone(), self.cluster()), Some(error))
            }
            (opened, _) => (opened, None),
        };
        let resumption = before.map(|(_, resumption)| resumption).unwrap_or_default();
        self.saver = Some(opened?.with(resumption));
        problem.map_or(Ok(()), Err)
    }

    /// Returns what a checkpoint contains: the history, and everything that the next step depends on.
    ///
    /// # Errors
    /// The replicas fail, or their states differ. [`Error::Stopped`] if a resumed run was asked to stop
    /// before it was known whether its data are those of the run.
    pub fn contents(&mut self) -> Result<Contents, Error> {
        self.contents_into(Contents::default())
    }

    /// Returns [`Trainer::contents`] in the memory of earlier ones.
    fn contents_into(&mut self, spare: Contents) -> Result<Contents, Error> {
        // What is saved is what all replicas have.
        self.check_before_leaving()?;
        // Machines may have to read together: what may fail on one of them comes behind.
        let mut contents = self.tensors_on_devices(spare)?;
        self.content_for_checkpoint()?;
        self.state.classes = self.replica_set.saved_classes()?;
        self.state.save(&mut contents)?;
        Ok(contents)
    }

    /// Reads the model and what the optimizer keeps off the devices, into the memory of earlier contents.
    fn tensors_on_devices(&mut self, spare: Contents) -> Result<Contents, Error> {
        let model = self.tensors_into(&[StateKind::Parameter, StateKind::Statistic], spare.model)?;
        let optimizer = self.tensors_into(&[StateKind::Optimizer], spare.optimizer)?;
        Ok(Contents { model, optimizer, ..Contents::default() })
    }

    /// Returns the SHA-256 of the run's state. It covers the names, shapes and bytes of parameters,
    /// statistics, optimizer state and carries (state that a model passes from batch to batch). It also
    /// covers the position in the data, the samples skipped so far, the loss scale if there is one, which
    /// phase's turn it is, the learning rates that callbacks have set, and whether a callback has ended the
    /// run. It does not cover settings and data; [`Trainer::identity`] does.
    ///
    /// # Errors
    /// The replicas fail.
    pub fn state_sha256(&mut self) -> Result<String, Error> {
        self.check_before_leaving()?;
        let mut contents = self.tensors_on_devices(Contents::default())?;
        contents.carries = self.state.digested_tensors()?;
        Ok(contents.state_sha256(&self.state.digested()))
    }

    /// Removes the checkpoints of an earlier run from the directory, to start a new run in it, and those that
    /// other ranks have stored next to it on the same machine. On several machines all ranks call it.
    ///
    /// # Errors
    /// A checkpoint cannot be removed.
    pub fn clear_checkpoints(&mut self) -> Result<(), Error> {
        self.saver.as_mut().map_or(Ok(()), Checkpoints::clear)
    }

    /// Saves the run now, and waits until the checkpoint is durable. Returns the checkpoint's directory.
    ///
    /// # Errors
    /// It cannot be written. The errors of [`Trainer::contents`].
    pub fn save(&mut self) -> Result<Option<PathBuf>, Error> {
        self.save_behind()?;
        let step = self.steps();
        let Some(saver) = &mut self.saver else {
            self.monitor.note_once(
                "note: nothing is saved: Trainer::save_to or Trainer::checkpoints sets a directory",
            );
            return Ok(None);
        };
        saver.finish_step(step, &mut self.monitor)
    }

    /// Writes the final model into the checkpoint directory, as [`Trainer::export`] does:
    /// `model.safetensors`, and `model.json` unless the model has layers of your own. Returns the path of the
    /// weights. On several machines all ranks call this, and the first two remaining ones write.
    ///
    /// # Errors
    /// A file cannot be written, on any rank. The replicas fail.
    pub fn save_model(&mut self) -> Result<Option<PathBuf>, Error> {
        let saved = self.save_model_here();
        // Whoever has nothing to write waits for those who do.
        self.agree(saved)
    }

    fn save_model_here(&mut self) -> Result<Option<PathBuf>, Error> {
        if !self.cluster().is_alone() {
            self.check_before_leaving()?;
        }
        if self.saver.is_none() {
            return Ok(None);
        }
        let is_writer = writes(self.cluster());
        // What others write they may have to read together with this machine.
        if !is_writer && !self.replica_set.replicas.reads_together() {
            return Ok(None);
        }
        let (model, description) = self.described()?;
        let export = Export::default().description(description);
        let write = |c: &Checkpoints| c.saver.with_store(|store| store.export_model(&model, &export));
        let exported = self.saver.as_ref().filter(|_| is_writer).map(write).transpose()?;
        Ok(exported.map(|exported| exported.weights))
    }

    /// Saves if the interval or a callback asks for it and this step is not saved yet. Returns whether the
    /// fit was asked to stop.
    ///
    /// # Errors
    /// Of the replicas. A save could not be written, if saves are required.
    pub(super) fn save_when_due(&mut self) -> Result<bool, Error> {
        let is_asked = std::mem::take(&mut self.callbacks.save);
        // On several machines this agrees on the stop, too.
        let is_alone = self.cluster().is_alone();
        let mut stop = is_alone && self.monitor.stop.is_asked();
        if stop {
            self.note_stop();
        }
        self.hand_over_when_due(false, is_asked)?;
        if !is_alone && self.monitor.stop.is_asked() {
            stop = true;
            self.note_stop();
        }
        Ok(stop)
    }

    /// Saves the step before the first one of a fit, if a callback has asked for it.
    ///
    /// # Errors
    /// As [`Trainer::save_when_due`].
    pub(super) fn save_at_begin(&mut self) -> Result<(), Error> {
        let is_asked = std::mem::take(&mut self.callbacks.save);
        match self.agree_on_saving(is_asked, Ok(()))? {
            true => self.hand_over_when_due(false, true),
            false => Ok(()),
        }
    }

    /// Saves the last step of a fit unless it is saved already, and waits until it is durable.
    ///
    /// # Errors
    /// As [`Trainer::save_when_due`]. The last step could not be written, whether saves are required or not.
    pub(super) fn save_at_end(&mut self) -> Result<(), Error> {
        self.hand_over_when_due(true, false)?;
        let step = self.steps();
        let finished = match &mut self.saver {
            Some(saver) => saver.finish_step(step, &mut self.monitor).map(drop),
            None => Ok(()),
        };
        self.agree_on_saving(false, finished).map(drop)
    }

    /// Hands the run over to be written, if that is due or a callback has asked for it. A run whose data are
    /// not yet found to be its own trains on, and is handed over when they are. Where it is this step that is
    /// to be saved and no later one will do, it waits: at the end of a fit, where a callback asks, and for
    /// the best epochs and the steps that are kept. Observers are told what became of earlier saves.
    fn hand_over_when_due(&mut self, end: bool, is_asked: bool) -> Result<(), Error> {
        if end {
            self.content_at_end()?;
        } else {
            self.content_within(Duration::ZERO)?;
        }
        let is_asked = is_asked || self.save_was_put_off();
        let (due, saves) = match self.is_due(end, is_asked) {
            Ok(due) => (due, Ok(())),
            Err(error) => (false, Err(error)),
        };
        let may_wait = !end && !is_asked && self.is_due_by_interval_alone();
        if !self.agree_on_saving(due, saves)? || (may_wait && self.puts_save_off()) {
            return Ok(());
        }
        let saved = match self.save_step(is_asked) {
            Err(Error::Stopped) => {
                self.note_unsaved();
                Ok(())
            }
            result => result,
        };
        match self.cluster().is_alone() {
            true => saved,
            false => self.agree_on_saving(false, saved).map(drop),
        }
    }

    /// Returns whether a later step would do as well as this one for what is to be saved.
    fn is_due_by_interval_alone(&self) -> bool {
        let (step, history) = (self.steps(), &self.state.history);
        self.saver.as_ref().is_none_or(|saver| !saver.is_due_itself(step, history))
    }

    /// Returns whether this step is to be saved. Observers are told what became of earlier saves.
    fn is_due(&mut self, end: bool, is_asked: bool) -> Result<bool, Error> {
        let step = self.steps();
        let Some(saver) = &mut self.saver else { return Ok(false) };
        let reports = saver.saver.poll()?;
        saver.notify(reports, &mut self.monitor);
        if end && self.lacks_identity(step) {
            // The last checkpoint says what its run is, so the step is saved again.
            self.saver.iter_mut().for_each(|saver| saver.epoch_ended(step));
        }
        let is_due = |saver: &Checkpoints| saver.are_due(step, &self.state.history, end || is_asked);
        Ok(writes(self.cluster()) && self.saver.as_ref().is_some_and(is_due))
    }

    /// Tells observers that the run was asked to stop.
    pub(super) fn note_stop(&mut self) {
        let step = self.steps();
        self.monitor.note(&format!("asked to stop: step {step} is the last"));
    }

    /// Waits until all saves are durable or have failed. Observers are told the result of each save.
    ///
    /// # Errors
    /// A save failed, and saves are required.
    pub fn finish_saves(&mut self) -> Result<(), Error> {
        if let Some(saver) = &mut self.saver {
            let reports = saver.saver.flush()?;
            saver.notify(reports, &mut self.monitor);
        }
        Ok(())
    }

    /// Copies the run off the devices and returns. The copy is written while training continues, as a fit
    /// does between two epochs. Use it in your own training loop, together with [`Trainer::finish_saves`].
    ///
    /// # Errors
    /// The copy fails. An earlier save failed, and saves are required. The errors of [`Trainer::contents`].
    pub fn save_behind(&mut self) -> Result<(), Error> {
        self.save_step(false)
    }

    /// Saves as [`Trainer::save_behind`] does. If it is this step `itself` that is to be saved, no later
    /// one takes its place on a slow disk.
    fn save_step(&mut self, itself: bool) -> Result<(), Error> {
        let Some(saver) = self.saver.as_ref().filter(|_| writes(self.cluster())) else {
            // What other machines save is what all have.
            return self.help_to_save();
        };
        let _span = events::save_span(self.state.position.step);
        let spare = saver.saver.spare();
        let contents = self.contents_into(spare)?;
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let step = self.state.position.step;
        saver.hand_over(step, contents, &self.state.history, itself)?;
        self.was_saved(step);
        Ok(())
    }

    /// Does this machine's part of a save that other machines write.
    fn help_to_save(&mut self) -> Result<(), Error> {
        if !self.cluster().is_alone() {
            self.check_before_leaving()?;
        }
        if self.replica_set.replicas.reads_together() {
            self.tensors_of(&[StateKind::Optimizer])?;
        }
        Ok(())
    }

    /// Returns the step of the newest checkpoint of the run that is known to be complete, or the step from
    /// which the run was resumed. `None` if there is not a checkpoint, or if this machine writes none.
    ///
    /// After a fit this is the last step. There is one exception: a resumed run that was asked to stop before
    /// it was known whether its data are those of the run.
    pub fn saved_step(&self) -> Option<u64> {
        self.saver.as_ref().filter(|_| writes(self.cluster())).and_then(Checkpoints::durable)
    }

    /// Returns the step and the directory of the best checkpoint by [`Saving::keep_best`]. `None` if
    /// `keep_best` was not set, or if nothing was measured yet. On several machines it is the best of those
    /// that this machine has.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn best(&self) -> Result<Option<(u64, PathBuf)>, Error> {
        self.saver.as_ref().map_or(Ok(None), Checkpoints::best)
    }

    /// Loads parameters and statistics of the best checkpoint, to use or export them after training: those
    /// with which it was evaluated, so averages where these are in use. Returns its step. Position, history
    /// and optimizer stay as they are: training that continues from here is another run. On several machines
    /// all ranks call this, and load the best checkpoint that any of them has.
    ///
    /// # Errors
    /// There is no such checkpoint, or it cannot be read or is damaged. Nothing has changed then.
    pub fn load_best(&mut self) -> Result<u64, Error> {
        let loaded = self.load_best_here();
        self.agree(loaded)
    }

    fn load_best_here(&mut self) -> Result<u64, Error> {
        let none = || Error::setting("best", "no checkpoint was kept as the best: see Saving::keep_best");
        let saver = self.saver.as_ref().ok_or_else(none)?;
        let own = saver.best()?;
        let (step, weights) = match self.cluster().is_alone() {
            true => {
                let (step, path) = own.ok_or_else(none)?;
                (step, self.used_in(step, &path, saver.load(&path)?)?)
            }
            false => self.best_of_all(own)?.ok_or_else(none)?,
        };
        self.take_weights(|model| Plan::new().take(&weights, model))?;
        Ok(step)
    }

    /// Gives all ranks the step and the weights of the best checkpoint that any of them has.
    fn best_of_all(&self, own: Option<(u64, PathBuf)>) -> Result<Option<(u64, Tensors)>, Error> {
        let (cluster, Some(saver)) = (self.cluster(), &self.saver) else { return Ok(None) };
        let step = own.as_ref().map(|(step, _)| step.to_le_bytes());
        let records = cluster.gather("the best checkpoints", step.as_ref().map_or(&[], |step| &step[..]))?;
        let step_of = |record: &[u8]| record.try_into().ok().map(u64::from_le_bytes);
        let steps = records.iter().filter_map(|(_, record)| step_of(record));
        let Some(best) = saver.best_of(steps, &self.state.history) else { return Ok(None) };
        let holder = records.iter().find(|(_, record)| step_of(record) == Some(best));
        let holder = holder.map_or(0, |(rank, _)| *rank);
        let read = match &own {
            Some((_, path)) if holder == cluster.rank() => saver
                .load(path)
                .and_then(|contents| self.used_in(best, path, contents))
                .map_err(std::io::Error::other),
            _ => Ok(Tensors::default()),
        };
        let read = all_or_none(cluster, read, saver.dir())?;
        let parts: Vec<&[u8]> =
            read.iter().flat_map(|(name, tensor)| [name.as_bytes(), tensor.bytes()]).collect();
        let packed = hand_round(cluster, holder, pack(&parts))?;
        let states = self.plan.programs.train().states();
        let mut weights = Tensors::default();
        for [name, bytes] in unpack(&packed).unwrap_or_default().as_chunks::<2>().0 {
            let name = String::from_utf8_lossy(name).into_owned();
            if let Some(state) = states.iter().find(|state| state.name == name) {
                let own = info(&state.ty);
                weights.insert(name, Tensor::new(own.dtype, own.shape, bytes.to_vec())?);
            }
        }
        Ok(Some((best, weights)))
    }
}
