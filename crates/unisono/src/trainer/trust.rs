//! The last state that is trusted, and the way back to it when replicas were found to be wrong.
//!
//! ```text
//! start of the run, or a checkpoint that is trusted --> trusted (start values are computed again, not kept)
//! step N --> passes its audit --> the state before it is trusted, and checkpoints up to N + 1 are
//!        --> does not pass, or the replicas' states differ --> replicas that are wrong leave
//!        --> back to the trusted state; later checkpoints are set aside --> the steps are made again
//! ```

use std::sync::Arc;

use unisono_data::Batch;
use unisono_replica::{Audited, ReplicaError};

use crate::compile::outputs::Reading;
use crate::run::state::{RunState, SavedRun};
use crate::saving::tensors::in_order;
use crate::trainer::start::write_start_values;
use crate::{Error, Trainer};

/// A state of the run that is trusted.
pub(super) struct Trusted {
    /// The step up to which checkpoints are trusted with it.
    until: u64,
    state: RunState,
    /// The tensors in the order of the training program's states. `None` stands for their start values.
    tensors: Option<Arc<Vec<Vec<u8>>>>,
}

/// How far a run is trusted.
#[derive(Default)]
pub(super) enum Trust {
    /// The state at hand is where trust begins: nothing was computed yet, or the caller has set it.
    #[default]
    Begins,
    /// The state at hand is the start values: nothing was computed, set or loaded yet.
    New,
    /// This state is trusted.
    State(Box<Trusted>),
    /// The run was resumed from a checkpoint that no audit has confirmed.
    Resumed,
    /// The state at hand may be wrong, and the run cannot go back: it is over until it is resumed.
    Lost(String),
}

impl Trust {
    /// Returns whether the state at hand is where trust begins.
    pub(super) fn begins(&self) -> bool {
        matches!(self, Self::Begins | Self::New)
    }
}

impl Trainer {
    /// Notes that a part of the state was written: it is no longer the start values.
    pub(super) fn state_was_written(&mut self) {
        if matches!(self.trust, Trust::New) {
            self.trust = Trust::Begins;
        }
    }

    /// Notes that the state was set from outside: trust begins anew.
    pub(super) fn state_was_set(&mut self) {
        self.trust = Trust::Begins;
        self.replica_set.compared = None;
        self.forget_witnessed();
    }

    /// Refuses to go on with a state that may be wrong.
    pub(super) fn check_trust(&self) -> Result<(), Error> {
        match &self.trust {
            Trust::Lost(why) => Err(Error::Untrusted { why: why.clone() }),
            _ => Ok(()),
        }
    }

    /// Checks what is about to leave the trainer: that the state may be trusted, and that all replicas have
    /// the same.
    ///
    /// # Errors
    /// [`Error::Untrusted`], [`Error::RolledBack`].
    pub(super) fn check_before_leaving(&mut self) -> Result<(), Error> {
        self.check_trust()?;
        if self.replica_set.is_unchecked(self.state.position.step) {
            self.check_replicas()?;
        }
        Ok(())
    }

    /// Prepares a training step: keeps the state if trust begins with it. Returns the run's state if the step
    /// is audited.
    pub(super) fn before_step(&mut self, program: usize) -> Result<Option<RunState>, Error> {
        self.check_trust()?;
        if !self.replica_set.is_audited {
            return Ok(None);
        }
        self.hear_witness(false)?;
        if self.trust.begins() {
            // Each replica gives a part of what is kept.
            self.check_replicas()?;
            let tensors = match self.trust {
                Trust::New => None,
                _ => Some(Arc::new(self.read_states()?)),
            };
            let state = self.state_before_step();
            self.trust = Trust::State(Box::new(Trusted { until: self.steps(), state, tensors }));
        }
        let due = self.replica_set.replicas.is_audit_due(program);
        Ok(due.then(|| self.state_before_step()))
    }

    /// Returns the run's state as the last step left it. A replay buffer already has what the next step is
    /// made on.
    fn state_before_step(&self) -> RunState {
        let mut state = self.state.clone();
        state.replay.rewind();
        state
    }

    /// Takes the result of an audit that was passed, of the step that began with `state`.
    pub(super) fn confirm(&mut self, state: RunState, audit: Audited) {
        let step = state.position.step;
        if self.doubted.is_some_and(|doubted| step >= doubted) {
            self.doubted = None;
        }
        self.trust = Trust::State(Box::new(Trusted { until: step + 1, state, tensors: Some(audit.before) }));
        self.saver.iter_mut().for_each(|saver| saver.confirm(step + 1));
    }

    /// Lets trust begin at the state at hand, if an audit vouches for it: a fit never goes back to batches of
    /// an earlier one.
    pub(super) fn trust_the_end(&mut self) -> Result<(), Error> {
        if let Trust::State(trusted) = &self.trust
            && trusted.until == self.steps()
        {
            self.check_replicas()?;
            self.trust = Trust::Begins;
        }
        Ok(())
    }

    /// Looks for replicas that are wrong before a run ends between two audits: a step is made on its last
    /// batch twice, by different replicas, and taken back.
    pub(super) fn audit_at_stop(&mut self, batch: &Batch) -> Result<(), Error> {
        self.hear_witness(true)?;
        let step = self.steps();
        let is_confirmed = |trusted: &Trusted| trusted.until == step;
        if !self.replica_set.is_audited
            || matches!(&self.trust, Trust::State(trusted) if is_confirmed(trusted))
        {
            return Ok(());
        }
        self.check_replicas()?;
        let tensors = Arc::new(self.read_states()?);
        let phase = self.phase_for(batch.epoch)?;
        let batch = self.state.carries.with(batch)?;
        // A schedule may end with the fit, so the learning rate is that of the last step.
        let scalars = self.scalars(phase, self.optimizer_step(phase).saturating_sub(1))?;
        let number = phase.unwrap_or(0);
        let feed = self.plan.feed_train(number, &batch, &scalars, self.state.settings.seed)?;
        let program = self.plan.train_index(&batch, number);
        // The audit and what is trusted afterwards share these bytes.
        self.replica_set.replicas.audit_next_from(program, Arc::clone(&tensors));
        let trained = self.plan.programs_of(&batch).train_in(number).clone();
        let verdict = &mut |outputs: &_| Reading::new(&trained, outputs).verdict();
        let made = self.replica_set.replicas.step(program, &feed, verdict);
        self.write_states(&tensors)?;
        if matches!(made, Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. })) {
            return Ok(());
        }
        let made = self.check_result(made)?;
        self.check_replicas()?;
        // An audit may have been put off, or the step skipped: then nothing vouches for the state.
        let witnessed = match made.audit.as_ref().map(|audit| audit.witnessed) {
            Some(Some(_)) => self.hear_witness(true)?,
            passed => passed.is_some() && !self.replica_set.replicas.has_witness(),
        };
        if witnessed {
            let state = self.state.clone();
            self.trust = Trust::State(Box::new(Trusted { until: step, state, tensors: Some(tensors) }));
            self.saver.iter_mut().for_each(|saver| saver.confirm(step));
        }
        Ok(())
    }

    /// Goes back to the trusted state after the replicas were found to be wrong. Returns the error that says
    /// so.
    pub(super) fn go_back(&mut self, found: ReplicaError) -> Error {
        let (nobody, lasting) = match &found {
            ReplicaError::Audit { wrong, lasting, .. } => (wrong.is_empty(), *lasting),
            ReplicaError::Digests { wrong, .. } => (wrong.is_empty(), false),
            _ => (false, true),
        };
        let why = found.to_string();
        self.forget_witnessed();
        match self.restore(nobody) {
            Ok(may_go_on) => {
                let step = self.steps();
                if may_go_on && !lasting {
                    self.monitor.note(&format!("{why}; the run goes back to step {step}, which is trusted"));
                    self.monitor.rolled_back(step);
                    return Error::RolledBack { why, step };
                }
                Error::Refused { why, step }
            }
            Err(problem) => {
                let why = format!("{why}; {problem}");
                self.trust = Trust::Lost(why.clone());
                Error::Untrusted { why }
            }
        }
    }

    /// Restores the trusted state, and sets later checkpoints aside. `nobody`: it is not known which replica
    /// was wrong. Returns whether the steps may be made again: with the same replicas they may once.
    fn restore(&mut self, nobody: bool) -> Result<bool, String> {
        // The others would wait for this machine, and keep the checkpoints that it sets aside.
        if !self.cluster().is_alone() {
            return Err("a run on several machines does not go back by itself: resume it".into());
        }
        let trusted = match std::mem::take(&mut self.trust) {
            Trust::State(trusted) => *trusted,
            Trust::Resumed => self.trusted_on_disk()?,
            Trust::Lost(why) => return Err(why),
            Trust::Begins | Trust::New if !self.replica_set.is_audited => {
                return Err("without audits there is no state to go back to: resume from a checkpoint".into());
            }
            Trust::Begins | Trust::New => return Err("there is no state to go back to".into()),
        };
        let may_go_on = !(nobody && self.doubted.is_some());
        if nobody {
            let found = self.steps();
            self.doubted = Some(self.doubted.map_or(found, |before| before.max(found)));
        }
        let mut state = trusted.state.clone();
        match &trusted.tensors {
            Some(tensors) => {
                for (index, tensor) in tensors.iter().enumerate() {
                    let written = self.replica_set.replicas.write_state(index, tensor);
                    written.map_err(|error| error.to_string())?;
                }
            }
            None => {
                let (programs, seed) = (&self.plan.programs, self.state.settings.seed);
                let written = write_start_values(programs, &mut self.replica_set.replicas, seed);
                written.map_err(|error| error.to_string())?;
            }
        }
        // What the run is does not change, and is better known than then.
        state.identity.clone_from(&self.state.identity);
        self.state = state;
        self.using.reset();
        (self.replica_set.compared, self.replica_set.non_finite) = (None, None);
        self.observe().map_err(|error| error.to_string())?;
        self.restore_callbacks().map_err(|error| error.to_string())?;
        self.trust = Trust::State(Box::new(trusted));
        let step = self.steps();
        if let Some(saver) = &mut self.saver {
            let aside = saver.distrust(step);
            match aside {
                Ok(aside) if aside.is_empty() => {}
                Ok(aside) => {
                    let names: Vec<String> = aside.iter().map(|path| path.display().to_string()).collect();
                    self.monitor
                        .note(&format!("checkpoints that may be wrong are set aside: {}", names.join(", ")));
                }
                Err(error) => {
                    return Err(format!("checkpoints after step {step} cannot be set aside: {error}"));
                }
            }
        }
        Ok(may_go_on)
    }

    /// Loads the newest checkpoint that is trusted and can be read. Observers are told of those that cannot.
    fn trusted_on_disk(&mut self) -> Result<Trusted, String> {
        let why = "the checkpoint that the run was resumed from is not trusted";
        let none = || format!("{why}, and there is none that is: start anew");
        let saver = self.saver.as_ref().ok_or_else(none)?;
        let listed =
            saver.saver.with_store(|store| store.all_trusted()).map_err(|error| error.to_string())?;
        let (mut sound, mut broken) = (None, Vec::new());
        for (step, path) in listed {
            match saver.load(&path) {
                Ok(contents) => {
                    sound = Some((step, path, contents));
                    break;
                }
                Err(error) => broken.push(format!("{}: {error}", path.display())),
            }
        }
        let Some((step, path, contents)) = sound else {
            return Err(match broken.is_empty() {
                true => none(),
                false => format!("{why}, and those that are cannot be read: {}", broken.join("; ")),
            });
        };
        for broken in broken {
            self.monitor.note(&format!("warning: passed over a trusted checkpoint: {broken}"));
        }
        let run = SavedRun::load(&path, step, &contents).map_err(|error| error.to_string())?;
        let differences = self.state.differences(&run.state).into_iter().map(|difference| difference.problem);
        let problems = self.state.identity.problems(&run.state.identity);
        if let Some(problem) = differences.chain(problems).next() {
            return Err(format!("the trusted checkpoint {} is of another run: {problem}", path.display()));
        }
        let tensors = in_order(&contents, self.plan.programs.train().states());
        let tensors = tensors.map_err(|report| report.to_string())?;
        let tensors = tensors.into_iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let mut state = self.state.clone();
        state.resume(run.state);
        Ok(Trusted { until: step, state, tensors: Some(Arc::new(tensors)) })
    }
}
