//! Training over epochs: batches in, steps, epochs and checkpoints out.

use unisono_data::{Batch, Batches, DataError, Loader, Position};
use unisono_graph::InputKind;

use crate::compile::feed::{self, Names};
use crate::compile::programs::ProgramId;
use crate::objective::running::Running;
use crate::trainer::step::Started;
use crate::{Epoch, Error, Evaluation, History, Step, Trainer};

/// A batch as it came from the loader, and what the loader said by then.
struct Pulled {
    batch: Result<Option<Batch>, DataError>,
    position: Position,
    /// The samples that were skipped since the batch before, with the reasons.
    skipped: Vec<(u64, DataError)>,
}

/// The next batch, with its step if that was started before its turn.
struct Next {
    pulled: Pulled,
    started: Option<Started>,
}

impl Pulled {
    fn next(batches: &mut Batches) -> Next {
        let batch = batches.next().transpose();
        let (position, skipped) = (Batches::position(batches), batches.take_skipped());
        Next { pulled: Self { batch, position, skipped }, started: None }
    }
}

impl Trainer {
    /// Trains until `epochs` epochs are done, and returns the history of the whole run. **Epochs count from
    /// the start of the run**: calling it again with the same number, or after a resume, trains only the
    /// missing epochs.
    ///
    /// The loader says what to read and in which order. The batch size is the trainer's. If the loader has
    /// another one, it is ignored and the observers are told. After each epoch the model is evaluated on
    /// `validation`. The fields of the validation data are checked before the first step.
    ///
    /// To end a fit early, use [`Trainer::stop_on`] or a [`Callback`](crate::Callback)
    /// ([`Trainer::stopped`]). A stop is not an error. The fit ends after the current step without waiting
    /// for more data, saves the run, and returns the history so far. If an evaluation was in progress, it
    /// ends after its current batch, and the next fit repeats it.
    ///
    /// # Errors
    /// Before the first step: the checkpoint directory has a later checkpoint of another run, or the
    /// validation data do not fit the model.
    ///
    /// After that: the first error of the data, of a step or of an evaluation. A failed step has changed
    /// nothing. If an evaluation failed, the epoch has not ended, and the next fit starts with this
    /// evaluation, also after a resume. Everything done before the error is saved if the run has a checkpoint
    /// directory, unless the error comes from the replicas or the checkpoints. The observers are told the
    /// result of all saves before the error is returned.
    ///
    /// After a resume, data that are not those of the run are an error that names the samples. It comes once
    /// the data are hashed, at the latest at the end of an epoch. Nothing is saved before.
    ///
    /// [`Error::NotSaved`] at the end, if the last step could not be saved to the checkpoint directory.
    pub fn fit(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<&History, Error> {
        let fitted = self.fit_here(train, validation, epochs);
        // An error of the checkpoints says itself what is not saved.
        if fitted.as_ref().is_err_and(|error| !matches!(error, Error::Checkpoint(_))) {
            self.durable();
        }
        let fitted = self.agree(fitted);
        // What machines have agreed on ends this fit; the next one asks each machine's own stop again.
        if !self.cluster().is_alone() {
            self.monitor.stop.reset();
        }
        fitted?;
        Ok(&self.state.history)
    }

    /// Trains as [`Trainer::fit`]. On several machines an error that only some of them have ends it on all.
    fn fit_here(&mut self, train: &Loader, validation: Option<&Loader>, epochs: u32) -> Result<(), Error> {
        self.check_takes_batches()?;
        self.saver.as_ref().map_or(Ok(()), |saver| saver.check_dir(self.state.position.step))?;
        self.take_classes(train, validation)?;
        self.same_data(train)?;
        self.same_order(train, epochs)?;
        self.begin_together(train, validation, epochs)?;
        self.notify_start();
        if self.has_ended(epochs) {
            self.monitor.ended();
            return self.monitor.check();
        }
        let before = self.steps();
        let result = match self.begin(train, validation, epochs) {
            Ok(batches) => {
                let result = self.fit_to_the_end(batches, train, validation, epochs);
                let result = self.agree(result);
                if let Err(error) = &result {
                    self.save_despite(error);
                }
                result
            }
            Err(error) => Err(error),
        };
        if result.is_ok() && self.steps() > before {
            self.note_kept(epochs);
        }
        self.monitor.ended();
        match result {
            Ok(()) => {}
            Err(Error::Stopped) => self.note_stop(),
            Err(error) => return Err(error),
        }
        self.save_at_end()?;
        self.report_together()?;
        self.monitor.check()
    }

    /// Whether a callback has ended the run. Tells the observers, also where all epochs are done or the run
    /// was asked to stop before.
    fn has_ended(&mut self, epochs: u32) -> bool {
        let done = self.position().epoch;
        if let Some(stopped) = self.stopped().cloned() {
            self.monitor.note(&format!(
                "note: nothing to do: the run was ended after step {} by {}: {} (call Trainer::go_on to continue it)",
                stopped.steps, stopped.by, stopped.reason
            ));
            return true;
        }
        if done >= epochs {
            self.monitor.note(&format!(
                "note: nothing to do: {done} epochs are done and {epochs} are requested (epochs count from the start of the run)"
            ));
        } else if self.monitor.stop.is_asked() {
            self.monitor
                .note("note: the run was asked to stop before this fit (call Stop::reset to continue)");
        }
        false
    }

    /// Prepares the programs of a fit, checks that its evaluations can work, and starts its batches.
    fn begin(&mut self, train: &Loader, validation: Option<&Loader>, epochs: u32) -> Result<Batches, Error> {
        self.monitor.check()?;
        self.trust_the_end()?;
        let loader = self.reader(train);
        self.prepare_training(loader.samples_per_epoch())?;
        if let Some(validation) = validation {
            self.can_evaluate(validation).map_err(Error::of_validation)?;
        }
        [Some(train), validation].into_iter().flatten().for_each(|loader| self.note_batch(loader));
        self.note_carries(train);
        self.note_fit(&loader, validation, epochs);
        (self.callbacks.save, self.callbacks.pause) = (false, None);
        if self.position().epoch < epochs {
            self.call(0, self.position().epoch, |callback, run| callback.fit_begins(run))?;
            self.save_at_begin()?;
        }
        Ok(loader.epochs(self.state.position.data.clone(), epochs)?)
    }

    /// Does the steps of all batches. Steps that replicas made wrongly are made again.
    fn fit_to_the_end(
        &mut self,
        mut batches: Batches,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Error> {
        let first = self.first_to_make_again();
        loop {
            let mut result = self.fit_batches(&mut batches, train, validation, epochs);
            self.monitor.input = Some(batches.seen());
            // What leaves the fit is what all replicas have.
            if matches!(result, Ok(()) | Err(Error::Stopped)) {
                result = self.check_before_leaving().and(result);
            }
            match result {
                Err(Error::RolledBack { step, .. }) if step >= first => {
                    (self.callbacks.save, self.callbacks.pause) = (false, None);
                    batches = self.reader(train).epochs(self.state.position.data.clone(), epochs)?;
                }
                result => return result,
            }
        }
    }

    /// Returns the first step that this fit may make again. Steps that this process made before were on
    /// batches that it does not know; those before a resume were the same run's.
    fn first_to_make_again(&self) -> u64 {
        let resumed = self.saver.as_ref().is_some_and(|saver| saver.resumption().step == Some(self.steps()));
        if resumed { 0 } else { self.steps() }
    }

    /// Returns a loader as the trainer reads it: in batches of the global batch's size, until the run is
    /// asked to stop.
    pub(super) fn reader(&self, loader: &Loader) -> Loader {
        let loader = loader.clone().batch(self.state.settings.global_batch);
        self.own_rows(loader.stop_on(self.monitor.stop.flag()))
    }

    /// Returns the number of samples in an epoch of a loader, as the trainer reads it.
    pub(super) fn samples_of(&self, loader: &Loader) -> u64 {
        self.reader(loader).samples_per_epoch()
    }

    /// Tells observers once that a loader's own batch size is not used.
    fn note_batch(&mut self, loader: &Loader) {
        let global_batch = self.state.settings.global_batch;
        let Some(own) = loader.explicit_batch_size().filter(|own| *own != global_batch) else { return };
        self.monitor.note_once(&format!(
            "note: the loader's batch size of {own} is ignored: a fit uses the trainer's global batch of {global_batch}"
        ));
    }

    /// Tells observers once that rows which are drawn anew do not continue those of the batch before.
    fn note_carries(&mut self, loader: &Loader) {
        let carries =
            self.plan.program(ProgramId::Train).inputs().iter().any(|input| input.kind == InputKind::Carry);
        if carries && loader.is_shuffled() {
            self.monitor.note_once(
                "warning: the model is stateful, but the loader shuffles: rows do not continue those of the batch before \
                 (Loader::lanes makes rows that do)",
            );
        }
    }

    /// Saves the steps before an error of the data or of a number, if it is the same on all machines.
    fn save_despite(&mut self, error: &Error) {
        if self.are_whole(error)
            && self.steps() > 0
            && let Err(second) = self.save_at_end()
        {
            self.monitor.note(&format!("warning: the steps before the error are not saved: {second}"));
        }
    }

    /// Does the steps of all batches, and ends epochs where they end. A step that is in flight when another
    /// error comes up is recorded too, and callbacks are told: it has happened.
    fn fit_batches(
        &mut self,
        batches: &mut Batches,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Error> {
        let (mut next, mut last) = (None, None);
        let result = self.fit_on(batches, (&mut next, &mut last), train, validation, epochs);
        if let Some(Next { pulled, started: Some(started) }) = next
            && let Pulled { batch: Ok(Some(batch)), position, skipped } = pulled
            && self.replica_set.replicas.in_flight() > 0
        {
            let step = self.end_step(&batch, started, Some(train.source()), feed::behind(&batch));
            if let Ok(step) = step {
                let step = Step { epochs, of: self.samples_of(train), ..step };
                self.monitor.step(&step);
                self.state.position.skip(skipped.iter().map(|(sample, _)| *sample));
                // Otherwise the next fit begins with the end of the epoch.
                if position.epoch == step.epoch {
                    self.state.position.data.position = position;
                }
                // The first error counts.
                let after = position.epoch;
                let _ = self.call(1, after, |callback, run| callback.step_ended(&step, run));
                last = Some(batch);
            }
        }
        // A stop may come while the fit waits for data, evaluates or saves.
        let is_stopped = self.cluster().is_alone() && self.monitor.stop.is_asked();
        let last = last.filter(|_| is_stopped && matches!(result, Ok(()) | Err(Error::Stopped)));
        last.map_or(Ok(()), |batch| self.audit_at_stop(&batch)).and(result)
    }

    /// Does the steps of all batches. `next` is the batch that was taken before its turn, with its step if
    /// that is in flight. `last` is the batch of the last step, unless a stop has had it audited.
    fn fit_on(
        &mut self,
        batches: &mut Batches,
        (next, last): (&mut Option<Next>, &mut Option<Batch>),
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Error> {
        let of = self.samples_of(train);
        let names = Some(train.source());
        let start = self.position();
        let mut carried = (start.sample > 0).then_some(start.epoch);
        loop {
            let Next { pulled, started } = next.take().unwrap_or_else(|| Pulled::next(batches));
            let batch = pulled.batch?;
            pulled.skipped.iter().for_each(|(_, reason)| self.monitor.note(&format!("skipped {reason}")));
            self.state.position.skip(pulled.skipped.iter().map(|(sample, _)| *sample));
            // The last samples of an epoch may all have been skipped, and the evaluation after an epoch may
            // have failed before.
            let reached = batch.as_ref().map_or(pulled.position.epoch, |batch| batch.epoch);
            let ended = self.end_epochs(reached, validation)?;
            let Some(batch) = batch else {
                self.state.position.data.position = pulled.position;
                return Ok(());
            };
            let started = match started {
                Some(started) => started,
                None => {
                    // A callback may end a fit at its beginning, too.
                    if (ended && self.save_when_due()?) || self.is_ended() {
                        self.note_end();
                        return Ok(());
                    }
                    self.note_first_batch(&batch, train)?;
                    if carried.replace(batch.epoch) != Some(batch.epoch) {
                        self.state.carries.reset();
                    }
                    // No later audit would find what is wrong from here on.
                    if batch.after.epoch >= epochs {
                        self.compile_for(&batch)?;
                        let phase = self.phase_for(batch.epoch)?.unwrap_or(0);
                        // A witness that is busy would leave the last step out.
                        self.hear_witness(true)?;
                        self.replica_set.replicas.audit_next(self.plan.train_index(&batch, phase));
                    }
                    self.start_step(&batch, names)?
                }
            };
            if started.is_in_flight() && self.may_overlap(&batch) {
                *next = Some(self.look_ahead(batches, &batch, epochs, names));
            }
            let mut step = self.end_step(&batch, started, names, feed::behind(&batch))?;
            if let Some(before) = last.take() {
                batches.recycle(before);
            }
            self.remember_samples(&batch, train);
            let batch = &*last.insert(batch);
            if batch.after.epoch >= epochs {
                self.hear_witness(true)?;
            }
            // A step that was skipped takes back the one that was started behind it, as an optimizer counts.
            if self.replica_set.replicas.in_flight() == 0 {
                next.iter_mut().for_each(|next| next.started = None);
            }
            (step.epochs, step.of) = (epochs, of);
            self.monitor.step(&step);
            self.call(1, batch.after.epoch, |callback, run| callback.step_ended(&step, run))?;
            self.end_epochs(batch.after.epoch, validation)?;
            self.state.position.data.position = pulled.position;
            self.monitor.check()?;
            // What needs the state, and the fit's end, wait for a step that is in flight.
            if self.replica_set.replicas.in_flight() == 0 {
                let over = self.is_over();
                if over {
                    self.audit_at_stop(batch)?;
                    *last = None;
                }
                // A callback may have ended it on another machine.
                if self.save_when_due()? || over || self.is_ended() {
                    self.note_end();
                    return Ok(());
                }
            }
        }
    }

    /// Takes the batch behind one whose step is in flight, and starts its step too, if nothing comes between
    /// the two.
    fn look_ahead(&mut self, batches: &mut Batches, batch: &Batch, epochs: u32, names: Names<'_>) -> Next {
        let mut next = Pulled::next(batches);
        if let Ok(Some(following)) = &next.pulled.batch
            && following.epoch == batch.epoch
            && following.after.epoch < epochs
        {
            next.started = self.start_ahead(following, names);
        }
        next
    }

    /// Ends the epochs before `reached`. Returns whether there were any.
    fn end_epochs(&mut self, reached: u32, validation: Option<&Loader>) -> Result<bool, Error> {
        let before = self.position().epoch;
        while self.position().epoch < reached {
            self.end_epoch(self.position().epoch, validation)?;
        }
        Ok(before < reached)
    }

    /// Ends an epoch: evaluates, and adds to the history. An epoch ends completely or not at all, so
    /// everything that may fail is done first.
    fn end_epoch(&mut self, epoch: u32, validation: Option<&Loader>) -> Result<(), Error> {
        let metrics = &self.plan.parts.objective().metrics;
        let train = self.state.running.finish(metrics);
        self.monitor.panicked = self.monitor.panicked.take().or(self.state.running.take_panic());
        self.monitor.unmeasured("an epoch of training", &self.state.running.unmeasured(metrics, &train));
        let validation = validation.map(|loader| self.evaluate_audited(loader)).transpose();
        let validation = validation.map_err(Error::of_validation)?;
        if let Some(loss) = validation.as_ref().map(|measured| measured.loss).filter(|loss| !loss.is_finite())
        {
            self.monitor.note(&format!("warning: the validation loss of epoch {epoch} is {loss}"));
        }
        let steps = self.steps();
        let ended = Epoch { epoch, steps, train, validation };
        self.state.history.push(ended.clone().without_tables());
        let before = self.state.control.clone();
        self.callbacks.keeps_before = true;
        let called = match self.observe() {
            Ok(()) => self.call(0, epoch + 1, |callback, run| callback.epoch_ended(&ended, run)),
            Err(error) => Err(error),
        };
        self.callbacks.keeps_before = false;
        let tensors = self.callbacks.before.take();
        match called {
            Ok(()) => {}
            // The whole state is that of the step that the run went back to.
            Err(error @ Error::RolledBack { .. }) => return Err(error),
            Err(error) => {
                self.state.history.pop();
                self.state.control = before;
                self.write_states(&tensors.unwrap_or_default())?;
                self.restore_callbacks()?;
                self.observe()?;
                return Err(error);
            }
        }
        self.state.running = Running::default();
        self.state.position.data.position = Position { epoch: epoch + 1, sample: 0 };
        self.saver.iter_mut().for_each(|saver| saver.epoch_ended(steps));
        self.notify_epoch(&ended)
    }

    /// Evaluates within a fit: the first batch is audited, because what is wrong in an evaluation alone would
    /// change schedules, what callbacks decide and what counts as the best.
    pub(super) fn evaluate_audited(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        for first in std::iter::once(0).chain(self.plan.lengths.iter().map(|length| length.first)) {
            self.replica_set.replicas.audit_next(first + ProgramId::Evaluate.index());
        }
        self.evaluate(loader)
    }

    /// Lets the optimizer see the history.
    pub(super) fn observe(&mut self) -> Result<(), Error> {
        let observed = self.plan.parts.observe(&self.state.history);
        observed.map_err(|problem| Error::setting("optimizer", problem))
    }
}
