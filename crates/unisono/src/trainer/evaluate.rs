//! Evaluation and prediction on all replicas.

use unisono_data::{Batch, Loader};
use unisono_replica::{Outcome, Verdict};

use crate::compile::outputs::Reading;
use crate::compile::programs::ProgramId;
use crate::objective::running::Running;
use crate::{Error, Evaluation, Trainer};

impl Trainer {
    /// Evaluates one epoch of a loader, each replica doing its share. Returns the mean loss, and the metrics
    /// over all its samples.
    ///
    /// # Errors
    /// Data that do not fit the model; a bad sample; an error of the replicas. [`Error::Stopped`] if the run
    /// is asked to stop ([`Trainer::stop_on`]).
    pub fn evaluate(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        let mut running = Running::default();
        self.prepare(ProgramId::Evaluate, loader.samples())?;
        self.using.reset();
        for batch in self.reader(loader).epoch(0)? {
            let batch = batch?;
            self.plan.check(&batch, Some(loader.source()))?;
            let batch = self.using.with(&batch)?;
            let outcome = self.use_model(ProgramId::Evaluate, &batch)?;
            let reading = Reading::new(self.plan.program(ProgramId::Evaluate), &outcome.outputs);
            let metrics = &self.plan.parts.metrics;
            running.add(metrics, &reading.measured(metrics, &self.plan.fields, &batch, 0.0));
        }
        self.check_after_use()?;
        Ok(running.finish(&self.plan.parts.metrics))
    }

    /// Returns the model's output for every sample of a loader, in its order: `[samples, ...]`. Each replica
    /// does its share.
    ///
    /// # Errors
    /// Data that do not fit the model; an error of the replicas; [`Error::Stopped`] as in
    /// [`Trainer::evaluate`].
    pub fn predict(&mut self, loader: &Loader) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        self.prepare(ProgramId::Predict, loader.samples())?;
        self.using.reset();
        for batch in self.reader(loader).epoch(0)? {
            all.extend(self.predict_batch(&batch?)?);
        }
        self.check_after_use()?;
        Ok(all)
    }

    /// Returns the model's output for a batch of up to the global batch's size. Where the model carries
    /// something, it goes on from the last such call, evaluation or prediction, until
    /// [`Trainer::reset_carries`].
    ///
    /// # Errors
    /// A batch that does not fit the model; an error of the replicas; [`Error::Stopped`] as in
    /// [`Trainer::evaluate`].
    pub fn predict_batch(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        self.plan.check_input(batch)?;
        let batch = self.using.with(batch)?;
        let outcome = self.use_model(ProgramId::Predict, &batch)?;
        let reading = Reading::new(self.plan.program(ProgramId::Predict), &outcome.outputs);
        Ok(reading.predictions().to_vec())
    }

    /// Checks that all replicas still have the same state, so that what they made of it is right.
    fn check_after_use(&mut self) -> Result<(), Error> {
        self.crew.compared = None;
        self.check_before_leaving()
    }

    /// Runs a program that changes no state, and takes what samples carry from this batch to the next.
    fn use_model(&mut self, id: ProgramId, batch: &Batch) -> Result<Outcome, Error> {
        if self.watch.stop.is_asked() {
            return Err(Error::Stopped);
        }
        self.check_before_leaving()?;
        self.crew.check_state()?;
        let feed = self.plan.feed(id, batch, &[], self.state.settings.seed)?;
        let outcome = self.crew.replicas.step(id.index(), &feed, &mut |_| Verdict::Commit);
        let outcome = self.heard(outcome)?;
        self.using.take(self.plan.program(id), &outcome.outputs);
        Ok(outcome)
    }

    /// Plans and compiles a program for the batches of an epoch of `samples`, so that no step has to.
    pub(super) fn prepare(&mut self, program: ProgramId, samples: u64) -> Result<(), Error> {
        let full = self.state.settings.global_batch as u64;
        let sizes: Vec<usize> =
            [samples.min(full), samples % full].iter().filter(|&&n| n > 0).map(|&n| n as usize).collect();
        let prepared = self.crew.replicas.prepare(program.index(), &sizes);
        self.heard(prepared)
    }

    /// Sets the carries of all lanes back to zeros, those of training and those that
    /// [`Trainer::predict_batch`] goes on with.
    ///
    /// [`Trainer::fit`] does so at the start of every epoch, [`Trainer::evaluate`] and [`Trainer::predict`]
    /// for their own at their start.
    pub fn reset_carries(&mut self) {
        self.state.carries.reset();
        self.using.reset();
    }

    /// Returns what training carries to its next step, by name, such as `0.h_l0`: `[lanes, ...]`, a lane for
    /// each row of the batch.
    pub fn carry(&self, name: &str) -> Option<&[f32]> {
        self.state.carries.get(name)
    }
}
