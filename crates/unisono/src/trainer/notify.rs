//! What observers are told of a fit, and what a program logs.

use unisono_graph::StateKind;

use crate::objective::history::names_of_numbers;
use crate::observe::logged::Logged;
use crate::observe::observer::Start;
use crate::{Epoch, Error, Evaluation, Step, Trainer};

impl Trainer {
    /// Logs a value under a tag, at the steps done so far: observers such as
    /// [`TensorBoard`](crate::TensorBoard) keep it. It does not change the result of the run.
    ///
    /// ```no_run
    /// # fn log(mut trainer: unisono::Trainer, prompt: &unisono::data::Batch) -> Result<(), unisono::Error> {
    /// let first = trainer.predict_batch(prompt)?[0];
    /// trainer.log("first", first);
    /// trainer.log("sample", "a text");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "add_scalar")]
    pub fn log(&mut self, tag: &str, value: impl Into<Logged>) {
        self.monitor.logged(self.state.position.step, tag, &value.into());
    }

    /// Notifies observers of a step of your own training loop, so that progress bars, loggers and dashboards
    /// show it. (A fit does this by itself.) Before the first step, observers are notified of the start.
    ///
    /// ```no_run
    /// # fn run(mut trainer: unisono::Trainer, train: unisono::data::Loader) -> Result<(), unisono::Error> {
    /// for epoch in 0..5 {
    ///     let mut last = None;
    ///     for batch in train.epoch(epoch)? {
    ///         let step = trainer.step(&batch?)?;
    ///         trainer.notify_step(&step);
    ///         last = Some(step);
    ///     }
    ///     if let Some(last) = last {
    ///         let validation = trainer.evaluate(&train)?;
    ///         trainer.notify_epoch_ended(&last, Some(validation))?;
    ///     }
    /// }
    /// trainer.notify_ended();
    /// # Ok(())
    /// # }
    /// ```
    pub fn notify_step(&mut self, step: &Step) {
        self.notify_own_start(step.step);
        self.monitor.step(step);
    }

    /// Ends an epoch of your own training loop with its last step, and with the evaluation after it, if there
    /// is one: adds it to the run's history, which schedules with a plateau and the best checkpoint follow,
    /// and notifies observers. Call it before you save: a checkpoint contains the epochs that have ended. If
    /// the same step has ended an epoch before, this epoch takes its place.
    ///
    /// The epoch has the number of the step's, or the next one where the history already has an epoch of that
    /// number, as if all batches come from [`Batch::of`](crate::data::Batch::of).
    ///
    /// On several machines all ranks call this, with the same step and evaluation;
    /// [`Trainer::notify_step`] may be called on any.
    ///
    /// # Errors
    /// A plateau monitors a value that was not measured. An observer wants the parameters
    /// ([`Observer::wants_weights`](crate::Observer::wants_weights)), which cannot be read.
    pub fn notify_epoch_ended(&mut self, last: &Step, validation: Option<Evaluation>) -> Result<(), Error> {
        let steps = last.step + 1;
        self.notify_own_start(steps);
        let before = self.state.history.clone();
        if before.last().is_some_and(|epoch| epoch.steps == steps) {
            self.state.history.pop();
        }
        let next = self.state.history.last().map_or(0, |epoch| epoch.epoch.saturating_add(1));
        let epoch = last.epoch.max(next);
        let ended = Epoch { epoch, steps, train: last.so_far.clone(), validation };
        self.state.history.push(ended.clone().without_tables());
        if let Err(error) = self.observe() {
            self.state.history = before;
            self.observe()?;
            return Err(error);
        }
        self.saver.iter_mut().for_each(|saver| saver.epoch_ended(steps));
        self.notify_epoch(&ended)
    }

    /// Notifies observers that your own training loop is over.
    pub fn notify_ended(&mut self) {
        self.monitor.own_loop = false;
        self.monitor.ended();
    }

    /// Tells observers that a loop of your own begins, once. `step` is the number of steps before it.
    fn notify_own_start(&mut self, step: u64) {
        if !std::mem::replace(&mut self.monitor.own_loop, true) {
            self.notify_start_at(step);
        }
    }

    /// Tells observers that a fit begins.
    pub(super) fn notify_start(&mut self) {
        self.monitor.own_loop = false;
        self.notify_start_at(self.state.position.step);
    }

    pub(super) fn notify_start_at(&mut self, step: u64) {
        if !self.monitor.is_observed() {
            return;
        }
        let (summary, optimizer) = (self.summary(), self.plan.parts.optimizer_settings());
        let metrics = names_of_numbers(&self.plan.parts.objective().metrics);
        let Self { state, monitor, .. } = self;
        let (position, history) = (&state.position, &state.history);
        let done = position.data.position.sample;
        let settings = &state.settings;
        monitor.started(&Start {
            step,
            done,
            history,
            metrics: &metrics,
            settings,
            optimizer: &optimizer,
            summary: &summary,
        });
    }

    /// Tells observers that an epoch is done, what the replicas did, and, where an observer asks for them,
    /// the parameters.
    ///
    /// # Errors
    /// The parameters cannot be read; replicas have different ones.
    pub(super) fn notify_epoch(&mut self, ended: &Epoch) -> Result<(), Error> {
        self.note_no_progress(ended);
        let step = self.steps();
        if self.monitor.is_observed() {
            let reports = self.replica_set.replicas.reports();
            self.monitor.replicas(step, &reports);
        }
        let wanted = self.monitor.wants_weights(ended.epoch);
        if self.cluster().any("who shows the weights", wanted)? {
            self.check_before_leaving()?;
            let tensors = self.tensors_of(&[StateKind::Parameter])?;
            let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let values = |bytes: &[u8]| bytes.chunks_exact(4).map(float).collect();
            let weights: Vec<(&str, Vec<f32>)> =
                tensors.iter().map(|(name, tensor)| (name.as_str(), values(tensor.bytes()))).collect();
            self.monitor.weights(ended.epoch, step, &weights);
        }
        self.monitor.epoch(ended);
        Ok(())
    }
}
