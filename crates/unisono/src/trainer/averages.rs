//! Moving averages of weights, in use and in the places of the weights.

use std::path::Path;

use unisono_checkpoint::{Contents, Plan, Tensor, Tensors};
use unisono_graph::StateKind;

use crate::compile::averages::Last;
use crate::optimizers::Scalar;
use crate::run::state::SavedRun;
use crate::saving::tensors::info;
use crate::trainer::builder::Builder;
use crate::trainer::control::Control;
use crate::{Error, Trainer};

impl Builder {
    /// Uses the moving averages of [`Optimizer::average_weights`](crate::Optimizer::average_weights) instead
    /// of the weights everywhere except in training: in evaluations, predictions and exports, and when a
    /// callback keeps weights (Keras's `SwapEMAWeights`, Lightning's `EMAWeightAveraging`). Training uses the
    /// weights themselves and gives the same bits as without this. Default: the averages are computed but not
    /// used.
    ///
    /// Parameters that no optimizer averages, such as frozen ones, are used as they are; so are all
    /// parameters before the first step. If several phases train a parameter, the average is that of the
    /// phase that trained it last, except phases whose epochs are over. Statistics, such as the running mean
    /// of a batch norm, are averaged together with the weights (as in timm). If the model gets other weights,
    /// from a file or a callback, the averages are set to these. Checkpoints contain both.
    ///
    /// ```
    /// use unisono::{AdamW, Dense, Optimizer, Trainer};
    ///
    /// let builder = Trainer::builder(Dense::new(10))
    ///     .optimizer(AdamW::new(1e-3).average_weights(0.999))
    ///     .use_average_weights();
    /// ```
    #[doc(alias("EMAWeightAveraging", "SwapEMAWeights"))]
    pub fn use_average_weights(mut self) -> Self {
        self.parts.uses_averages = true;
        self
    }
}

impl Trainer {
    /// Sets the parameters to their moving averages, as the last step of a run (PyTorch's `AveragedModel`,
    /// Keras's `SwapEMAWeights`). Returns whether there are any; there are from the first step on. The
    /// optimizer state stays as it is. Training that continues from here is another run.
    ///
    /// # Errors
    /// The replicas fail.
    pub fn adopt_average_weights(&mut self) -> Result<bool, Error> {
        let Some(tensors) = self.averaged()? else { return Ok(false) };
        self.take_weights(|model| Plan::new().take(&tensors, model))?;
        Ok(true)
    }

    /// Returns the inputs of evaluations and predictions that say which averages are there.
    pub(super) fn average_flags(&self) -> Vec<Scalar> {
        if !self.plan.parts.uses_averages {
            return Vec::new();
        }
        self.plan.programs.averages.flags(&self.plan.parts.phases, |phase| self.trained_last(phase))
    }

    /// Returns when a phase trained last, or the run without phases.
    fn trained_last(&self, phase: Option<usize>) -> Option<Last> {
        match phase.and_then(|at| self.plan.parts.phases.get(at)) {
            Some(phase) => self.state.phases.last_of(&phase.name),
            None => (self.optimizer_step(None) > 0).then_some((0, 0)),
        }
    }

    /// Returns the parameters and statistics with which the model is evaluated, and predicts.
    pub(super) fn weights_in_use(&mut self) -> Result<Tensors, Error> {
        let averaged = if self.plan.parts.uses_averages { self.averaged()? } else { None };
        match averaged {
            Some(tensors) => Ok(tensors),
            None => self.tensors_of(&[StateKind::Parameter, StateKind::Statistic]),
        }
    }

    /// Returns the parameters and statistics with the averages that are there, or `None` if there are none.
    fn averaged(&mut self) -> Result<Option<Tensors>, Error> {
        self.check_before_leaving()?;
        let averages = &self.plan.programs.averages;
        let used = averages.in_use(&self.plan.parts.phases, |phase| self.trained_last(phase));
        let index = |(name, state): (&str, &str)| Some((name.to_owned(), self.state_index(state)?));
        let there: Vec<(String, usize)> = used.into_iter().filter_map(index).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let mut tensors = self.tensors_of(&[StateKind::Parameter, StateKind::Statistic])?;
        let indices: Vec<usize> = there.iter().map(|(_, index)| *index).collect();
        let all = self.replica_set.replicas.read_states(&indices, Vec::new());
        let all = self.check_result(all)?;
        for ((name, index), bytes) in there.into_iter().zip(all) {
            let own = info(&self.plan.programs.train().states()[index].ty);
            tensors.insert(name, Tensor::new(own.dtype, own.shape, bytes)?);
        }
        Ok(Some(tensors))
    }

    /// Returns the parameters and statistics of a checkpoint with which the model was evaluated there:
    /// averages where they are in use and were there.
    pub(super) fn used_in(&self, step: u64, path: &Path, contents: Contents) -> Result<Tensors, Error> {
        let Contents { mut model, optimizer, .. } = match self.plan.parts.uses_averages {
            true => contents.clone(),
            false => return Ok(contents.model),
        };
        let saved = SavedRun::load(path, step, &contents)?.state;
        let last = |phase: Option<usize>| match phase.and_then(|at| self.plan.parts.phases.get(at)) {
            Some(phase) => saved.phases.last_of(&phase.name),
            None => (saved.optimizer_steps() > 0).then_some((0, 0)),
        };
        for (name, state) in self.plan.programs.averages.in_use(&self.plan.parts.phases, last) {
            if let Some(average) = optimizer.get(state) {
                model.insert(name.to_owned(), average.clone());
            }
        }
        Ok(model)
    }

    /// Sets the averages of parameters that were set, if averages are in use: those of before would be used
    /// in the places of the new ones.
    pub(super) fn set_averages(&mut self, tensors: &Tensors) -> Result<(), Error> {
        if !self.plan.parts.uses_averages {
            return Ok(());
        }
        for (name, tensor) in tensors.iter() {
            let states: Vec<&str> = self.plan.programs.averages.states_of(name).collect();
            let indices: Vec<usize> =
                states.into_iter().filter_map(|state| self.state_index(state)).collect();
            for index in indices {
                let written = self.replica_set.replicas.write_state(index, tensor.bytes());
                self.check_result(written)?;
            }
        }
        Ok(())
    }
}

impl Control<'_> {
    /// Sets the parameters to the moving averages that the optimizer keeps of them:
    /// [`Trainer::adopt_average_weights`], as a part of the run. Returns whether there are any.
    ///
    /// # Errors
    /// Of the replicas.
    pub fn adopt_average_weights(&mut self) -> Result<bool, Error> {
        self.awaited()?;
        let Some(tensors) = self.trainer.averaged()? else { return Ok(false) };
        self.trainer.write_weights(|model| Plan::new().take(&tensors, model))?;
        Ok(true)
    }
}
