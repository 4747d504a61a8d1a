//! Training over epochs: batches in, steps, epochs and checkpoints out.

use unisono_data::{Batches, Loader, Position};

use crate::trainer::TRAIN;
use crate::{Epoch, Error, History, Trainer};

impl Trainer {
    /// Trains until `epochs` epochs are done, counted from the run's start, and returns the whole run's history.
    ///
    /// The loader says what to read and in which order; the batch is the trainer's. After each epoch the model is evaluated
    /// on `validation`.
    ///
    /// # Errors
    /// The first error of the pipeline or of a step. Nothing of a failed step has happened.
    pub fn fit(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<&History, Error> {
        let loader = train.clone().batch(self.settings.global_batch);
        self.same_data(train)?;
        self.same_order(train, epochs)?;
        self.prepare(TRAIN, loader.samples())?;
        let mut batches = loader.epochs(self.progress.clone(), epochs)?;
        let result = self.fit_batches(&mut batches, train, validation, epochs);
        self.input = Some(batches.seen());
        result?;
        self.save_when_due(true)?;
        Ok(&self.history)
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
            // The last samples of an epoch may all have been skipped.
            let reached = next.as_ref().map_or(batches.progress().position.epoch, |batch| batch.epoch);
            self.end_epochs(reached, validation)?;
            let Some(batch) = next else {
                self.progress = batches.progress();
                return Ok(());
            };
            if carried.replace(batch.epoch) != Some(batch.epoch) {
                self.carries.reset();
            }
            let mut step = self.step_inner(&batch, Some(train.source()))?;
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

    /// Ends the epochs before `reached`.
    fn end_epochs(&mut self, reached: u32, validation: Option<&Loader>) -> Result<(), Error> {
        while self.progress.position.epoch < reached {
            self.end_epoch(self.progress.position.epoch, validation)?;
            self.progress.position = Position { epoch: self.progress.position.epoch + 1, sample: 0 };
        }
        Ok(())
    }

    fn end_epoch(&mut self, epoch: u32, validation: Option<&Loader>) -> Result<(), Error> {
        let train = std::mem::take(&mut self.running).mean(&self.metric_names());
        let validation = validation.map(|loader| self.evaluate(loader)).transpose()?;
        let epoch = Epoch { epoch, steps: self.step, train, validation };
        self.observers.iter_mut().for_each(|o| o.epoch(&epoch));
        self.history.push(epoch);
        self.observe()
    }

    /// Lets the optimizer see the history.
    pub(crate) fn observe(&mut self) -> Result<(), Error> {
        let observed = self.parts.optimizer.observe(&self.history);
        observed.map_err(|problem| Error::setting("optimizer", problem))
    }
}
