//! One training step: the batch is checked and fed, what the replicas computed is judged, and the step is
//! recorded.

use unisono_data::{Batch, Position};
use unisono_graph::{NodeId, Program};
use unisono_replica::{Outcome, ReplicaError};

use crate::compile::asked::Asked;
use crate::compile::feed::{self, Names};
use crate::compile::outputs::Reading;
use crate::compile::programs::SCALE;
use crate::objective::running::Running;
use crate::observe::events;
use crate::optimizers::Scalar;
use crate::run::loss_scale::Scaling;
use crate::run::state::RunState;
use crate::{Error, Step, Trainer};

/// A step that was started.
pub(super) struct Started {
    /// The number of its phase, in a run with phases.
    phase: Option<usize>,
    learning_rate: Option<f64>,
    /// The run's state before it, if it is audited.
    before: Option<RunState>,
    /// The weights of all samples, if other machines have a part of them.
    weights: Option<Vec<f32>>,
    submission: Submission,
}

/// How far the replicas are with a step.
enum Submission {
    /// The step was submitted; the device decides by itself whether it commits.
    InFlight,
    /// The replicas have answered.
    Done(Result<Outcome, ReplicaError>),
}

/// What a step did to the state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepOutcome {
    /// The update is in the state.
    Committed,
    /// All weights of its samples were 0, so there was no update.
    Skipped,
    /// A sum overflowed at this loss scale. There was no update, and the next step has a smaller scale.
    Overflowed,
}

impl Started {
    /// Returns whether the step is in flight.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.submission, Submission::InFlight)
    }
}

impl Trainer {
    /// Trains on one batch, for your own training loop (PyTorch's `zero_grad`, `backward` and `step`). The
    /// batch may have any size up to the global batch.
    ///
    /// The means that it returns are those of the batch's epoch so far. A loader returns no batch if all
    /// samples of a batch were left out, so the trainer does not count such a batch. Because the trainer does
    /// not know the loader, a resume cannot compare the data, and the run's identity does not cover them.
    ///
    /// # Errors
    /// The batch lacks a field of the model, or a sample is bad. A loss, a gradient or a carry is not finite
    /// (in mixed precision: even at the smallest loss scale). The learning rate or another scalar of the
    /// optimizer is not finite. The optimizer is [`Lbfgs`](crate::Lbfgs). An observer or a metric panicked
    /// before. In these cases nothing has changed.
    ///
    /// [`Error::StateNotFinite`]: a new value of the state is not finite. The state has changed; resume from
    /// a checkpoint. [`Error::RolledBack`]: replicas were wrong, and the trainer is back at an earlier step.
    #[doc(alias = "train_on_batch")]
    pub fn step(&mut self, batch: &Batch) -> Result<Step, Error> {
        self.monitor.check()?;
        self.check_takes_batches()?;
        if batch.first == 0 && batch.epoch < self.position().epoch {
            self.monitor.note_once(&format!(
                "note: the loop trains epoch {} again, with the same order and the same draws: Loader::epoch takes the \
                 number of the epoch",
                batch.epoch
            ));
        }
        self.keep_scales(batch)?;
        let step = self.step_inner(batch, None, batch.after)?;
        if !self.callbacks.all.is_empty() {
            self.monitor.note_once(
                "note: Trainer::step calls no callbacks, such as EarlyStopping: Trainer::fit does",
            );
        }
        self.identify_own_loop();
        if batch.after.epoch > batch.epoch {
            self.state.running = Running::default();
        }
        self.state.position.skip(batch.skipped.iter().copied());
        Ok(step)
    }

    /// Does a step, after which the run is at `after`.
    pub(super) fn step_inner(
        &mut self,
        batch: &Batch,
        names: Names<'_>,
        after: Position,
    ) -> Result<Step, Error> {
        let started = self.start_step(batch, names)?;
        self.end_step(batch, started, names, after)
    }

    /// Starts a step: submits it where the device decides by itself whether it commits, and otherwise makes
    /// it at once.
    pub(super) fn start_step(&mut self, batch: &Batch, names: Names<'_>) -> Result<Started, Error> {
        let phase = self.phase_for(batch.epoch)?;
        let number = phase.unwrap_or(0);
        let learning_rate = self.plan.parts.optimizer_of(phase).learning_rate(self.optimizer_step(phase));
        self.replica_set.check_state()?;
        self.compile_for(batch)?;
        self.check_batch(batch, names)?;
        let before = self.before_step(self.plan.train_index(batch, number))?;
        let weights = self.gather_weights(batch)?;
        let scalars = self.scalars(phase, self.optimizer_step(phase))?;
        let carried = self.state.carries.with(batch)?;
        let feed = self.plan.feed_train(number, &carried, &scalars, self.state.settings.seed)?;
        let traced = self.plan.programs_of(batch).train_in(number);
        let feed = self.with_rest(feed, traced, &carried, &scalars, (false, &Asked::default()));
        let program = self.plan.train_index(batch, number);
        let begun = self.replica_set.replicas.begin(program, &feed);
        let submission = match self.check_result(begun)? {
            true => Submission::InFlight,
            false => {
                let _span = events::step_span(self.state.position.step);
                let trained = self.plan.programs_of(batch).train_in(number).clone();
                let verdict = &mut |outputs: &_| Reading::new(&trained, outputs).verdict();
                Submission::Done(self.replica_set.replicas.step(program, &feed, verdict))
            }
        };
        Ok(Started { phase, learning_rate, before, weights, submission })
    }

    /// Starts the step after one that is in flight. Returns `None`, and nothing has happened, if it has to
    /// wait for that one's end, or if something is wrong with it, which is found again when its turn comes.
    pub(super) fn start_ahead(&mut self, batch: &Batch, names: Names<'_>) -> Option<Started> {
        let is_audited_later = !self.replica_set.is_audited || !self.trust.begins();
        if !is_audited_later || !self.plan.is_compiled_for(batch) {
            return None;
        }
        self.check_batch(batch, names).ok()?;
        let step = self.optimizer_step(None) + 1;
        let learning_rate = self.plan.parts.optimizer_of(None).learning_rate(step);
        let scalars = self.scalars(None, step).ok()?;
        let feed = self.plan.feed_train(0, batch, &scalars, self.state.settings.seed).ok()?;
        let begun = self.replica_set.replicas.begin(self.plan.train_index(batch, 0), &feed);
        begun.is_ok_and(|begun| begun).then_some(Started {
            phase: None,
            learning_rate,
            before: None,
            weights: None,
            submission: Submission::InFlight,
        })
    }

    /// Returns whether the next step may be submitted while this one, on a batch, is in flight: nothing that
    /// happens between the two needs the state, or has a part in the next step.
    pub(super) fn may_overlap(&self, batch: &Batch) -> bool {
        let done = self.state.position.step + 1;
        let saves = self.saver.as_ref().is_some_and(|saver| saver.are_due(done, &self.state.history, false));
        self.replica_set.replicas.in_flight() == 1
            && self.replica_set.replicas.is_overlapping()
            && batch.after.epoch == batch.epoch
            && self.state.carries.is_empty()
            && self.state.loss_scale.is_none()
            && self.plan.parts.phases.is_empty()
            && !self.callbacks.await_steps()
            && !self.replica_set.is_comparison_due(done)
            && !self.is_over()
            && !saves
            && !self.data_hash.puts_off()
    }

    /// Waits for a step that was started, judges it and records it.
    pub(super) fn end_step(
        &mut self,
        batch: &Batch,
        started: Started,
        names: Names<'_>,
        after: Position,
    ) -> Result<Step, Error> {
        let Started { phase, learning_rate, before, weights, submission } = started;
        let number = phase.unwrap_or(0);
        let made = match submission {
            Submission::Done(made) => made,
            Submission::InFlight => {
                let _span = events::step_span(self.state.position.step);
                self.replica_set.replicas.finish()
            }
        };
        let (did, mut outcome) = self.decide_outcome(batch, number, made, names)?;
        if let Some(phase) = phase.and_then(|at| self.plan.parts.phases.get(at)) {
            self.state.phases.stepped(phase, batch.epoch, did == StepOutcome::Committed);
        }
        let given = self.weights_of(batch, weights.as_deref());
        let step = Step { learning_rate, ..self.record(batch, number, did, &outcome, given, after) };
        if step.step == 0 && step.committed {
            self.note_first_step(&step);
        }
        if let (Some(before), Some(audit)) = (before, outcome.audit.take()) {
            self.passed(before, audit);
        }
        if self.replica_set.is_comparison_due(self.state.position.step) {
            self.check_replicas()?;
        }
        Ok(step)
    }

    /// Refuses a batch that cannot be trained on.
    fn check_batch(&self, batch: &Batch, names: Names<'_>) -> Result<(), Error> {
        let most = self.state.settings.global_batch;
        if batch.len() > most || batch.len() == 0 {
            let problem = format!("a batch of {} samples in steps of {most}", batch.len());
            return Err(Error::setting("global batch", problem));
        }
        self.plan.check(batch, names)
    }

    /// Returns the number of the next step as the optimizer counts, or that of a phase: without those that
    /// were skipped, for a loss scale or because all weights were 0.
    pub(super) fn optimizer_step(&self, phase: Option<usize>) -> u64 {
        match phase.and_then(|at| self.plan.parts.phases.get(at)) {
            Some(phase) => self.state.phases.of(&phase.name),
            None => self.state.optimizer_steps(),
        }
    }

    /// Returns the number of the phase whose turn the next step is in an epoch, if any.
    pub(super) fn phase_in(&self, epoch: u32) -> Option<usize> {
        self.state.phases.next(&self.plan.parts.phases, epoch)
    }

    /// Returns the number of the phase of the next step, or `None` in a run without phases.
    ///
    /// # Errors
    /// The run has phases, and none of them has turns in the epoch.
    pub(super) fn phase_for(&self, epoch: u32) -> Result<Option<usize>, Error> {
        let phase = self.phase_in(epoch);
        if phase.is_none() && !self.plan.parts.phases.is_empty() {
            return Err(Error::setting("phases", format!("none has turns in epoch {epoch}, counted from 0")));
        }
        Ok(phase)
    }

    /// Returns the numbers of a step, counted as the optimizer counts.
    ///
    /// # Errors
    /// One of the optimizer's is not finite.
    pub(super) fn scalars(&self, phase: Option<usize>, step: u64) -> Result<Vec<Scalar>, Error> {
        let scaling = self.state.loss_scale.as_ref();
        let scalars = self.plan.parts.optimizer_of(phase).finite_scalars(step);
        let mut scalars = scalars.map_err(|problem| Error::setting("optimizer", problem))?;
        scalars.extend(scaling.into_iter().flat_map(|s| s.scalars(self.state.settings.global_batch)));
        Ok(scalars)
    }

    /// Checks the numbers of a step that the replicas made. Returns what the step did to the state, and the
    /// replicas' outcome.
    ///
    /// # Errors
    /// A number that is not finite, and that a smaller loss scale cannot help; an error of the replicas.
    fn decide_outcome(
        &mut self,
        batch: &Batch,
        phase: usize,
        outcome: Result<Outcome, ReplicaError>,
        names: Names<'_>,
    ) -> Result<(StepOutcome, Outcome), Error> {
        let program = self.plan.programs_of(batch).train_in(phase).clone();
        self.notify_left();
        let (did, outcome) = match outcome {
            Ok(outcome) if outcome.committed => (StepOutcome::Committed, outcome),
            Ok(outcome) => (StepOutcome::Skipped, outcome),
            Err(ReplicaError::NotFinite { what, outputs, sum, .. }) => {
                let bad = Reading::new(&program, &outputs).bad_sample();
                if bad.is_some() || !self.may_back_off(&program, sum) {
                    return Err(self.not_finite(batch, bad, what, names));
                }
                (StepOutcome::Overflowed, Outcome { outputs: *outputs, ..Outcome::default() })
            }
            Err(ReplicaError::StateNotFinite { tensor, more, .. }) => {
                // What was handed over before is the newest that can be resumed.
                self.durable();
                let step = self.steps();
                return Err(self.replica_set.mark_non_finite(step, tensor, more));
            }
            Err(error) => return self.check_result(Err(error)),
        };
        let reading = Reading::new(&program, &outcome.outputs);
        // A bad loss whose weight is 0 reaches no sum.
        if let Some(bad) = reading.bad_sample() {
            return Err(self.not_finite(batch, Some(bad), String::new(), names));
        }
        if let Some(what) = reading.bad_penalty() {
            return Err(self.not_finite(batch, None, format!("the {what}"), names));
        }
        if let Some(carry) = reading.bad_carry() {
            let what = format!("the carry {carry}");
            if did == StepOutcome::Committed {
                // What was handed over before is the newest that can be resumed.
                self.durable();
                let step = self.steps();
                return Err(self.replica_set.mark_non_finite(step, what, 0));
            }
            return Err(self.not_finite(batch, None, what, names));
        }
        Ok((did, outcome))
    }

    /// Returns whether a smaller loss scale may make a sum finite.
    fn may_back_off(&self, program: &Program, sum: Option<NodeId>) -> bool {
        let is_scaled = sum.is_some_and(|sum| program.depends_on(sum, SCALE));
        is_scaled && self.state.loss_scale.as_ref().is_some_and(Scaling::can_back_off)
    }

    /// Records a step in the run's state. Returns the [`Step`] for the caller, callbacks and observers.
    fn record(
        &mut self,
        batch: &Batch,
        phase: usize,
        did: StepOutcome,
        outcome: &Outcome,
        given: Option<&[f32]>,
        after: Position,
    ) -> Step {
        let program = self.plan.programs_of(batch).train_in(phase);
        let reading = Reading::new(program, &outcome.outputs);
        let metrics = &self.plan.parts.objective().metrics;
        let measured = reading.measured(&self.plan.parts, given, reading.penalty());
        let state = &mut self.state;
        match did {
            StepOutcome::Committed => {
                state.carries.take(program, &outcome.outputs);
                state.loss_scale.iter_mut().for_each(Scaling::went_well);
            }
            StepOutcome::Skipped => state.position.weightless += 1,
            StepOutcome::Overflowed => state.loss_scale.iter_mut().for_each(Scaling::overflowed),
        }
        // Only a user's own loop may go from any batch to any other.
        if batch.epoch != state.position.data.position.epoch {
            state.running = Running::default();
        }
        state.running.add(metrics, &measured);
        let done = feed::behind(batch).sample;
        let step = Step {
            step: state.position.step,
            epoch: batch.epoch,
            epochs: batch.epoch + 1,
            done,
            of: done,
            samples: batch.len() as u64,
            learning_rate: None,
            now: Running::of_step(metrics, &measured),
            so_far: state.running.so_far(metrics),
            committed: did == StepOutcome::Committed,
        };
        state.position.step += 1;
        state.position.data.position = after;
        state.replay.step_ended();
        self.monitor.panicked = self.monitor.panicked.take().or(state.running.take_panic());
        step
    }
}
