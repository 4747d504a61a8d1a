//! What observers are told of a fit, and what a program logs.

use unisono_graph::StateKind;

use crate::objective::history::names_of_numbers;
use crate::observe::logged::Logged;
use crate::observe::observer::Start;
use crate::{Epoch, Error, Trainer};

impl Trainer {
    /// Logs a value under a tag, at the steps done so far: observers such as
    /// [`TensorBoard`](crate::TensorBoard) keep it. It has no part in the run's answer.
    ///
    /// ```no_run
    /// # fn log(mut trainer: unisono::Trainer, prompt: &unisono::data::Batch) -> Result<(), unisono::Error> {
    /// let first = trainer.predict_batch(prompt)?[0];
    /// trainer.log("first", first);
    /// trainer.log("sample", "a text");
    /// # Ok(())
    /// # }
    /// ```
    pub fn log(&mut self, tag: &str, value: impl Into<Logged>) {
        self.watch.logged(self.state.position.step, tag, &value.into());
    }

    /// Tells observers that a fit begins.
    pub(super) fn tell_start(&mut self) {
        if self.watch.observers.is_empty() {
            return;
        }
        let (summary, optimizer) = (self.summary(), self.plan.parts.optimizer_settings());
        let metrics = names_of_numbers(&self.plan.parts.metrics);
        let Self { state, watch, .. } = self;
        let (position, history) = (&state.position, &state.history);
        let done = position.data.position.sample;
        let settings = &state.settings;
        watch.started(&Start {
            step: position.step,
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
    pub(super) fn tell_epoch(&mut self, ended: &Epoch) -> Result<(), Error> {
        let step = self.steps();
        if !self.watch.observers.is_empty() {
            let reports = self.crew.replicas.reports();
            self.watch.replicas(step, &reports);
        }
        let wanted = self.watch.wants_weights(ended.epoch);
        if self.world().any(wanted)? {
            self.check_before_leaving()?;
            let tensors = self.tensors_of(&[StateKind::Parameter])?;
            let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let values = |bytes: &[u8]| bytes.chunks_exact(4).map(float).collect();
            let weights: Vec<(&str, Vec<f32>)> =
                tensors.iter().map(|(name, tensor)| (name.as_str(), values(tensor.bytes()))).collect();
            self.watch.weights(ended.epoch, step, &weights);
        }
        self.watch.epoch(ended);
        Ok(())
    }
}
