//! The trainer: steps, evaluation and prediction on all replicas.

mod best;
pub(crate) mod builder;
pub(crate) mod checkpoints;
mod diagnose;
pub(crate) mod export;
mod fit;
mod left;
mod load;
pub(crate) mod save;
mod tensors;

use unisono_data::{Batch, Loader, LoaderState, Position, Seen};
use unisono_graph::Program;
use unisono_replica::{Outcome, Outputs, ReplicaError, ReplicaReport, Replicas, Verdict};

use crate::compile::feed::{self, Names};
use crate::compile::programs::{
    Fields, INPUT, LOSS, LOSS_WEIGHT, OUTPUT, PENALTY, PENALTY_GRADIENT, Parts, Programs, WEIGHT, WEIGHT_SUM,
};
use crate::objective::history::Running;
use crate::observe::observer::{Observer, Step};
use crate::run::carries::Carries;
use crate::run::class::Classes;
use crate::run::loss_scale::Scaling;
use crate::run::order::Order;
use crate::trainer::builder::{Builder, can, classes, of_one_class};
use crate::trainer::checkpoints::Checkpoints;
use crate::{Epoch, Error, Evaluation, History, Layer, Memory, Report, Stop, Summary};

pub(crate) const TRAIN: usize = 0;
pub(crate) const EVALUATE: usize = 1;
const PREDICT: usize = 2;

/// What the answer depends on, beside model and data.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub global_batch: usize,
    pub shards: usize,
    pub seed: u64,
    pub digest_every: u64,
    /// The loss scale that a run in mixed precision starts with.
    pub scaling: Option<Scaling>,
    /// The adapters are of several classes.
    pub mixed: bool,
}

/// Trains a model on every replica.
pub struct Trainer {
    pub(crate) parts: Parts,
    pub(crate) programs: Programs,
    pub(crate) fields: Fields,
    pub(crate) replicas: Replicas,
    /// The step after which their states were last compared.
    pub(crate) compared: Option<u64>,
    /// So many of those that left have been told of.
    pub(crate) left_told: usize,
    pub(crate) settings: Settings,
    notes: Vec<String>,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) stop: Stop,
    pub(crate) step: u64,
    /// Where the next step starts in the data, and the samples skipped on the way there.
    pub(crate) progress: LoaderState,
    /// What training carries from step to step.
    pub(crate) carries: Carries,
    /// What evaluation and prediction carry from batch to batch.
    pub(crate) using: Carries,
    pub(crate) history: History,
    pub(crate) running: Running,
    /// In mixed precision.
    pub(crate) scaling: Option<Scaling>,
    pub(crate) fingerprint: Option<u64>,
    pub(crate) order: Order,
    pub(crate) input: Option<Seen>,
    /// What a step of the global batch takes.
    pub(crate) memory: Option<Memory>,
    /// What the replicas run on.
    pub(crate) classes: Classes,
}

impl Trainer {
    /// Settings for training `model`.
    pub fn builder(model: impl Layer + 'static) -> Builder {
        Builder::new(Box::new(model))
    }

    pub(crate) fn start(
        mut parts: Parts,
        programs: Programs,
        fields: Fields,
        mut replicas: Replicas,
        settings: Settings,
        notes: Vec<String>,
        observers: Vec<Box<dyn Observer>>,
    ) -> Result<Self, Error> {
        for (index, initializer) in programs.initializers.iter().enumerate() {
            let state = &programs.train.states()[index];
            let values = match initializer {
                Some(initializer) => initializer
                    .values(settings.seed, &state.name, &state.ty.dims)
                    .map_err(|problem| Error::setting("initializer", problem))?,
                None => vec![0.0; state.ty.count()],
            };
            replicas.write_state(index, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
        }
        let unknown = |problem| Error::setting("optimizer", problem);
        parts.optimizer.observe(&[Epoch::unmeasured(&parts.metrics)]).map_err(unknown)?;
        parts.optimizer.observe(&[]).map_err(unknown)?;
        let lanes = |program| Carries::new(program, settings.global_batch);
        let (carries, using) = (lanes(&programs.train), lanes(&programs.predict));
        Ok(Self {
            parts,
            programs,
            fields,
            replicas,
            compared: None,
            left_told: 0,
            scaling: settings.scaling.clone(),
            settings,
            notes,
            observers,
            checkpoints: None,
            stop: Stop::new(),
            step: 0,
            progress: LoaderState::default(),
            carries,
            using,
            history: vec![],
            running: Running::default(),
            fingerprint: None,
            order: Order::default(),
            input: None,
            memory: None,
            classes: Classes::new(vec![]),
        })
    }

    /// Plans and compiles for the batches of an epoch of `samples`, so that no step has to.
    pub(crate) fn prepare(&mut self, program: usize, samples: u64) -> Result<(), Error> {
        let full = self.settings.global_batch as u64;
        let sizes: Vec<usize> =
            [samples.min(full), samples % full].iter().filter(|&&n| n > 0).map(|&n| n as usize).collect();
        let prepared = self.replicas.prepare(program, &sizes);
        self.heard(prepared)
    }

    /// One step on a batch, for loops of one's own. The batch may have any size up to the global batch.
    ///
    /// Means are those of the batch's epoch, and samples that were left out of it stay left out of the run. A batch of which all
    /// were is given to no loop, so that it is not known here; nor is the loader, so that a resume cannot compare the data.
    ///
    /// # Errors
    /// A batch that does not have the model's fields; a bad sample; a loss or gradient that is not finite, in mixed precision
    /// at the smallest loss scale. Then nothing has changed.
    pub fn step(&mut self, batch: &Batch) -> Result<Step, Error> {
        let step = self.step_inner(batch, None, batch.after)?;
        if batch.after.epoch > batch.epoch {
            self.running = Running::default();
        }
        let skipped = &mut self.progress.skipped;
        skipped.extend(&batch.skipped);
        skipped.sort_unstable();
        skipped.dedup();
        Ok(step)
    }

    /// A step, after which the run is at `after`.
    pub(crate) fn step_inner(
        &mut self,
        batch: &Batch,
        names: Names<'_>,
        after: Position,
    ) -> Result<Step, Error> {
        if batch.len() > self.settings.global_batch || batch.len() == 0 {
            let problem =
                format!("a batch of {} samples in steps of {}", batch.len(), self.settings.global_batch);
            return Err(Error::setting("global batch", problem));
        }
        feed::check(batch, &self.fields, &self.programs.output, &*self.parts.loss, names)?;
        let batch = &*self.carries.with(batch)?;
        let scalars = self.scalars();
        let feed = feed::feed(&self.programs.train, batch, &scalars, self.settings.seed)?;
        let program = self.programs.train.clone();
        let output = |outputs: &Outputs, name: &str| named(&program, outputs, name);
        let bad_sample = |outputs: &Outputs| output(outputs, LOSS)?.iter().position(|loss| !loss.is_finite());
        let bad_penalty = |outputs: &Outputs| {
            let is_bad =
                |name: &&str| output(outputs, name).is_some_and(|x| !x.iter().all(|x| x.is_finite()));
            [PENALTY, PENALTY_GRADIENT].into_iter().find(is_bad)
        };
        let outcome = self.replicas.step(TRAIN, &feed, &mut |outputs| {
            let weight = output(outputs, WEIGHT_SUM).and_then(|w| w.first().copied());
            let skip = bad_sample(outputs).is_some() || bad_penalty(outputs).is_some() || weight == Some(0.0);
            if skip { Verdict::Skip } else { Verdict::Commit }
        });
        self.tell_left();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(ReplicaError::NotFinite { what, outputs, sum, .. }) => {
                let bad = bad_sample(&outputs);
                if bad.is_some() || !self.backs_off(sum) {
                    return Err(self.not_finite(batch, bad, what, names));
                }
                Outcome { outputs: *outputs, ..Outcome::default() }
            }
            Err(error) => return self.heard(Err(error)),
        };
        // A bad loss whose weight is 0 reaches no sum.
        if let Some(bad) = bad_sample(&outcome.outputs) {
            return Err(self.not_finite(batch, Some(bad), String::new(), names));
        }
        if let Some(what) = bad_penalty(&outcome.outputs) {
            return Err(self.not_finite(batch, None, format!("the {what}"), names));
        }
        if outcome.committed {
            self.carries.take(&program, &outcome.outputs);
            self.scaling.iter_mut().for_each(Scaling::went_well);
        }
        let losses = output(&outcome.outputs, LOSS).unwrap_or_default();
        let penalty = output(&outcome.outputs, PENALTY).map_or(0.0, |p| f64::from(p[0]));
        let metrics = self.metric_values(&program, &outcome.outputs);
        let weights = self.weights(&program, &outcome.outputs, batch);
        let mut own = Running::default();
        own.add(&losses, &metrics, weights.as_deref(), penalty);
        // Only in loops of one's own, which may go from any batch to any other.
        if batch.epoch != self.progress.position.epoch {
            self.running = Running::default();
        }
        self.running.add(&losses, &metrics, weights.as_deref(), penalty);
        let metric_names = self.metric_names();
        let done = feed::behind(batch).sample;
        let step = Step {
            step: self.step,
            epoch: batch.epoch,
            epochs: batch.epoch + 1,
            done,
            of: done,
            samples: batch.len() as u64,
            now: own.mean(&metric_names),
            so_far: self.running.mean(&metric_names),
            committed: outcome.committed,
        };
        self.step += 1;
        self.progress.position = after;
        if self.step.checked_rem(self.settings.digest_every) == Some(0) {
            self.check_replicas()?;
        }
        Ok(step)
    }

    /// Loss and metrics over one epoch of a loader, each replica doing its share.
    pub fn evaluate(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        let program = self.programs.evaluate.clone();
        let mut running = Running::default();
        self.prepare(EVALUATE, loader.samples())?;
        self.using.reset();
        for batch in loader.clone().batch(self.settings.global_batch).epoch(0)? {
            let batch = batch?;
            let names = Some(loader.source());
            feed::check(&batch, &self.fields, &self.programs.output, &*self.parts.loss, names)?;
            let batch = self.using.with(&batch)?;
            let feed = feed::feed(&program, &batch, &[], self.settings.seed)?;
            let outcome = self.replicas.step(EVALUATE, &feed, &mut |_| Verdict::Commit);
            let outcome = self.heard(outcome)?;
            self.using.take(&program, &outcome.outputs);
            let losses = named(&program, &outcome.outputs, LOSS).unwrap_or_default();
            let weights = self.weights(&program, &outcome.outputs, &batch);
            running.add(&losses, &self.metric_values(&program, &outcome.outputs), weights.as_deref(), 0.0);
        }
        Ok(running.mean(&self.metric_names()))
    }

    /// The model's output for every sample of a loader, in its order, each replica doing its share: `[samples, ...]`.
    pub fn predict(&mut self, loader: &Loader) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        self.prepare(PREDICT, loader.samples())?;
        self.using.reset();
        for batch in loader.clone().batch(self.settings.global_batch).epoch(0)? {
            all.extend(self.predict_batch(&batch?)?);
        }
        Ok(all)
    }

    /// The model's output for a batch of up to the global batch's size. Where the model carries something, it goes on from the
    /// last such call, evaluation or prediction, until [`Trainer::reset_carries`].
    pub fn predict_batch(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        feed::check_field(batch, INPUT, &self.fields.input, None)?;
        feed::check_ids(batch, &self.fields, None)?;
        let program = self.programs.predict.clone();
        let feed = feed::feed(&program, &*self.using.with(batch)?, &[], self.settings.seed)?;
        let outcome = self.replicas.step(PREDICT, &feed, &mut |_| Verdict::Commit);
        let outcome = self.heard(outcome)?;
        self.using.take(&program, &outcome.outputs);
        Ok(named(&program, &outcome.outputs, OUTPUT).unwrap_or_default())
    }

    /// What each sample of a batch weighs, where they differ: as the loss says, or else as the data do.
    fn weights(&self, program: &Program, outputs: &Outputs, batch: &Batch) -> Option<Vec<f32>> {
        named(program, outputs, LOSS_WEIGHT).or_else(|| {
            let field = batch.field(WEIGHT).filter(|_| self.fields.weighted)?;
            field.values.as_f32().map(<[f32]>::to_vec)
        })
    }

    pub(crate) fn metric_names(&self) -> Vec<String> {
        self.parts.metrics.iter().map(|m| m.name().to_string()).collect()
    }

    fn metric_values(&self, program: &Program, outputs: &Outputs) -> Vec<Vec<f32>> {
        let values = |name: &str| named(program, outputs, name).unwrap_or_default();
        self.parts.metrics.iter().map(|m| values(m.name())).collect()
    }

    /// The layers with their output shapes and parameter counts, and what a training step takes of a device's memory.
    pub fn summary(&self) -> Summary {
        Summary {
            lines: self.programs.summary.clone(),
            input: self.fields.input.clone(),
            memory: self.memory.clone(),
        }
    }

    /// What a user should know of the settings: replicas that will be idle or unevenly loaded, answers that depend on the
    /// number of replicas.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The compiled graphs: of a training step, of evaluation, of prediction. For those who want to look inside.
    pub fn programs(&self) -> [&Program; 3] {
        [&self.programs.train, &self.programs.evaluate, &self.programs.predict]
    }

    /// What each replica did so far.
    pub fn reports(&self) -> Vec<ReplicaReport> {
        self.replicas.reports()
    }

    /// What the input pipeline of the last [`Trainer::fit`] did, and what it waited for.
    pub fn input(&self) -> Option<&Seen> {
        self.input.as_ref()
    }

    /// Where the time went: replica by replica, and whether the input kept up.
    pub fn report(&self) -> Report {
        let pieces = self.memory.as_ref().filter(|memory| memory.pieces.is_some()).map(Memory::how);
        let scaling = self.scaling.clone();
        Report { scaling, pieces, ..Report::new(self.reports(), self.input.clone()) }
    }

    /// Where the next step starts in the data.
    pub fn position(&self) -> Position {
        self.progress.position
    }

    /// Samples of the training data that were found bad and left out, where the loader allows it.
    pub fn skipped(&self) -> &[u64] {
        &self.progress.skipped
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The epochs so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Compares the replicas' states; an error names those that differ.
    pub fn check_replicas(&mut self) -> Result<(), Error> {
        let same = self.replicas.check_digests();
        self.heard(same)?;
        self.compared = Some(self.step);
        Ok(())
    }

    /// What is saved is what all replicas have: their states are compared, unless they were after this step, or never are.
    pub(crate) fn check_what_is_saved(&mut self) -> Result<(), Error> {
        let due = self.settings.digest_every > 0 && self.compared != Some(self.step);
        if due { self.check_replicas() } else { Ok(()) }
    }

    /// Stops fits after the step at which `stop` is asked; they save the run and return.
    pub fn stop_on(&mut self, stop: &Stop) {
        self.stop = stop.clone();
    }

    pub(crate) fn tell_note(&mut self, text: &str) {
        self.observers.iter_mut().for_each(|o| o.note(text));
    }

    /// Writes what each replica did with its time since the last call, with [`Builder::timeline`], in Chrome's trace format, to
    /// open in Perfetto.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_trace(&mut self, path: &std::path::Path) -> Result<(), Error> {
        let timeline = self.replicas.take_timeline();
        let trace = |source| Error::Trace { path: path.into(), source };
        crate::observe::trace::write(path, &self.replicas.reports(), &timeline).map_err(trace)
    }

    /// Takes in one more replica, on the first adapter whose name holds `name` (see [`unisono_gpu::select`]): from the next step
    /// on it shares the work. Returns its number. No bit shows it, but in a run on a mixture of classes ([`Builder::mixed`]), where it
    /// changes who runs what: from here on the run is that of the larger mixture, which observers are told and checkpoints name.
    ///
    /// # Errors
    /// No such adapter; it is of another numeric class than the run's, unless that was started on a mixture; it does not open, or
    /// does not take the state. The run goes on without it.
    pub fn join(&mut self, name: &str) -> Result<usize, Error> {
        let names: &[&str] = if name.is_empty() { &[] } else { &[name] };
        let adapter = unisono_gpu::select(names)?.into_iter().next();
        let nobody = || Error::setting("adapter", "there is none");
        let adapter = adapter.ok_or_else(nobody)?;
        can(&adapter, self.parts.precision)?;
        let all = self.classes.with(&adapter);
        if !self.settings.mixed && !of_one_class(&all) {
            return Err(Error::JoinsOtherClass { classes: classes(&all) });
        }
        let joined = self.replicas.join(&adapter);
        let joined = self.heard(joined)?;
        if self.settings.mixed {
            let (name, step) = (adapter.label(), self.step);
            self.tell_note(&format!(
                "replica {joined} ({name}) joined at step {step}: shards are given out anew, and from here on the bits are those of \
                 another mixture"
            ));
        }
        self.classes.join(joined, adapter);
        Ok(joined)
    }

    pub(crate) fn tell_saved(&mut self, path: &std::path::Path) {
        self.observers.iter_mut().for_each(|o| o.saved(path));
    }
}

/// An output's values by name, where it is there.
fn named(program: &Program, outputs: &Outputs, name: &str) -> Option<Vec<f32>> {
    let index = program.outputs().iter().position(|o| o.name == name)?;
    outputs.floats(index).map(<[f32]>::to_vec)
}
