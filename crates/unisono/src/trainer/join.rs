//! Replicas that join and leave, and the comparison of their states.

use unisono_replica::{ReplicaError, describe_classes, is_one_class};

use crate::compile::plan::supports;
use crate::{Error, Trainer};

impl Trainer {
    /// Takes in one more replica, on the first adapter whose name holds `name` (see [`unisono_gpu::select`]):
    /// from the next step on it shares the work. Returns its number. No bit shows it, except in a run on a
    /// mixture of classes ([`crate::Builder::mixed`]), where it changes which replica runs which shards:
    /// from here on the run is that of the larger mixture, which is reported to observers and named in
    /// checkpoints.
    ///
    /// # Errors
    /// There is no such adapter. It is of another numeric class than the run's, unless the run was started on
    /// a mixture. It does not open, or does not take the state. The run continues without it. The replicas
    /// that are there differ ([`Error::RolledBack`]): the trainer is back at an earlier step.
    pub fn join(&mut self, name: &str) -> Result<usize, Error> {
        if !self.world().is_alone() {
            return Err(Error::setting("join", "in a run on several machines no replica joins"));
        }
        let names: &[&str] = if name.is_empty() { &[] } else { &[name] };
        let adapter = unisono_gpu::select(names)?.into_iter().next();
        let nobody = || Error::setting("adapter", "there is none");
        let adapter = adapter.ok_or_else(nobody)?;
        supports(&adapter, self.plan.parts.precision)?;
        let all = self.crew.classes.with(&adapter);
        if !self.crew.mixed && !is_one_class(&all)? {
            return Err(Error::JoinsOtherClass { classes: describe_classes(&all) });
        }
        // If those that are there differ, the run goes back. Any difference after this is the new one's.
        self.check_replicas()?;
        let joined = match self.crew.replicas.join(&adapter) {
            // It did not take the state; that of the run is not in doubt.
            Err(differs @ ReplicaError::Digests { .. }) => return Err(differs.into()),
            joined => self.heard(joined)?,
        };
        if self.crew.mixed {
            let (name, step) = (adapter.label(), self.steps());
            self.watch.note(&format!(
                "replica {joined} ({name}) joined at step {step}: shards are given out anew, and from here on the bits are those of \
                 another mixture"
            ));
        }
        self.crew.classes.join(joined, adapter);
        Ok(joined)
    }

    /// Compares the replicas' states.
    ///
    /// # Errors
    /// [`Error::RolledBack`] where states differ; it names the replicas.
    pub fn check_replicas(&mut self) -> Result<(), Error> {
        let same = self.crew.replicas.check_all_digests();
        self.heard(same)?;
        self.crew.compared = Some(self.state.position.step);
        Ok(())
    }

    /// Returns the answer of the replicas. Reports to the observers which replicas left meanwhile. If
    /// replicas were found to be wrong, the run goes back to the last state that is trusted.
    pub(super) fn heard<T>(&mut self, answer: Result<T, ReplicaError>) -> Result<T, Error> {
        self.tell_left();
        answer.map_err(|error| match error {
            left @ ReplicaError::NoneLeft { .. } => Error::NoneLeft { left, checkpoint: self.durable() },
            wrong @ (ReplicaError::Audit { .. } | ReplicaError::Digests { .. }) => self.go_back(wrong),
            ReplicaError::World(error) => error.into(),
            error => error.into(),
        })
    }

    /// Tells observers who left since they were told last, whatever the replicas were asked to do.
    pub(super) fn tell_left(&mut self) {
        let Self { crew, watch, .. } = self;
        crew.newly_left().iter().for_each(|left| watch.left(left));
    }

    /// Returns the step of the newest checkpoint, once what was handed over is written or cannot be.
    pub(super) fn durable(&mut self) -> Option<u64> {
        if let Err(error) = self.finish_saves() {
            self.watch.note(&format!("warning: the last checkpoint is not saved: {error}"));
        }
        self.saver.as_ref()?.durable()
    }
}
