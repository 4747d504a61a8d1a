//! Adds a replica to a run.

use std::sync::Arc;

use unisono_gpu::Adapter;

use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::schedule::Event;
use crate::worker::message::Request;

impl Replicas {
    /// Opens one more device between two steps and copies the others' state to it. From the next step on it
    /// shares the work; the bits are the same as if it had always been there. Returns the replica's number.
    /// Numbers are never reused, even if an adapter that left joins again. If its device later refuses a
    /// plan, it leaves.
    ///
    /// # Errors
    /// [`ReplicaError::Start`] or [`ReplicaError::OutOfMemory`] if the device does not open or does not take
    /// the state, and [`ReplicaError::Digests`] if the state it then has is not that of the others: it is not
    /// part of the run, which goes on as before. [`ReplicaError::NoneLeft`].
    pub fn join(&mut self, adapter: &Adapter) -> Result<usize, ReplicaError> {
        self.none_in_flight()?;
        self.check_digests()?;
        let all: Vec<usize> = (0..self.ready(0)?.program.states().len()).collect();
        let state = Arc::new(self.read_states(&all, Vec::new())?);
        let new = self.threads.len();
        let joined = self.take_in(adapter, &state);
        if joined.is_err() {
            // It was never part of the run, so the error returned here is the only report of its end.
            self.left.retain(|left| left.replica != new);
            self.untold.retain(|left| left.replica != new);
        }
        joined
    }

    fn take_in(&mut self, adapter: &Adapter, state: &Arc<Vec<Vec<u8>>>) -> Result<usize, ReplicaError> {
        let new = self.open(std::slice::from_ref(adapter))?.first().copied().unwrap_or_default();
        let within = self.options.deadline;
        self.ask(vec![new], within, &mut |_| Request::WriteStates(Arc::clone(state)));
        if let Some(left) = self.left.last().filter(|left| left.replica == new) {
            return Err(ReplicaError::not_started(left));
        }
        let groups = self.states_by_digest()?;
        let checked = if groups.len() < 2 {
            Ok(())
        } else {
            let why = format!("replica {new} did not take the state");
            Err(ReplicaError::Digests { groups: self.describe(&groups), wrong: vec![new], why })
        };
        if checked.is_err() && self.threads.is_present(new) {
            self.failures.insert(
                new,
                crate::worker::message::Failure::Wrong("its state is not that of the others".into()),
            );
            self.notify(Event::Reject(new));
            self.let_go();
        }
        checked.map(|()| new)
    }
}
