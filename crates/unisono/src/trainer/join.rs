//! Replicas that join and leave, and the comparison of their states.

use unisono_replica::{ReplicaError, describe_classes, is_one_class};

use crate::compile::plan::{check_units, in_precision, unit_notes};
use crate::{Error, Trainer};

impl Trainer {
    /// Adds a replica on the first adapter whose name contains `name` (see [`unisono_gpu::select`]). It
    /// shares the work from the next step on. Returns its number. The result does not change, except in a run
    /// on several numeric classes ([`crate::Builder::mixed`]). There it changes which replica runs which
    /// shards, and the run continues as one on the larger mix. Observers are told, and checkpoints name the
    /// mix.
    ///
    /// # Errors
    /// There is no such adapter. It is of another numeric class, and the run was not started on a mix. It
    /// does not open, or does not accept the state. In these cases the run continues without it.
    /// [`Error::RolledBack`]: the present replicas differ, and the trainer is back at an earlier step.
    pub fn join(&mut self, name: &str) -> Result<usize, Error> {
        if !self.cluster().is_alone() {
            return Err(Error::setting("join", "in a run on several machines no replica joins"));
        }
        let names: &[&str] = if name.is_empty() { &[] } else { &[name] };
        let adapter = unisono_gpu::select(names)?.into_iter().next();
        let nobody = || Error::setting("adapter", "there is none");
        let adapter = adapter.ok_or_else(nobody)?;
        let adapter = in_precision(&adapter, self.plan.parts.precision)?;
        check_units(std::slice::from_ref(&adapter))?;
        let all = self.replica_set.classes.with(&adapter);
        if !self.replica_set.mixed && !is_one_class(&all)? {
            return Err(Error::JoinsOtherClass { classes: describe_classes(&all) });
        }
        // If those that are there differ, the run goes back. Any difference after this is the new one's.
        self.check_replicas()?;
        let joined = match self.replica_set.replicas.join(&adapter) {
            // It did not take the state; that of the run is not in doubt.
            Err(differs @ ReplicaError::Digests { .. }) => return Err(differs.into()),
            joined => self.check_result(joined)?,
        };
        for note in unit_notes(std::slice::from_ref(&adapter)) {
            self.monitor.note(&note);
        }
        if self.replica_set.mixed {
            let (name, step) = (adapter.label(), self.steps());
            self.monitor.note(&format!(
                "replica {joined} ({name}) joined at step {step}: the shards are reassigned, and the results from here on are those \
                 of another mix"
            ));
        }
        self.replica_set.classes.join(joined, adapter);
        Ok(joined)
    }

    /// Compares the states of all replicas.
    ///
    /// # Errors
    /// [`Error::RolledBack`] if states differ. It names the replicas.
    pub fn check_replicas(&mut self) -> Result<(), Error> {
        let same = self.replica_set.replicas.check_all_digests();
        self.check_result(same)?;
        self.replica_set.compared = Some(self.state.position.step);
        Ok(())
    }

    /// Returns the answer of the replicas. Reports to the observers which replicas left meanwhile. If
    /// replicas were found to be wrong, the run goes back to the last state that is trusted.
    pub(super) fn check_result<T>(&mut self, answer: Result<T, ReplicaError>) -> Result<T, Error> {
        self.notify_left();
        answer.map_err(|error| match error {
            left @ ReplicaError::NoneLeft { .. } => Error::NoneLeft { left, checkpoint: self.durable() },
            wrong @ (ReplicaError::Audit { .. } | ReplicaError::Digests { .. }) => self.go_back(wrong),
            ReplicaError::Cluster(error) => error.into(),
            error => error.into(),
        })
    }

    /// Tells observers who left since they were told last, whatever the replicas were asked to do.
    pub(super) fn notify_left(&mut self) {
        let Self { replica_set, monitor, .. } = self;
        replica_set.newly_left().iter().for_each(|left| monitor.left(left));
    }

    /// Returns the step of the newest checkpoint, once what was handed over is written or cannot be.
    pub(super) fn durable(&mut self) -> Option<u64> {
        if let Err(error) = self.finish_saves() {
            self.monitor.note(&format!("warning: the last checkpoint is not saved: {error}"));
        }
        self.saver.as_ref()?.durable()
    }
}
