//! Audits: a step is made again from the same state by other replicas, and must give the same bytes: its
//! outputs, and the state after it on every replica.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::coordinator::attempt::BlockDigests;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::{Audited, Outcome, Task};
use crate::error::ReplicaError;
use crate::schedule::{AuditReport, Job, Roles, Verdict};
use crate::worker::digest::Digest;
use crate::worker::message::Request;

/// The state of all replicas, by tensor, as little-endian bytes.
pub(super) type State = Arc<Vec<Vec<u8>>>;

impl Replicas {
    /// Returns whether the next step of a program is audited.
    pub fn is_audit_due(&mut self, program: usize) -> bool {
        self.audits.is_due(program)
    }

    /// Asks for an audit of the next step of a program, such as the last one of a run. Where
    /// [`crate::Options::audits`] audits nothing, this has no effect.
    pub fn audit_next(&mut self, program: usize) {
        self.audits.ask(program);
    }

    /// Returns what is known about the audits of a program.
    pub fn audits(&self, program: usize) -> AuditReport {
        self.audits.report(program)
    }

    /// Makes a step twice, the second time by other replicas, and compares. Where a replica has no shards in
    /// either, the step is made once more.
    ///
    /// The state before it is read and compared on all replicas first, so that the step can be made again,
    /// and so that a caller can go back to it.
    pub(super) fn audited_step(
        &mut self,
        task: &Task,
        job: Job,
        decide: &mut dyn FnMut(&crate::Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let began = Instant::now();
        let job = Job { audited: true, ..job };
        let before = if job.changes_state { self.agreed_state()? } else { State::default() };
        let read = began.elapsed();
        let stepping = Instant::now();
        let mut verdict = Verdict::Commit;
        let mut first = self.once(task, job.clone(), &mut |outputs| {
            verdict = decide(outputs);
            verdict
        })?;
        let took = stepping.elapsed();
        // A step that was skipped has changed nothing that could be wrong; the next one is audited.
        let Audited { blocks, ran, .. } = first.audit.take().unwrap_or_default();
        if !first.committed && job.changes_state {
            return Ok(first);
        }
        let auditing = Instant::now();
        let made = Made { after: self.result(&job, &first)?, blocks, ran };
        let agrees = self.is_made_again(task, &job, &before, verdict, &mut first, &made)?;
        if !agrees {
            let seen = [made.after, self.result(&job, &first)?].concat();
            return Err(self.wrong_step(task, &job, &before, verdict, &seen));
        }
        self.audits.passed(task.index, took, read + auditing.elapsed());
        let before = Arc::try_unwrap(before).unwrap_or_else(|shared| (*shared).clone());
        first.audit = Some(Audited { before, ..Audited::default() });
        Ok(first)
    }

    /// Makes a step again until every replica has run some of its shards: each time another replica runs each
    /// shard. Returns whether the bytes were the same each time.
    fn is_made_again(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        first: &mut Outcome,
        made: &Made,
    ) -> Result<bool, ReplicaError> {
        let mut ran = made.ran.clone();
        for places in 1..self.len().max(2) {
            self.write_all(job, before);
            let again = Job { roles: Roles::Rotated(places), ..job.clone() };
            let again = match self.once(task, again, &mut |_| verdict) {
                Ok(again) => again,
                Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. }) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            };
            first.left.extend(again.left.iter().cloned());
            let audit = again.audit.as_ref();
            // Of a replica that leaves while it commits, outputs of the last segment are missing.
            let outputs = !first.left.is_empty() || first.outputs == again.outputs;
            let blocks = audit.is_none_or(|audit| same_where_both_are(&made.blocks, &audit.blocks));
            if !(outputs && blocks && one_digest(&[&made.after, &self.result(job, &again)?])) {
                return Ok(false);
            }
            ran.extend(audit.into_iter().flat_map(|audit| &audit.ran));
            if self.scheduler.present().iter().all(|replica| ran.contains(replica)) {
                break;
            }
        }
        Ok(true)
    }

    /// Returns the digests of the state after a step, replica by replica; none where the program changes no
    /// state.
    pub(super) fn result(&mut self, job: &Job, done: &Outcome) -> Result<Vec<(usize, Digest)>, ReplicaError> {
        if job.changes_state && done.committed { self.digests() } else { Ok(Vec::new()) }
    }

    /// Writes the whole state to all replicas, where a program changes it.
    pub(super) fn write_all(&mut self, job: &Job, state: &State) {
        if job.changes_state {
            let all = self.scheduler.present();
            self.ask(all, self.options.deadline, &mut |_| Request::WriteStates(Arc::clone(state)));
        }
    }

    /// Reads the state, after all replicas were seen to have the same.
    fn agreed_state(&mut self) -> Result<State, ReplicaError> {
        self.check_digests()?;
        let all: Vec<usize> = (0..self.ready(0)?.program.states().len()).collect();
        Ok(Arc::new(self.read_states(&all, Vec::new())?))
    }
}

/// What a step made the first time.
struct Made {
    /// The state after it, replica by replica.
    after: Vec<(usize, Digest)>,
    blocks: BlockDigests,
    /// The replicas that ran shards.
    ran: BTreeSet<usize>,
}

/// Returns whether the blocks of the same shards are the same. A fault in one of them may be lost when it is
/// added to others, so comparing sums alone would find less.
fn same_where_both_are(first: &BlockDigests, again: &BlockDigests) -> bool {
    first.iter().all(|(block, digest)| again.get(block).is_none_or(|other| other == digest))
}

/// Returns whether all replicas of all lists have the same digest.
fn one_digest(lists: &[&[(usize, Digest)]]) -> bool {
    let mut all = lists.iter().flat_map(|list| list.iter()).map(|(_, digest)| digest);
    let first = all.next();
    all.all(|digest| Some(digest) == first)
}
