//! Training over epochs: batches in, steps, epochs and checkpoints out.

use unisono_data::{Batches, Loader, Position};

use crate::compile::feed;
use crate::objective::history::Running;
use crate::trainer::{EVALUATE, TRAIN};
use crate::{Epoch, Error, History, Trainer};

impl Trainer {
    /// Trains until `epochs` epochs are done, counted from the run's start, and returns the whole run's history.
    ///
    /// The loader says what to read and in which order; the batch is the trainer's. After each epoch the model is evaluated
    /// on `validation`, whose fields are compared with the model's before the first step.
    ///
    /// # Errors
    /// Before the first step, where checkpoints go to a directory that holds a later one of another run, or the data held out do
    /// not fit. Else the first error of the pipeline, of a step or of an evaluation. Nothing of a failed step has happened; an epoch whose
    /// evaluation failed has not ended, and the next fit, of this run or one resumed from it, begins with that. What was done
    /// before is saved, where checkpoints go anywhere, unless the error is one of the replicas or of the checkpoints themselves.
    pub fn fit(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<&History, Error> {
        let loader = train.clone().batch(self.settings.global_batch);
        self.may_save()?;
        self.same_data(train)?;
        self.same_order(train, epochs)?;
        self.prepare(TRAIN, loader.samples())?;
        if let Some(validation) = validation {
            self.can_evaluate(validation).map_err(Error::of_validation)?;
        }
        let mut batches = loader.epochs(self.progress.clone(), epochs)?;
        let result = self.fit_batches(&mut batches, train, validation, epochs);
        self.input = Some(batches.seen());
        if let Err(error) = result {
            self.save_despite(&error);
            return Err(error);
        }
        self.save_when_due(true)?;
        Ok(&self.history)
    }

    /// Whether there is anything that an evaluation of a loader's samples would fail at but the samples.
    fn can_evaluate(&mut self, loader: &Loader) -> Result<(), Error> {
        // Up to the start of the first epoch there is nothing to be read.
        let batches = loader.clone().batch(self.settings.global_batch).epochs(Position::default(), 0)?;
        drop(batches);
        feed::check_specs(&loader.fields()?, &self.fields)?;
        self.prepare(EVALUATE, loader.samples())
    }

    /// Saves what was done before an error of the data or of their numbers.
    fn save_despite(&mut self, error: &Error) {
        if self.step > 0
            && error.leaves_state_whole()
            && let Err(second) = self.save_when_due(true)
        {
            self.tell_note(&format!("warning: step {} is not saved: {second}", self.step));
        }
    }

    fn fit_batches(
        &mut self,
        batches: &mut Batches,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Error> {
        let mut skipped = 0;
        let start = self.progress.position;
        let mut carried = (start.sample > 0).then_some(start.epoch);
        loop {
            let next = batches.next().transpose()?;
            for reason in &batches.skip_reasons()[skipped..] {
                self.observers.iter_mut().for_each(|o| o.note(&format!("skipped {reason}")));
            }
            skipped = batches.skip_reasons().len();
            self.progress.skipped = batches.progress().skipped;
            // The last samples of an epoch may all have been skipped, and the evaluation after an epoch may have failed before.
            let reached = next.as_ref().map_or(batches.progress().position.epoch, |batch| batch.epoch);
            let ended = self.end_epochs(reached, validation)?;
            let Some(batch) = next else {
                self.progress = batches.progress();
                return Ok(());
            };
            if ended && self.save_when_due(false)? {
                return Ok(());
            }
            if carried.replace(batch.epoch) != Some(batch.epoch) {
                self.carries.reset();
            }
            let mut step = self.step_inner(&batch, Some(train.source()), feed::behind(&batch))?;
            (step.epochs, step.of) = (epochs, train.samples());
            self.observers.iter_mut().for_each(|o| o.step(&step));
            self.end_epochs(batch.after.epoch, validation)?;
            self.progress = batches.progress();
            if self.save_when_due(false)? {
                return Ok(());
            }
            batches.recycle(batch);
        }
    }

    /// Ends the epochs before `reached`; returns whether there were any.
    fn end_epochs(&mut self, reached: u32, validation: Option<&Loader>) -> Result<bool, Error> {
        let before = self.progress.position.epoch;
        while self.progress.position.epoch < reached {
            self.end_epoch(self.progress.position.epoch, validation)?;
        }
        Ok(before < reached)
    }

    /// Whole or not at all: what may fail comes first.
    fn end_epoch(&mut self, epoch: u32, validation: Option<&Loader>) -> Result<(), Error> {
        let train = self.running.mean(&self.metric_names());
        let validation = validation.map(|loader| self.evaluate(loader)).transpose();
        let validation = validation.map_err(Error::of_validation)?;
        let ended = Epoch { epoch, steps: self.step, train, validation };
        self.history.push(ended.clone());
        if let Err(error) = self.observe() {
            self.history.pop();
            return Err(error);
        }
        self.running = Running::default();
        self.progress.position = Position { epoch: epoch + 1, sample: 0 };
        // What may be saved of this step lacks its epoch's end.
        if let Some(checkpoints) = self.checkpoints.as_mut().filter(|c| c.saved == Some(self.step)) {
            checkpoints.saved = None;
        }
        self.observers.iter_mut().for_each(|o| o.epoch(&ended));
        Ok(())
    }

    /// Lets the optimizer see the history.
    pub(crate) fn observe(&mut self) -> Result<(), Error> {
        let observed = self.parts.optimizer.observe(&self.history);
        observed.map_err(|problem| Error::setting("optimizer", problem))
    }
}
