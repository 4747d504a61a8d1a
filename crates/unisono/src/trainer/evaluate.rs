//! Evaluation and prediction on all replicas.

use unisono_data::{Batch, Batches, Loader};
use unisono_graph::Type;
use unisono_replica::{Outcome, Verdict};

use crate::compile::asked::Asked;
use crate::compile::feed::sample_name;
use crate::compile::outputs::Reading;
use crate::compile::programs::{ProgramId, Programs};
use crate::objective::running::Running;
use crate::trainer::guess::LabelCounts;
use crate::{Error, Evaluation, Trainer};

/// One output of a model for a number of samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// The output's name.
    pub name: String,
    /// The shape: `[samples, ...]`.
    pub shape: Vec<usize>,
    /// The values, sample after sample. Those of an i32 output are the same numbers.
    pub values: Vec<f32>,
}

/// The outputs of a model for a number of samples, in the order of the model's outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions(pub(crate) Vec<Prediction>);

impl Predictions {
    /// Returns an output by its name.
    pub fn get(&self, output: &str) -> Option<&Prediction> {
        self.iter().find(|prediction| prediction.name == output)
    }

    /// Returns the values of an output by its name, without a copy. There are none if it does not exist.
    pub fn into_values(self, output: &str) -> Vec<f32> {
        let found = self.0.into_iter().find(|prediction| prediction.name == output);
        found.map(|prediction| prediction.values).unwrap_or_default()
    }

    /// Returns all outputs.
    pub fn iter(&self) -> impl Iterator<Item = &Prediction> {
        self.0.iter()
    }

    /// Reads a model's outputs for a batch.
    ///
    /// # Errors
    /// An output has integers that f32 does not hold.
    pub(crate) fn read(
        outputs: &[(String, Type)],
        reading: Reading<'_>,
        samples: usize,
    ) -> Result<Self, Error> {
        let read = |(name, ty): &(String, Type)| {
            let (shape, values) = ([&[samples], &*ty.dims].concat(), reading.predictions(name)?);
            Ok(Prediction { name: name.clone(), shape, values })
        };
        outputs.iter().map(read).collect::<Result<_, Error>>().map(Self)
    }

    /// Adds those of further samples.
    ///
    /// # Errors
    /// They have another shape, as sequences of another length may.
    pub(crate) fn extend(&mut self, more: Self) -> Result<(), Error> {
        if self.0.is_empty() {
            *self = more;
            return Ok(());
        }
        let differ = |(own, new): &(&Prediction, &Prediction)| own.shape[1..] != new.shape[1..];
        if let Some((own, new)) = self.0.iter().zip(&more.0).find(differ) {
            let (before, now) = (&own.shape[1..], &new.shape[1..]);
            let problem = format!(
                "the output {} is {now:?} for some samples and {before:?} for others: predict batch by batch",
                own.name
            );
            return Err(Error::setting("predict", problem));
        }
        for (own, new) in self.0.iter_mut().zip(more.0) {
            own.shape[0] += new.shape.first().copied().unwrap_or_default();
            own.values.extend(new.values);
        }
        Ok(())
    }
}

/// What a user should know of predictions of a loader that changes the order.
pub(crate) const OTHER_ORDER: &str = "the loader shuffles, or makes buckets or lanes: rows of predictions are in the order in which it gives samples, not \
     in the source's; Batch::indices say which samples a batch has";

/// Refuses predictions that lack a sample: the rows behind it would be taken for those of other samples.
pub(crate) fn all_predicted(batches: &Batches) -> Result<(), Error> {
    let Some(reason) = batches.skip_reasons().first() else { return Ok(()) };
    let problem = format!(
        "the loader skipped {reason}, so rows would not match its samples: predict batch by batch; Batch::indices \
         says which samples a batch has"
    );
    Err(Error::setting("predict", problem))
}

impl Trainer {
    /// Evaluates one epoch of a loader on all replicas. Returns the mean loss, and the metrics over all
    /// samples. Notes name the samples that the loader skipped ([`Loader::skip_bad`]) and the first sample
    /// whose loss is not finite.
    ///
    /// # Errors
    /// The data do not fit the model. A sample is bad. The replicas fail. [`Error::Stopped`] if the run is
    /// asked to stop ([`Trainer::stop_on`]).
    pub fn evaluate(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        let evaluated = self.evaluate_here(loader);
        self.agree(evaluated)
    }

    fn evaluate_here(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        let (mut running, mut not_finite, mut is_first) = (Running::default(), None, true);
        let mut labels = LabelCounts::default();
        self.note_data(loader)?;
        self.note_dropped(loader, "an evaluation");
        self.same_classes(loader, "evaluated")?;
        self.same_held_out(loader, "evaluated")?;
        self.prepare(ProgramId::Evaluate, self.samples_of(loader))?;
        self.using.reset();
        let mut batches = self.reader(loader).epoch(0)?;
        for batch in &mut batches {
            let batch = batch?;
            self.compile_for(&batch)?;
            self.plan.check(&batch, Some(loader.source()))?;
            self.compare_samples(&batch, loader, is_first);
            if std::mem::take(&mut is_first) {
                self.note_other_scale(&batch, loader, "the evaluation");
            }
            self.count_labels(&batch, &mut labels);
            let batch = self.using.with(&batch)?;
            let gathered = self.gather_weights(&batch)?;
            let outcome = self.use_model(ProgramId::Evaluate, &batch, &Asked::default())?;
            let program = self.plan.programs_of(&batch).get(ProgramId::Evaluate);
            let reading = Reading::new(program, &outcome.outputs);
            let given = self.weights_of(&batch, gathered.as_deref());
            let parts = &self.plan.parts;
            let measured = reading.measured(parts, given, 0.0);
            running.add(&parts.objective().metrics, &measured);
            if let Some((row, loss)) = measured.not_finite().filter(|_| not_finite.is_none()) {
                not_finite = Some((sample_name(&batch, row, Some(loader.source())), loss));
            }
        }
        if let Some((sample, loss)) = not_finite {
            self.monitor.note_once(&format!(
                "note: the loss of {sample} is {loss} in an evaluation, and so is no mean: what the model or the loss \
                 computes for it is too large or no number"
            ));
        }
        self.note_compared(loader);
        self.note_drawn(&batches, "an evaluation");
        if let [first, others @ ..] = batches.skip_reasons() {
            let others =
                if others.is_empty() { String::new() } else { format!(", and {} others", others.len()) };
            self.monitor.note(&format!("an evaluation skipped {first}{others}"));
        }
        self.check_after_use()?;
        let metrics = &self.plan.parts.objective().metrics;
        let evaluation = running.finish(metrics);
        if let Some((what, message)) = running.take_panic() {
            return Err(Error::Panic { what, message });
        }
        self.monitor.unmeasured("an evaluation", &running.unmeasured(metrics, &evaluation));
        self.note_accuracy(&evaluation, &labels);
        Ok(evaluation)
    }

    /// Returns the output of a model with one output for every sample of a loader, in the loader's order:
    /// `[samples, ...]`. All replicas share the work.
    ///
    /// # Errors
    /// The data do not fit the model. A sample is bad, even if the loader would skip it: later rows would
    /// then belong to other samples. The model has several outputs. The replicas fail. [`Error::Stopped`] as
    /// in [`Trainer::evaluate`].
    pub fn predict(&mut self, loader: &Loader) -> Result<Vec<f32>, Error> {
        self.only_output()?;
        Ok(self.predict_all(loader)?.0.pop().map(|prediction| prediction.values).unwrap_or_default())
    }

    /// Returns all outputs of the model for every sample of a loader, in the loader's order. All replicas
    /// share the work.
    ///
    /// # Errors
    /// As [`Trainer::predict`], but for any number of outputs.
    pub fn predict_all(&mut self, loader: &Loader) -> Result<Predictions, Error> {
        let predicted = self.predict_here(loader, None);
        self.agree(predicted)
    }

    /// Returns some outputs of the model for every sample of a loader, in the loader's order. The samples
    /// need only the fields that these outputs depend on. State that the model carries to the next batch
    /// counts as one of these outputs.
    ///
    /// # Errors
    /// As [`Trainer::predict_all`]; the model has no such output.
    pub fn predict_outputs(&mut self, loader: &Loader, outputs: &[&str]) -> Result<Predictions, Error> {
        let predicted = self.predict_here(loader, Some(outputs));
        self.agree(predicted)
    }

    fn predict_here(&mut self, loader: &Loader, outputs: Option<&[&str]>) -> Result<Predictions, Error> {
        let mut all = Predictions::default();
        self.note_data(loader)?;
        self.note_dropped(loader, "a prediction");
        if !loader.keeps_order() {
            self.monitor.note_once(&format!("note: {OTHER_ORDER}"));
        }
        self.same_held_out(loader, "predicted")?;
        self.prepare(ProgramId::Predict, self.samples_of(loader))?;
        self.same_categories(loader)?;
        self.using.reset();
        let mut batches = self.reader(loader).epoch(0)?;
        let mut is_first = true;
        for batch in &mut batches {
            let batch = batch?;
            if std::mem::take(&mut is_first) {
                self.note_other_scale(&batch, loader, "the prediction");
            }
            all.extend(self.predict_batch_of(&batch, outputs)?)?;
        }
        all_predicted(&batches)?;
        self.note_drawn(&batches, "a prediction");
        self.check_after_use()?;
        Ok(all)
    }

    /// Returns the output of a model with one output for a batch of at most the global batch's size. A
    /// stateful model continues from the previous call, evaluation or prediction, until you call
    /// [`Trainer::reset_carries`].
    ///
    /// # Errors
    /// The batch does not fit the model. The model has several outputs. The replicas fail. [`Error::Stopped`]
    /// as in [`Trainer::evaluate`].
    pub fn predict_batch(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        self.only_output()?;
        Ok(self.predict_batch_all(batch)?.0.pop().map(|prediction| prediction.values).unwrap_or_default())
    }

    /// Returns all outputs of the model for a batch, as [`Trainer::predict_batch`] does.
    ///
    /// # Errors
    /// As [`Trainer::predict_batch`], but for any number of outputs.
    pub fn predict_batch_all(&mut self, batch: &Batch) -> Result<Predictions, Error> {
        self.predict_batch_of(batch, None)
    }

    /// Returns some outputs of the model for a batch. The batch needs only the fields that these outputs
    /// depend on, as with [`Trainer::predict_outputs`].
    ///
    /// # Errors
    /// As [`Trainer::predict_batch_all`]; the model has no such output.
    pub fn predict_batch_outputs(&mut self, batch: &Batch, outputs: &[&str]) -> Result<Predictions, Error> {
        self.predict_batch_of(batch, Some(outputs))
    }

    fn predict_batch_of(&mut self, batch: &Batch, outputs: Option<&[&str]>) -> Result<Predictions, Error> {
        let (rows, most) = (batch.len(), self.state.settings.global_batch);
        if rows > most {
            let problem = format!(
                "{rows} samples, and the global batch has {most}: give `predict_all` or `predict_outputs` a loader, which \
                 cuts them into batches"
            );
            return Err(Error::setting("batch", problem));
        }
        self.compile_for(batch)?;
        self.note_other_batch(batch);
        let programs = self.plan.programs_of(batch);
        let asked = match outputs {
            None => Asked::all(&programs.outputs),
            Some(outputs) => {
                let (program, fields) = (programs.get(ProgramId::Predict), self.plan.fields_of(batch));
                Asked::some(program, fields, &programs.outputs, outputs)?
            }
        };
        let batch = &*asked.fill(batch);
        self.plan.check_input(batch)?;
        let batch = self.using.with(batch)?;
        let outcome = self.use_model(ProgramId::Predict, &batch, &asked)?;
        let program = self.plan.programs_of(&batch).get(ProgramId::Predict);
        Predictions::read(&asked.outputs, Reading::new(program, &outcome.outputs), batch.len())
    }

    /// Checks that the model has one output.
    fn only_output(&self) -> Result<(), Error> {
        let outputs = &self.plan.programs.outputs;
        if outputs.len() == 1 {
            return Ok(());
        }
        let names: Vec<&str> = outputs.iter().map(|(name, _)| &**name).collect();
        let problem = format!("the model has {}: predict_all returns them", names.join(", "));
        Err(Error::setting("predict", problem))
    }

    /// Checks that all replicas still have the same state, so that what they made of it is right.
    fn check_after_use(&mut self) -> Result<(), Error> {
        self.replica_set.compared = None;
        self.check_before_leaving()
    }

    /// Runs a program that changes no state, and takes what samples carry from this batch to the next.
    fn use_model(&mut self, id: ProgramId, batch: &Batch, asked: &Asked) -> Result<Outcome, Error> {
        if self.monitor.stop.is_asked() {
            return Err(Error::Stopped);
        }
        self.check_before_leaving()?;
        self.replica_set.check_state()?;
        let flags = self.average_flags();
        let feed = self.plan.feed(id, batch, &flags, self.state.settings.seed)?;
        let feed = self.with_rest(feed, self.plan.programs_of(batch).get(id), batch, &flags, (true, asked));
        let outcome =
            self.replica_set.replicas.step(self.plan.index_of(id, batch), &feed, &mut |_| Verdict::Commit);
        let outcome = self.check_result(outcome)?;
        self.using.take(self.plan.programs_of(batch).get(id), &outcome.outputs);
        Ok(outcome)
    }

    /// Plans and compiles a program for the batches of an epoch of `samples`, so that no step has to.
    pub(super) fn prepare(&mut self, program: ProgramId, samples: u64) -> Result<(), Error> {
        self.prepare_number(program.index(), samples)
    }

    /// Does [`Trainer::prepare`] for the training steps of all phases.
    pub(super) fn prepare_training(&mut self, samples: u64) -> Result<(), Error> {
        let phases = self.plan.parts.phases.len().max(1);
        (0..phases).try_for_each(|phase| self.prepare_number(Programs::number_in(phase), samples))
    }

    pub(super) fn prepare_number(&mut self, number: usize, samples: u64) -> Result<(), Error> {
        let full = self.state.settings.global_batch as u64;
        let sizes: Vec<usize> =
            [samples.min(full), samples % full].iter().filter(|&&n| n > 0).map(|&n| n as usize).collect();
        let prepared = self.replica_set.replicas.prepare(number, &sizes);
        self.check_result(prepared)
    }

    /// Sets the state that a model carries from batch to batch to zeros, in all lanes: for training, and for
    /// [`Trainer::predict_batch`].
    ///
    /// [`Trainer::fit`] does this at the start of every epoch. [`Trainer::evaluate`] and [`Trainer::predict`]
    /// start with zeros of their own.
    pub fn reset_carries(&mut self) {
        self.state.carries.reset();
        self.using.reset();
    }

    /// Returns the state that training carries to its next step, by name, such as `0.h_l0`: `[lanes, ...]`,
    /// with one lane for each row of the batch.
    pub fn carry(&self, name: &str) -> Option<&[f32]> {
        self.state.carries.get(name)
    }
}
