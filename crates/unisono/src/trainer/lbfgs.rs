//! Steps of L-BFGS: the replicas evaluate all samples several times, the host moves the parameters.

use std::sync::Arc;

use unisono_data::Loader;
use unisono_graph::{Graph, InputKind, Node, NodeId, StateKind, ops};
use unisono_replica::can_run_few_at_once;

use crate::compile::parts::Parts;
use crate::compile::programs::{ProgramId, Programs};
use crate::objective::running::Running;
use crate::optimizers::lbfgs::GRADIENT;
use crate::run::lbfgs::{Began, KeptLbfgs};
use crate::trainer::held_out::{drawn, dropped};
use crate::{Error, Lbfgs, LbfgsStep, Trainer};

/// A parameter that L-BFGS trains, by the indices of its states.
struct Trained {
    weight: usize,
    gradient: usize,
    /// The number of values.
    count: usize,
}

impl Trainer {
    /// Does a step of [`Lbfgs`], the trainer's optimizer, on all samples of a loader (PyTorch's `step` of
    /// `LBFGS` with a closure over all data). All replicas share the work.
    ///
    /// Each evaluation reads one epoch of the loader in batches of the global batch's size, and adds up their
    /// losses and gradients on the host; one batch of all samples is fastest. The step is committed as a
    /// whole: after an error the parameters are those from before it. [`Trainer::save`] saves what L-BFGS
    /// remembers, too, and a resumed run ends in the same bytes. [`Trainer::steps`] counts the batches.
    ///
    /// ```no_run
    /// # use unisono::{Error, Trainer, data::Loader};
    /// # fn run(trainer: &mut Trainer, train: &Loader) -> Result<(), Error> {
    /// trainer.resume()?;
    /// loop {
    ///     let step = trainer.lbfgs_step(train)?;
    ///     trainer.save()?;
    ///     println!("{:.6} after {} evaluations", step.loss, step.evaluations);
    ///     if step.end.is_converged() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The optimizer is not [`Lbfgs`]. The loader does not give the same samples in the same order each time:
    /// it shuffles, draws at random, or leaves out the last batch. The loss or a gradient is not finite, also
    /// where the line search tried too long a step. Otherwise as [`Trainer::step`].
    ///
    /// [`Error::RolledBack`]: replicas were wrong, and the trainer is back at the end of an earlier step.
    #[doc(alias = "LBFGS")]
    pub fn lbfgs_step(&mut self, all: &Loader) -> Result<LbfgsStep, Error> {
        let done = self.lbfgs_step_here(all);
        self.agree(done)
    }

    fn lbfgs_step_here(&mut self, all: &Loader) -> Result<LbfgsStep, Error> {
        let Some(rule) = self.plan.parts.optimizer.of_all_samples().cloned() else {
            let problem = format!("{} is not lbfgs", self.plan.parts.optimizer.name());
            return Err(Error::setting("optimizer", problem));
        };
        self.monitor.check()?;
        self.note_data(all)?;
        let reader = self.reader(all);
        self.check_loader(&reader)?;
        self.same_held_out(all, "trained on")?;
        self.prepare_training(reader.samples_per_epoch())?;
        let trained = self.trained();
        self.go_to_beginning(&trained)?;
        loop {
            let position = self.state.position.clone();
            let weights = self.read_all(trained.iter().map(|trained| trained.weight))?;
            let began = Arc::new(Began { position, weights });
            self.state.lbfgs.began = Some(Arc::clone(&began));
            let error = match self.descend(&rule, &trained, &reader, &began.weights) {
                Ok(step) => return Ok(step),
                Err(error) => error,
            };
            // After wrong replicas, the trusted state may be from this step or from an earlier one.
            let is_this = self.state.lbfgs.began.as_ref().is_some_and(|own| Arc::ptr_eq(own, &began));
            let is_back = self.go_to_beginning(&trained).is_ok();
            if !(is_this && is_back && matches!(error, Error::RolledBack { .. })) {
                return Err(error);
            }
        }
    }

    /// Refuses to train batch by batch with an optimizer that evaluates all samples several times in a step.
    pub(super) fn check_takes_batches(&self) -> Result<(), Error> {
        let Some(_) = self.plan.parts.optimizer.of_all_samples() else { return Ok(()) };
        let name = self.plan.parts.optimizer.name();
        let problem =
            format!("{name} evaluates all samples several times in a step: call Trainer::lbfgs_step");
        Err(Error::setting("optimizer", problem))
    }

    /// Refuses a loader whose epochs differ, or lack samples.
    fn check_loader(&self, reader: &Loader) -> Result<(), Error> {
        let several = reader.samples_per_epoch() > self.state.settings.global_batch as u64;
        let program = self.plan.program(ProgramId::Train);
        let problem = if reader.is_shuffled() {
            "the loader shuffles: every evaluation takes the samples in the same order".to_owned()
        } else if !reader.keeps_order() {
            "the loader makes buckets or lanes: every evaluation takes the samples in the same order"
                .to_owned()
        } else if let Some(dropped) = dropped(reader, "an evaluation") {
            dropped
        } else if several && !can_run_few_at_once(program) {
            "the model sums over the whole global batch, as batch norm and several losses with different weights do: set \
             the global batch to all samples"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::setting("lbfgs", problem))
    }

    /// Returns the parameters that the training step has a gradient of, in the order of the states.
    fn trained(&self) -> Vec<Trained> {
        let states = self.plan.programs.train().states();
        let gradient = |name: &str| {
            let gradient = format!("{name}/{GRADIENT}");
            states.iter().position(|state| state.kind == StateKind::Optimizer && state.name == gradient)
        };
        let parameters = states.iter().enumerate().filter(|(_, state)| state.kind == StateKind::Parameter);
        let trained = parameters.filter_map(|(weight, state)| {
            Some(Trained { weight, gradient: gradient(&state.name)?, count: state.ty.count() })
        });
        trained.collect()
    }

    /// Does the evaluations of a step, and commits it.
    fn descend(
        &mut self,
        rule: &Lbfgs,
        trained: &[Trained],
        reader: &Loader,
        weights: &[f32],
    ) -> Result<LbfgsStep, Error> {
        let mut known = self.state.lbfgs.known().clone();
        let values = weights.len();
        if ![0, values].contains(&known.direction.len()) {
            let problem = format!("its memory is of {} values, not {values}", known.direction.len());
            return Err(Error::setting("lbfgs", problem));
        }
        let mut x: Vec<f64> = weights.iter().map(|&x| f64::from(x)).collect();
        let step = rule.descend(&mut known, &mut x, &mut |x| self.evaluate_all(trained, reader, x))?;
        self.write_all(trained, &in_f32(&x)?)?;
        self.check_before_leaving()?;
        self.state.lbfgs = KeptLbfgs::new(known);
        self.state.running = Running::default();
        self.identify_own_loop();
        Ok(step)
    }

    /// Returns the mean loss of all samples and its gradient at these parameters, which are written to all
    /// replicas. Batches count as the sums of their weights.
    fn evaluate_all(
        &mut self,
        trained: &[Trained],
        reader: &Loader,
        x: &[f64],
    ) -> Result<(f64, Vec<f64>), Error> {
        self.write_all(trained, &in_f32(x)?)?;
        self.state.running = Running::default();
        let (mut gradient, mut total) = (vec![0.0; x.len()], 0.0);
        let mut batches = reader.epoch(self.position().epoch)?;
        for batch in &mut batches {
            let batch = batch?;
            if self.monitor.stop.is_asked() {
                return Err(Error::Stopped);
            }
            if self.steps() == 0 {
                self.note_first_values(&batch, reader)?;
            }
            let before = self.state.running.weight();
            self.step_inner(&batch, Some(reader.source()), batch.after)?;
            self.state.position.skip(batch.skipped.iter().copied());
            let weight = self.state.running.weight() - before;
            let own = self.read_all(trained.iter().map(|trained| trained.gradient))?;
            gradient.iter_mut().zip(own).for_each(|(sum, own)| *sum += weight * f64::from(own));
            total += weight;
        }
        if self.monitor.stop.is_asked() {
            return Err(Error::Stopped);
        }
        if let Some(drawn) = drawn(&batches, "an evaluation") {
            return Err(Error::setting("lbfgs", drawn));
        }
        if total == 0.0 {
            return Err(Error::setting("lbfgs", "the weights of all samples are 0, or there are no samples"));
        }
        gradient.iter_mut().for_each(|sum| *sum /= total);
        let loss = self.state.running.so_far(&self.plan.parts.objective().metrics).loss;
        Ok((loss, gradient))
    }

    /// Goes back to where a step began that is not done, if there is such a step.
    fn go_to_beginning(&mut self, trained: &[Trained]) -> Result<(), Error> {
        let Some(began) = self.state.lbfgs.began.clone() else { return Ok(()) };
        self.write_all(trained, &began.weights)?;
        self.state.position = began.position.clone();
        self.state.running = Running::default();
        self.state.lbfgs.began = None;
        Ok(())
    }

    /// Returns the values of several states, one after the other.
    fn read_all(&mut self, indices: impl Iterator<Item = usize>) -> Result<Vec<f32>, Error> {
        let indices: Vec<usize> = indices.collect();
        let all = self.replica_set.replicas.read_states(&indices, Vec::new());
        let all = self.check_result(all)?;
        let words = all.iter().flat_map(|bytes| bytes.as_chunks().0);
        Ok(words.map(|word| f32::from_le_bytes(*word)).collect())
    }

    /// Writes the values of all trained parameters to all replicas.
    fn write_all(&mut self, trained: &[Trained], values: &[f32]) -> Result<(), Error> {
        self.replica_set.check_state()?;
        self.check_trust()?;
        self.state_was_written();
        let mut rest = values;
        for Trained { weight, count, .. } in trained {
            let (own, others) = rest.split_at((*count).min(rest.len()));
            let written = self.replica_set.replicas.write_state(*weight, bytemuck::cast_slice(own));
            self.check_result(written)?;
            rest = others;
        }
        self.replica_set.compared = None;
        Ok(())
    }
}

/// Rounds parameters to f32.
///
/// # Errors
/// One is too large.
fn in_f32(x: &[f64]) -> Result<Vec<f32>, Error> {
    let rounded: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    if rounded.iter().all(|x| x.is_finite()) {
        return Ok(rounded);
    }
    let problem = "the line search tried a step after which a parameter is not finite: lower lr";
    Err(Error::setting("lbfgs", problem))
}

/// Refuses what a trainer whose optimizer evaluates all samples several times in a step cannot do. `sharded`
/// says whether the optimizer's state is.
///
/// # Errors
/// The loss would differ between two evaluations at the same parameters; the state would not be whole.
pub(super) fn check_all_samples(parts: &Parts, programs: &Programs, sharded: bool) -> Result<(), Error> {
    let in_phase = parts.phases.iter().find(|phase| phase.optimizer.of_all_samples().is_some());
    if let Some(phase) = in_phase {
        let name = phase.optimizer.name();
        let problem = format!("{name} is in the phase {:?}: a run with it has no phases", phase.name);
        return Err(Error::setting("phases", problem));
    }
    if parts.phases.iter().len() > 0 || parts.optimizer.of_all_samples().is_none() {
        return Ok(());
    }
    let name = parts.optimizer.name();
    let refuse = |setting, problem: &str| Err(Error::setting(setting, format!("{name}: {problem}")));
    if parts.precision.is_mixed() {
        return refuse("precision", "the loss scale of mixed precision would change between evaluations");
    }
    if sharded {
        return refuse("shard_optimizer", "the host keeps the state that could be sharded");
    }
    let graph = programs.train().graph();
    if let Some(carry) = graph.inputs.iter().find(|input| input.kind == InputKind::Carry) {
        return refuse("optimizer", &format!("the model carries {} from batch to batch", carry.name));
    }
    if let Some(layer) = layer_that_draws(graph) {
        let layer = if layer.is_empty() { "the model" } else { layer };
        let problem = format!(
            "{layer} draws random numbers in training, as dropout does: every evaluation would have another loss"
        );
        return refuse("optimizer", &problem);
    }
    let moved = graph.updates.keys().map(|&at| &graph.states[at]);
    if let Some(statistic) = moved.into_iter().find(|state| state.kind == StateKind::Statistic) {
        let problem = format!(
            "every evaluation would move the statistic {:?}, as of a batch norm: Builder::freeze_statistics keeps it",
            statistic.name
        );
        return refuse("optimizer", &problem);
    }
    Ok(())
}

/// Returns the path of the first layer that draws random numbers, if one does. What only asks for the rows of
/// the batch that a shard has draws none.
fn layer_that_draws(graph: &Graph) -> Option<&str> {
    let is_key = |&id: &NodeId| match graph.nodes[id].op.downcast_ref() {
        Some(&ops::Input(input)) => graph.inputs[input].kind == InputKind::Random,
        None => false,
    };
    let draws = |node: &&Node| node.inputs.iter().any(is_key) && !node.op.is::<ops::BatchRow>();
    graph.nodes.iter().find(draws).map(|node| &*node.scope)
}
