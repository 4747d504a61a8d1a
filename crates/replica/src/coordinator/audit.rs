//! Audits: a step is made again from the same state by other replicas, and must give the same bytes: its
//! outputs, and the state after it on every replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use crate::batch::outputs::Outputs;
use crate::coordinator::attempt::BlockDigests;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::{Audited, Outcome, Task};
use crate::coordinator::witness;
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

    /// Asks for an audit as [`Replicas::audit_next`] does. `state` has the bytes of the state before the step
    /// by tensor, as [`Replicas::read_states`] gives them, so that an audit need not read and keep them
    /// again.
    pub fn audit_next_from(&mut self, program: usize, state: Arc<Vec<Vec<u8>>>) {
        self.audit_next(program);
        self.audited_from = Some(state);
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
        given: Option<State>,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let (began, gone) = (Instant::now(), self.left.len());
        let job = Job { audited: true, ..job };
        let before = if job.changes_state { self.agreed_state(given)? } else { State::default() };
        let read = began.elapsed();
        let stepping = Instant::now();
        let mut verdict = Verdict::Commit;
        let first = self.once(task, job.clone(), &mut |outputs| {
            verdict = decide(outputs);
            verdict
        });
        let took = stepping.elapsed();
        let auditing = Instant::now();
        let mut first = match first {
            Ok(first) => first,
            Err(error) => return Err(self.is_not_finite_again(task, &job, &before, error)),
        };
        let Audited { blocks, sums, ran, .. } = first.audit.take().unwrap_or_default();
        let made = FirstResult { after: self.result(&job, &first)?, blocks, sums, ran, gone };
        let seen = || witness::StepResult {
            outputs: Some(first.outputs.clone()),
            state: made.after.first().map(|(_, digest)| *digest),
        };
        let witnessed = self.offer(task, &job, &before, verdict, &seen);
        // A single replica would only repeat itself.
        let compared = match witnessed {
            Some(_) if self.len() == 1 => Compared::Same,
            _ => self.compare(task, &job, &before, verdict, &mut first, &made)?,
        };
        match compared {
            Compared::Same => self.audits.passed(task.index, took, read + auditing.elapsed()),
            Compared::Differs => {
                if !job.changes_state {
                    // Replicas with different states give different outputs, and are no worse than that.
                    self.check_digests()?;
                }
                let seen = [made.after, self.result(&job, &first)?].concat();
                return Err(self.wrong_step(task, &job, &before, verdict, &seen));
            }
            Compared::Unknown => {
                // The replicas have the state before the step, or that after it.
                self.audits.postponed(task.index);
                self.write_all(&job, &before);
                return self.once(task, Job { audited: false, ..job }, &mut |_| verdict);
            }
        }
        // A step that was skipped has no new state that anybody could trust.
        if first.committed || !job.changes_state {
            first.audit = Some(Audited { before, witnessed, ..Audited::default() });
        }
        Ok(first)
    }

    /// Makes a step again that was not finite. Returns its error if it is not finite again, nor where
    /// replicas make it alone, and otherwise that of a wrong step: some replicas make numbers of it.
    pub(super) fn is_not_finite_again(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        error: ReplicaError,
    ) -> ReplicaError {
        let verdict = match error {
            // Nothing of it was committed, and nothing is.
            ReplicaError::NotFinite { .. } => Verdict::Skip,
            ReplicaError::StateNotFinite { .. } if !before.is_empty() => Verdict::Commit,
            _ => return error,
        };
        self.write_all(job, before);
        let (again, failed) = self.again(task, job, 1, verdict);
        let differs = match again {
            Ok(_) => !failed,
            Err(none @ ReplicaError::NoneLeft { .. }) => return none,
            // One that is wrong for good has spoiled both, with other shards.
            Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. }) => {
                self.is_finite_alone(task, job, before, verdict)
            }
            Err(_) => false,
        };
        if differs { self.wrong_step(task, job, before, verdict, &[]) } else { error }
    }

    /// Makes a step again until another replica has run a shard of each replica, which then has run one of
    /// another's.
    fn compare(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        first: &mut Outcome,
        made: &FirstResult,
    ) -> Result<Compared, ReplicaError> {
        let mut runners = Runners::default();
        runners.add(&made.ran);
        for places in 1..self.len().max(2) {
            self.write_all(job, before);
            self.poison_scratch();
            let again = match self.again(task, job, places, verdict) {
                (_, true) => return Ok(Compared::Unknown),
                (Ok(again), _) => again,
                (Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. }), _) => {
                    return Ok(Compared::Differs);
                }
                (Err(error), _) => return Err(error),
            };
            let audit = again.audit.as_ref();
            // Of a replica that leaves while it commits, outputs of the last segment are missing.
            let outputs = self.left.len() > made.gone || first.outputs == again.outputs;
            let blocks = audit.is_none_or(|audit| {
                // Where the cuts are others, so are the blocks, and their sums are the same.
                same_where_both_are(&made.blocks, &audit.blocks)
                    && same_where_both_are(&made.sums, &audit.sums)
            });
            if !(outputs && blocks && one_digest(&[&made.after, &self.result(job, &again)?])) {
                return Ok(Compared::Differs);
            }
            audit.into_iter().for_each(|audit| runners.add(&audit.ran));
            if runners.have_met(&self.scheduler.present()) {
                break;
            }
        }
        // A replica that ran nothing has nothing to compare, nor has one that is left alone.
        let among: Vec<usize> = self.scheduler.present().into_iter().filter(|&r| runners.has(r)).collect();
        let have_met = self.len() == 1 || runners.have_met(&among);
        let nothing_compared = self.left.len() > made.gone && !job.changes_state || !have_met;
        Ok(if nothing_compared { Compared::Unknown } else { Compared::Same })
    }

    /// Makes a step once more with the shards so many places further. Returns also whether a replica had no
    /// memory for it; that replica stays.
    fn again(
        &mut self,
        task: &Task,
        job: &Job,
        places: usize,
        verdict: Verdict,
    ) -> (Result<Outcome, ReplicaError>, bool) {
        let again = Job { roles: Roles::Rotated(places), ..job.clone() };
        self.is_diagnosing = true;
        let again = self.once(task, again, &mut |_| verdict);
        self.is_diagnosing = false;
        let failed = !std::mem::take(&mut self.failures).is_empty();
        (again, failed)
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

    /// Fills the scratch of all replicas with NaN. A launch that a driver left out left there what an earlier
    /// step had computed, and would leave it again; but not if it was spoiled in between.
    fn poison_scratch(&mut self) {
        let all = self.scheduler.present();
        self.ask(all, self.options.deadline, &mut |_| Request::PoisonScratch);
    }

    /// Returns the state, after all replicas were seen to have the same: the one that is given, or else what
    /// replicas read.
    fn agreed_state(&mut self, given: Option<State>) -> Result<State, ReplicaError> {
        self.check_digests()?;
        if let Some(given) = given {
            return Ok(given);
        }
        let all: Vec<usize> = (0..self.ready(0)?.program.states().len()).collect();
        Ok(Arc::new(self.read_states(&all, Vec::new())?))
    }
}

/// The result of making a step again.
enum Compared {
    Same,
    Differs,
    /// A replica had no memory for the shards of another one, one was lost, or the same replicas ran the same
    /// shards.
    Unknown,
}

/// What a step made the first time.
struct FirstResult {
    /// The state after it, replica by replica.
    after: Vec<(usize, Digest)>,
    blocks: BlockDigests,
    sums: BTreeMap<usize, Digest>,
    /// The replica that ran each shard.
    ran: BTreeMap<usize, usize>,
    /// The number of replicas that had left before.
    gone: usize,
}

/// The replicas that ran each shard, in all attempts at a step.
#[derive(Debug, Default)]
struct Runners(BTreeMap<usize, BTreeSet<usize>>);

impl Runners {
    fn add(&mut self, ran: &BTreeMap<usize, usize>) {
        for (&shard, &replica) in ran {
            self.0.entry(shard).or_default().insert(replica);
        }
    }

    fn has(&self, replica: usize) -> bool {
        self.0.values().any(|runners| runners.contains(&replica))
    }

    /// Returns whether each of these replicas ran a shard that another one ran as well.
    fn have_met(&self, replicas: &[usize]) -> bool {
        let shared = || self.0.values().filter(|runners| runners.len() > 1);
        replicas.iter().all(|replica| shared().any(|runners| runners.contains(replica)))
    }
}

/// Returns whether the blocks of the same shards are the same, or the sums of the same buckets. A fault in a
/// block may be lost when it is added to others, so comparing sums alone would find less.
pub(super) fn same_where_both_are<K: Ord>(first: &BTreeMap<K, Digest>, again: &BTreeMap<K, Digest>) -> bool {
    first.iter().all(|(of, digest)| again.get(of).is_none_or(|other| other == digest))
}

/// Returns whether all replicas of all lists have the same digest.
fn one_digest(lists: &[&[(usize, Digest)]]) -> bool {
    let mut all = lists.iter().flat_map(|list| list.iter()).map(|(_, digest)| digest);
    let first = all.next();
    all.all(|digest| Some(digest) == first)
}
