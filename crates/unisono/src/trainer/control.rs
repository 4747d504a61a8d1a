//! What a callback can do with a run.

use unisono_checkpoint::Plan;
use unisono_data::{Batch, Loader};

use crate::compile::parts::epochs_in;
use crate::observe::logged::Logged;
use crate::optimizers::{RateChange, RateReduction};
use crate::run::control::{RunControl, Stopped};
use crate::trainer::Trainer;
use crate::trainer::callback::not_awaited;
use crate::{Epoch, Error, Evaluation, History, Predictions};

/// Lets a [`Callback`](crate::Callback) see a run and change how it continues.
///
/// A learning rate that is set in [`Callback::step_ended`](crate::Callback::step_ended) of step n takes
/// effect at step n + 2, because step n + 1 may already be running. A rate that is set at the end of an epoch
/// takes effect at the next step. All changes are part of the run and of its checkpoints: a resumed run
/// continues as the original would have. Predictions, evaluations and weights are those after all previous
/// steps.
pub struct Control<'a> {
    pub(super) trainer: &'a mut Trainer,
    /// The callback that is called.
    pub(super) name: String,
    /// The number of steps that are under way after those that are done.
    pub(super) ahead: u64,
    /// The epoch of the next step.
    pub(super) epoch: u32,
    /// Whether the next step does not wait for this call.
    pub(super) is_ahead: bool,
}

impl Control<'_> {
    /// Returns the number of steps done.
    pub fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    /// Returns the results of all epochs so far, including the one that has just ended.
    pub fn history(&self) -> &History {
        self.trainer.history()
    }

    /// Returns the learning rate of the next step, or `None` if the optimizer has no
    /// [`Schedule`](crate::Schedule) or no [`Phase`](crate::Phase) of the run has turns in the next step's
    /// epoch. Changes that take effect later are not included.
    pub fn learning_rate(&self) -> Option<f64> {
        self.trainer.learning_rate_in(self.epoch)
    }

    /// Returns the names of the run's phases, in order. They are empty in a run without phases.
    pub fn phases(&self) -> Vec<String> {
        self.trainer.plan.parts.phases.iter().map(|phase| phase.name.clone()).collect()
    }

    /// Returns the number of steps done when a run that had ended was last let train on, or 0.
    pub(crate) fn gone_on(&self) -> u64 {
        self.trainer.state.control.gone_on.unwrap_or_default()
    }

    /// Returns the epochs so far in which a phase has turns.
    ///
    /// # Errors
    /// The run has no such phase.
    pub(crate) fn history_of(&self, phase: &str) -> Result<&[Epoch], Error> {
        self.has_phase(phase)?;
        let own = self.trainer.plan.parts.phases.iter().find(|own| own.name == phase);
        Ok(own.map_or(&[], |own| epochs_in(self.trainer.history(), &own.epochs)))
    }

    /// Returns the learning rate of the next step of a phase, or `None` if there is no such phase or its
    /// optimizer has no [`Schedule`](crate::Schedule).
    pub fn learning_rate_of(&self, phase: &str) -> Option<f64> {
        let at = self.trainer.plan.parts.phases.iter().position(|other| other.name == phase)?;
        let step = self.trainer.optimizer_step(Some(at));
        self.trainer.plan.parts.optimizer_of(Some(at)).learning_rate(step)
    }

    /// Sets the learning rate, in place of the schedule's. All optimizers of [`Groups`](crate::Groups) and of
    /// [`Phase`](crate::Phase)s get this rate.
    ///
    /// # Errors
    /// The rate is negative or not finite. An optimizer has no schedule.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), Error> {
        self.each_phase(|run, phase| run.set_rate(phase, rate))
    }

    /// Multiplies the learning rate by a factor, on top of earlier factors. In a run with
    /// [`Phase`](crate::Phase)s, the rates of all phases are multiplied.
    ///
    /// # Errors
    /// The factor is negative or not finite. An optimizer has no schedule.
    pub fn scale_learning_rate(&mut self, factor: f64) -> Result<(), Error> {
        self.each_phase(|run, phase| run.scale_rate(phase, factor))
    }

    /// Sets the learning rate of a phase, in place of its schedule's. If it is set in
    /// [`Callback::step_ended`](crate::Callback::step_ended), it takes effect at the phase's second step
    /// after this one, because the first may already be running.
    ///
    /// # Errors
    /// As [`Control::set_learning_rate`]; the run has no such phase.
    pub fn set_learning_rate_of(&mut self, phase: &str, rate: f64) -> Result<(), Error> {
        self.has_phase(phase)?;
        self.set_rate(Some(phase), rate)
    }

    /// Multiplies the learning rate of a phase by a factor, on top of earlier factors. It takes effect at the
    /// same step as [`Control::set_learning_rate_of`] would.
    ///
    /// # Errors
    /// As [`Control::scale_learning_rate`]; the run has no such phase.
    pub fn scale_learning_rate_of(&mut self, phase: &str, factor: f64) -> Result<(), Error> {
        self.has_phase(phase)?;
        self.scale_rate(Some(phase), factor)
    }

    /// Refuses what needs the state after a step, if the next step may be under way.
    pub(super) fn awaited(&self) -> Result<(), Error> {
        if self.is_ahead { Err(not_awaited(&self.name, "needs the model")) } else { Ok(()) }
    }

    fn has_phase(&self, phase: &str) -> Result<(), Error> {
        let names = self.phases();
        if names.iter().any(|name| name == phase) {
            return Ok(());
        }
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::setting("learning rate", format!("the run has no phase {phase:?}: there is {there}")))
    }

    /// Calls a function for each phase, or once in a run without phases.
    fn each_phase(
        &mut self,
        mut call: impl FnMut(&mut Self, Option<&str>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let names = self.phases();
        if names.is_empty() {
            return call(self, None);
        }
        names.iter().try_for_each(|name| call(self, Some(name)))
    }

    /// Checks that the learning rate of this phase, or of all phases, can be changed.
    ///
    /// # Errors
    /// The run has no such phase; an optimizer has no schedule that can be changed.
    pub(crate) fn check_rates_can_change(&mut self, phase: Option<&str>) -> Result<(), Error> {
        match phase {
            Some(name) => {
                self.has_phase(name)?;
                self.try_rate_change(phase)
            }
            None => self.each_phase(Self::try_rate_change),
        }
    }

    /// Tries a rate change at a step that never comes, then restores the actual changes.
    fn try_rate_change(&mut self, phase: Option<&str>) -> Result<(), Error> {
        let never = [RateChange { from: u64::MAX, ..RunControl::default().last_rate(None) }];
        let control = &self.trainer.state.control;
        let parts = &mut self.trainer.plan.parts;
        let tried = parts.set_changes(|of| if of == phase { &never } else { control.rates(of) });
        self.trainer.apply_rates()?;
        tried.map_err(|problem| Error::setting("learning rate", problem))
    }

    /// Lowers the learning rate of a phase, or of all: that of each of its optimizers by itself.
    ///
    /// # Errors
    /// As [`Control::scale_learning_rate_of`].
    pub(crate) fn reduce_rates(
        &mut self,
        phase: Option<&str>,
        reduction: &RateReduction,
    ) -> Result<(), Error> {
        match phase {
            Some(name) => {
                self.has_phase(name)?;
                self.reduce_rate(phase, reduction)
            }
            None => self.each_phase(|run, phase| run.reduce_rate(phase, reduction)),
        }
    }

    fn reduce_rate(&mut self, phase: Option<&str>, reduction: &RateReduction) -> Result<(), Error> {
        let mut change = self.trainer.state.control.last_rate(phase);
        match change.reductions.last_mut() {
            Some(last) if (last.factor, last.least) == (reduction.factor, reduction.least) => {
                last.times += reduction.times;
            }
            _ => change.reductions.push(reduction.clone()),
        }
        self.change_rate(phase, change)
    }

    fn set_rate(&mut self, phase: Option<&str>, rate: f64) -> Result<(), Error> {
        let change = RunControl::default().last_rate(phase);
        self.change_rate(phase, RateChange { rate: Some(rate), ..change })
    }

    fn scale_rate(&mut self, phase: Option<&str>, factor: f64) -> Result<(), Error> {
        let mut change = self.trainer.state.control.last_rate(phase);
        match change.reductions.last_mut() {
            None => {
                change.rate = change.rate.map(|rate| rate * factor);
                change.factor *= factor;
            }
            // It scales what the reductions have left.
            Some(last) if last.is_scale() => last.factor *= factor,
            Some(_) => change.reductions.push(RateReduction::scale(factor)),
        }
        self.change_rate(phase, change)
    }

    fn change_rate(&mut self, phase: Option<&str>, change: RateChange) -> Result<(), Error> {
        let values = change.reductions.iter().map(|reduction| reduction.factor);
        let mut values = values.chain([change.rate.unwrap_or(change.factor)]);
        if let Some(value) = values.find(|value| !(*value as f32).is_finite() || *value < 0.0) {
            let problem = format!("{value} by the callback {:?} is not finite, or negative", self.name);
            return Err(Error::setting("learning rate", problem));
        }
        // Checked first, so that a change that cannot be applied is not recorded.
        self.try_rate_change(phase)?;
        let phases = &self.trainer.plan.parts.phases;
        let next = self.trainer.optimizer_step(phases.iter().position(|own| Some(&*own.name) == phase));
        let change = RateChange { from: next + self.ahead, ..change };
        self.trainer.state.control.change_rate(phase, change, next);
        self.trainer.apply_rates()
    }

    /// Ends the run for good, after this step or epoch. The fit saves the run and returns. Later fits, also
    /// after a resume, train no more unless [`Trainer::go_on`] was called. If there are several reasons, the
    /// first counts.
    pub fn stop(&mut self, reason: &str) {
        let stopped = Stopped { steps: self.steps(), by: self.name.clone(), reason: reason.to_owned() };
        self.trainer.state.control.stopped.get_or_insert(stopped);
    }

    /// Ends the fit after this step or epoch, as a signal does. It saves the run and returns, and the next
    /// fit continues from there. On several machines, one callback on one machine is enough.
    pub fn pause(&mut self, reason: &str) {
        let by = &self.name;
        self.trainer.callbacks.pause.get_or_insert_with(|| format!("by {by}: {reason}"));
    }

    /// Saves the run after all callbacks were called, also before the first step of a fit, if it has a
    /// checkpoint directory. This very step is saved: even if the disk is slow, no later step is saved in its
    /// place.
    pub fn save(&mut self) {
        self.trainer.callbacks.save = true;
    }

    /// Evaluates one epoch of a loader, as [`Trainer::evaluate`] does. The first batch is audited, unless
    /// audits are off.
    ///
    /// # Errors
    /// Those of [`Trainer::evaluate`].
    pub fn evaluate(&mut self, loader: &Loader) -> Result<Evaluation, Error> {
        self.awaited()?;
        self.trainer.evaluate_audited(loader)
    }

    /// Returns the model's output for every sample of a loader: [`Trainer::predict`].
    ///
    /// # Errors
    /// Those of [`Trainer::predict`].
    pub fn predict(&mut self, loader: &Loader) -> Result<Vec<f32>, Error> {
        self.awaited()?;
        self.trainer.predict(loader)
    }

    /// Returns all outputs of the model for every sample of a loader: [`Trainer::predict_all`].
    ///
    /// # Errors
    /// Those of [`Trainer::predict_all`].
    pub fn predict_all(&mut self, loader: &Loader) -> Result<Predictions, Error> {
        self.awaited()?;
        self.trainer.predict_all(loader)
    }

    /// Returns the model's output for a batch: [`Trainer::predict_batch`].
    ///
    /// # Errors
    /// Those of [`Trainer::predict_batch`].
    pub fn predict_batch(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        self.awaited()?;
        self.trainer.predict_batch(batch)
    }

    /// Sets the carries of [`Control::predict_batch`] back to zeros.
    pub fn reset_carries(&mut self) {
        self.trainer.using.reset();
    }

    /// Returns the values of a parameter, a statistic or optimizer state, by name: [`Trainer::tensor`].
    pub fn tensor(&mut self, name: &str) -> Option<Result<Vec<f32>, Error>> {
        match self.awaited() {
            Ok(()) => self.trainer.tensor(name),
            Err(error) => Some(Err(error)),
        }
    }

    /// Logs a value under a tag: [`Trainer::log`].
    pub fn log(&mut self, tag: &str, value: impl Into<Logged>) {
        self.trainer.log(tag, value);
    }

    /// Tells the observers something.
    pub fn note(&mut self, text: &str) {
        self.trainer.monitor.note(text);
    }

    /// Keeps a copy of the present parameters and statistics, in the host's memory and in checkpoints. It
    /// replaces the copy that this callback kept before. With
    /// [`Builder::use_average_weights`](crate::Builder::use_average_weights), the averages are kept.
    ///
    /// # Errors
    /// Of the replicas.
    pub fn keep_weights(&mut self) -> Result<(), Error> {
        self.awaited()?;
        self.trainer.check_before_leaving()?;
        let tensors = self.trainer.weights_in_use()?;
        self.trainer.state.control.keep(&self.name, tensors);
        self.trainer.monitor.kept_at = Some(self.trainer.steps());
        Ok(())
    }

    /// Sets parameters and statistics to those that this callback kept. The optimizer state stays as it is.
    /// Returns false, and changes nothing, if the callback has kept none.
    ///
    /// # Errors
    /// The replicas fail. The kept parameters and statistics come from another program, and do not fit the
    /// model.
    pub fn restore_weights(&mut self) -> Result<bool, Error> {
        self.awaited()?;
        self.trainer.put_back_kept(&self.name)
    }
}

impl Trainer {
    /// Returns why a callback ended the run for good, if one has.
    pub fn stopped(&self) -> Option<&Stopped> {
        self.state.control.stopped.as_ref()
    }

    /// Lets a run continue after a callback has ended it. [`EarlyStopping`](crate::EarlyStopping) starts
    /// counting epochs without improvement again.
    pub fn go_on(&mut self) {
        if self.state.control.stopped.take().is_some() {
            self.state.control.gone_on = Some(self.steps());
        }
    }

    /// Returns the learning rate that the next step has, or `None` if the optimizer has no
    /// [`Schedule`](crate::Schedule) or no [`Phase`](crate::Phase) of the run has turns in the epoch of the
    /// next step.
    pub fn learning_rate(&self) -> Option<f64> {
        self.learning_rate_in(self.position().epoch)
    }

    /// Returns the learning rate of the next step, if that is in this epoch.
    fn learning_rate_in(&self, epoch: u32) -> Option<f64> {
        let phase = self.phase_for(epoch).ok()?;
        self.plan.parts.optimizer_of(phase).learning_rate(self.optimizer_step(phase))
    }

    /// Shows the optimizer what callbacks have changed of the learning rate.
    pub(super) fn apply_rates(&mut self) -> Result<(), Error> {
        let control = &self.state.control;
        let applied = self.plan.parts.set_changes(|phase| control.rates(phase));
        applied.map_err(|problem| Error::setting("learning rate", problem))
    }

    /// Sets parameters and statistics to those that a callback has kept, as
    /// [`EarlyStopping::restore_best`](crate::EarlyStopping::restore_best) does when it stops a run. Returns
    /// whether there were any. Training that continues from here is another run.
    ///
    /// # Errors
    /// As [`Control::restore_weights`].
    pub fn restore_kept_weights(&mut self) -> Result<bool, Error> {
        let kept = self.state.control.kept(None);
        if kept.is_empty() {
            return Ok(false);
        }
        self.take_weights(|model| Plan::new().take(&kept, model))?;
        Ok(true)
    }

    /// Tells observers that a fit which has done its last epoch, and that no callback ended, has not restored
    /// the weights that one keeps: the next fit goes on from those of the last epoch, as one fit over all
    /// epochs would.
    pub(super) fn note_kept(&mut self, epochs: u32) {
        let is_last = self.monitor.kept_at == Some(self.steps());
        let Some(by) = self.state.control.keeper().map(str::to_owned).filter(|_| !is_last) else { return };
        if self.position().epoch >= epochs && !self.is_ended() && !self.monitor.stop.is_asked() {
            self.monitor.note(&format!(
                "note: all {epochs} epochs are done, and the weights are those of the last one: {by} has kept better ones, \
                 which Trainer::restore_kept_weights sets"
            ));
        }
    }

    /// Writes the weights that a callback keeps to all replicas. Returns whether there are any.
    fn put_back_kept(&mut self, by: &str) -> Result<bool, Error> {
        let kept = self.state.control.kept(Some(by));
        if kept.is_empty() {
            return Ok(false);
        }
        self.write_weights(|model| Plan::new().take(&kept, model))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use unisono_data::{Loader, Memory};
    use unisono_replica::Audits;

    use crate::compile::programs::ProgramId;
    use crate::{Dense, EvaluateEvery, Trainer};

    /// Evaluations by which callbacks decide are audited, as those at the ends of epochs are.
    #[test]
    fn the_first_batch_of_an_evaluation_by_a_callback_is_audited() {
        let data = Loader::new(Memory::labelled(vec![0.5; 24], [1], vec![0; 24]).unwrap());
        let builder = Trainer::builder(Dense::new(2)).global_batch(4).replicas(2);
        let builder = builder.audits(Audits::Every(1_000_000)).callback(EvaluateEvery::steps(3, &data));
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        let audits = trainer.replica_set.replicas.audits(ProgramId::Evaluate.index());
        assert_eq!((audits.steps, audits.passed), (12, 2));
    }
}
