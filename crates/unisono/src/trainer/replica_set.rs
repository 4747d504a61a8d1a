//! The replicas of a trainer, with their numeric classes and the records of their losses and comparisons.

use unisono_replica::{Classes, Replicas};

use crate::Error;
use crate::run::classes::SavedClasses;
use crate::trainer::witness::Pending;

/// The replicas that compute a run.
pub(super) struct ReplicaSet {
    pub replicas: Replicas,
    /// The numeric classes of the replicas' adapters.
    pub classes: Classes,
    /// Whether the run was started on a mixture of numeric classes.
    pub mixed: bool,
    /// Whether steps are audited.
    pub is_audited: bool,
    /// The interval in steps at which the replicas' states are compared, 0 for never.
    pub digest_every: u64,
    /// The step after which the states were last compared.
    pub compared: Option<u64>,
    /// The number of replicas whose loss was reported to observers.
    pub left_told: usize,
    /// The tensor of the state that a step made not finite, since the state was last written.
    pub non_finite: Option<NonFiniteState>,
    /// The step that the witness makes.
    pub pending: Option<Pending>,
}

/// A state that a step made not finite.
#[derive(Clone)]
pub(super) struct NonFiniteState {
    /// The number of the step.
    pub step: u64,
    /// The first such tensor.
    pub tensor: String,
    /// The number of other tensors that are not finite either.
    pub more: usize,
}

impl ReplicaSet {
    /// Returns notes about the replicas that left since the last call.
    pub fn newly_left(&mut self) -> Vec<String> {
        let new: Vec<String> =
            self.replicas.left().iter().skip(self.left_told).map(ToString::to_string).collect();
        self.left_told += new.len();
        new
    }

    /// Checks that no step has made the state not finite. Whatever trains on from the state or gives it out
    /// calls this first.
    ///
    /// # Errors
    /// [`Error::StateNotFinite`].
    pub fn check_state(&self) -> Result<(), Error> {
        let Some(NonFiniteState { step, tensor, more }) = self.non_finite.clone() else { return Ok(()) };
        Err(Error::StateNotFinite { step, tensor, more })
    }

    /// Marks the state as not finite, and returns the error that says so.
    pub fn mark_non_finite(&mut self, step: u64, tensor: String, more: usize) -> Error {
        self.non_finite = Some(NonFiniteState { step, tensor: tensor.clone(), more });
        Error::StateNotFinite { step, tensor, more }
    }

    /// Returns what a checkpoint records of the adapters, and probes those not probed before.
    ///
    /// # Errors
    /// An adapter cannot be probed.
    pub fn saved_classes(&mut self) -> Result<SavedClasses, Error> {
        Ok(SavedClasses::of(self.classes.probed()?, self.mixture()))
    }

    /// Returns the machines of the replicas that are there, if they are a mixture. Shards are given to them
    /// evenly, in this order.
    fn mixture(&self) -> Vec<String> {
        let there = self.replicas.reports().into_iter().filter(|report| report.left.is_none());
        let there = there.filter(|_| self.mixed).map(|report| report.replica);
        self.classes.machines(there)
    }

    /// Whether the states are to be compared at the interval.
    pub fn is_comparison_due(&self, step: u64) -> bool {
        step.checked_rem(self.digest_every) == Some(0)
    }

    /// Whether the states are to be compared before a step is saved: unless they were after it, or never are.
    pub fn is_unchecked(&self, step: u64) -> bool {
        self.digest_every > 0 && self.compared != Some(step)
    }
}
