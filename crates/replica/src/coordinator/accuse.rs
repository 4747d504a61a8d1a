//! Finds out which replicas are wrong, and dismisses them.
//!
//! Replicas are compared by what each makes of the same step alone. What more than half of them make is
//! right. Without such a majority, those are wrong that do not pass the known-answer test, or else those that
//! make something else when they are asked again. Where none of this tells, nobody is dismissed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_graph::{GraphError, Program};

use crate::batch::outputs::Outputs;
use crate::coordinator::attempt::BlockDigests;
use crate::coordinator::audit::{State, same_where_both_are};
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::{Audited, Task};
use crate::coordinator::witness::StepResult;
use crate::error::ReplicaError;
use crate::known_answer;
use crate::schedule::{Event, Job, Roles, Verdict};
use crate::worker::digest::Digest;
use crate::worker::message::Failure;

/// What a replica makes of a step alone. It is all none if a sum is not finite.
#[derive(Debug, Default)]
struct Opinion {
    outputs: Option<Outputs>,
    /// The sums over all shards by bucket.
    sums: BTreeMap<usize, Digest>,
    /// The blocks of these sums. A difference may be lost in their sum.
    blocks: BlockDigests,
    /// The state after it.
    state: Option<Digest>,
}

impl Opinion {
    /// Returns whether both made the same. Replicas with less memory have other blocks.
    fn agrees(&self, other: &Self) -> bool {
        let same = self.outputs == other.outputs && self.sums == other.sums && self.state == other.state;
        same && same_where_both_are(&self.blocks, &other.blocks)
    }
}

/// Who is wrong, and why this is known.
struct Finding {
    wrong: BTreeSet<usize>,
    why: String,
    /// Whether replicas differ each time they are asked, and none is known to be wrong.
    lasting: bool,
}

impl Finding {
    fn new(wrong: impl IntoIterator<Item = usize>, why: impl Into<String>) -> Self {
        Self { wrong: wrong.into_iter().collect(), why: why.into(), lasting: false }
    }
}

impl Replicas {
    /// Finds out who is wrong about a step that gave different bytes when it was made again, and dismisses
    /// them. `seen` has the digests of the state that replicas had after it. The others have the state before
    /// the step when this returns.
    pub(super) fn wrong_step(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        seen: &[(usize, Digest)],
    ) -> ReplicaError {
        let step = self.steps.saturating_sub(1);
        let finding = self.find_wrong(task, job, before, verdict, seen);
        self.act_on(finding, step, job, before)
    }

    /// Finds out who is wrong when a witness computed a step twice and disagrees with the run both times.
    /// `name` is the witness's adapter, and `made` its result. Dismisses replicas that are wrong, if others
    /// are right. The others have the state before the step when this returns.
    pub(super) fn contradicted(
        &mut self,
        step: u64,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        (name, made): (&str, &StepResult),
    ) -> ReplicaError {
        // A program may have been forgotten since. Then no replica has an opinion.
        let opinions = match self.programs.contains_key(&task.index) {
            true => self.opinions(task, job, before, verdict),
            false => BTreeMap::new(),
        };
        let agree = |opinion: &Opinion| opinion.outputs == made.outputs && opinion.state == made.state;
        let others: Vec<usize> =
            opinions.iter().filter(|(_, opinion)| !agree(opinion)).map(|(&replica, _)| replica).collect();
        let finding = if opinions.is_empty() {
            let why =
                format!("{name}, the witness, computes another result, and no replica can recompute it");
            Finding { wrong: BTreeSet::new(), why, lasting: true }
        } else if others.len() < opinions.len() {
            let why = match others.is_empty() {
                true => format!(
                    "{name}, the witness, computes another result; recomputed, all replicas agree with it: the fault did not last"
                ),
                false => format!("{name}, the witness, and the others agree"),
            };
            Finding::new(others, why)
        } else {
            let names = self.names(&others);
            let why = match self.known_wrong_ones() {
                (wrong, _) if !wrong.is_empty() => {
                    let (wrong, fail) = (self.names(&wrong), if wrong.len() > 1 { "fail" } else { "fails" });
                    format!(
                        "{name}, the witness, computes another result, and {wrong} {fail} the known-answer test"
                    )
                }
                (_, all) => format!(
                    "{names} and {name}, the witness, each repeat their own result, and the two differ; {}",
                    test_summary(0, all)
                ),
            };
            Finding { wrong: BTreeSet::new(), why, lasting: true }
        };
        self.act_on(finding, step, job, before)
    }

    /// Dismisses the replicas that are wrong about a step, and gives the others the state before it.
    fn act_on(&mut self, finding: Finding, step: u64, job: &Job, before: &State) -> ReplicaError {
        let wrong = self.expel(&finding);
        self.write_all(job, before);
        if self.is_empty() {
            return self.none_left();
        }
        ReplicaError::Audit { step, wrong, why: finding.why, lasting: finding.lasting }
    }

    fn find_wrong(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        seen: &[(usize, Digest)],
    ) -> Finding {
        if self.scheduler.present().len() < 2 {
            return Finding::new([], "the same replica computed it twice");
        }
        let opinions = self.opinions(task, job, before, verdict);
        let present = self.scheduler.present().len();
        let groups = grouped(&opinions);
        match groups.first() {
            Some((right, who)) if who.len() == present => return transient(right.state, seen),
            Some((_, right)) if 2 * right.len() > present => {
                let wrong = opinions.keys().copied().filter(|replica| !right.contains(replica));
                let why = format!("alone, {} agree", self.names(right));
                return Finding::new(wrong, why);
            }
            _ => {}
        }
        let passed = match self.known_wrong() {
            Ok(finding) => return finding,
            Err(passed) => passed,
        };
        if opinions.len() < present {
            return Finding::new([], "not every replica has the memory to compute it alone");
        }
        let again = self.opinions(task, job, before, verdict);
        let differ =
            opinions.iter().filter(|(replica, first)| again.get(replica).is_some_and(|a| !a.agrees(first)));
        let changed: Vec<usize> = differ.map(|(&replica, _)| replica).collect();
        if !changed.is_empty() && changed.len() < opinions.len() {
            return Finding::new(changed, "asked again, only the others repeat their result");
        }
        let why = format!("alone, no majority of the replicas agrees; {passed}");
        Finding { wrong: BTreeSet::new(), why, lasting: true }
    }

    /// Dismisses replicas that have another state than more than half of all.
    pub(super) fn outvoted(&mut self, wrong: Vec<usize>) -> (Vec<usize>, String) {
        let finding = Finding::new(wrong, "more than half of the replicas have the same state");
        (self.expel(&finding), finding.why)
    }

    /// Dismisses the replicas that do not pass the known-answer test, if others do.
    pub(super) fn known_answers(&mut self) -> (Vec<usize>, String) {
        match self.known_wrong() {
            Ok(found) => (self.expel(&found), found.why),
            Err(passed) => (Vec::new(), passed.to_owned()),
        }
    }

    /// Finds the replicas that do not pass the known-answer test, if others do. The error says that
    /// all passed, all failed, or none could take the test.
    fn known_wrong(&mut self) -> Result<Finding, &'static str> {
        let (wrong, all) = self.known_wrong_ones();
        if wrong.is_empty() || wrong.len() == all {
            return Err(test_summary(wrong.len(), all));
        }
        Ok(Finding::new(wrong, "the others pass the known-answer test"))
    }

    /// Returns the replicas that do not pass the known-answer test, and how many took it.
    pub(super) fn known_wrong_ones(&mut self) -> (Vec<usize>, usize) {
        let index = known_answer::PROGRAM_NUMBER;
        // Compiled on first use, because few runs need it.
        let Ok(program) = self.known_answer_program() else { return (Vec::new(), 0) };
        let feed = Arc::new(known_answer::feed(self.options.global_batch));
        let rows = feed.rows;
        let task = Task { index, program: Arc::clone(&program), feed };
        let job = self.job_of(index, rows);
        let given = self.opinions(&task, &job, &State::default(), Verdict::Commit);
        let right = |opinion: &Opinion| {
            opinion.outputs.as_ref().is_some_and(|given| known_answer::is_right(&program, rows, given))
        };
        let wrong = given.iter().filter(|(_, opinion)| !right(opinion)).map(|(&replica, _)| replica);
        (wrong.collect(), given.len())
    }

    /// Returns the program of the known-answer test. Compiles it the first time, for all replicas.
    fn known_answer_program(&mut self) -> Result<Arc<Program>, GraphError> {
        if let Some(ready) = self.programs.get(&known_answer::PROGRAM_NUMBER) {
            return Ok(Arc::clone(&ready.program));
        }
        let program = known_answer::program()?;
        self.insert_programs(known_answer::PROGRAM_NUMBER, vec![Arc::clone(&program)]);
        Ok(program)
    }

    /// Has each replica make a step alone, from the same state. A replica that cannot, for lack of memory or
    /// because it leaves, has no opinion.
    fn opinions(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
    ) -> BTreeMap<usize, Opinion> {
        let mut opinions = BTreeMap::new();
        for replica in self.scheduler.present() {
            opinions.extend(self.opinion(task, job, before, verdict, replica).map(|made| (replica, made)));
        }
        opinions
    }

    /// Returns whether a replica alone makes finite numbers of a step that all together did not: then those
    /// are another one's. Of two replicas one at least is sound, if one is wrong.
    pub(super) fn is_finite_alone(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
    ) -> bool {
        let present = self.scheduler.present();
        let mut asked = present.iter().take(if present.len() > 1 { 2 } else { 0 });
        asked.any(|&replica| {
            let made = self.opinion(task, job, before, verdict, replica);
            made.is_some_and(|made| made.outputs.is_some())
        })
    }

    /// Has a replica make a step alone. Returns none if it cannot, for lack of memory or because it leaves.
    fn opinion(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        replica: usize,
    ) -> Option<Opinion> {
        self.write_all(job, before);
        let alone = Job { roles: Roles::Alone(replica), audited: true, ..job.clone() };
        self.is_diagnosing = true;
        let made = self.once(task, alone, &mut |_| verdict);
        self.is_diagnosing = false;
        let failed = self.failures.contains_key(&replica);
        self.failures.clear();
        if failed {
            return None;
        }
        let opinion = match made {
            Ok(made) => {
                let after = self.result(job, &made).unwrap_or_default();
                let own = after.into_iter().find(|(of, _)| *of == replica);
                let state = own.map(|(_, digest)| digest);
                let Audited { sums, blocks, .. } = made.audit.unwrap_or_default();
                Opinion { outputs: Some(made.outputs), sums, blocks, state }
            }
            Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. }) => Opinion::default(),
            Err(_) => return None,
        };
        self.threads.is_present(replica).then_some(opinion)
    }

    /// Dismisses the replicas that are wrong, unless those are all. Returns them.
    fn expel(&mut self, finding: &Finding) -> Vec<usize> {
        let present = self.scheduler.present();
        let wrong: Vec<usize> = present.iter().copied().filter(|r| finding.wrong.contains(r)).collect();
        if wrong.len() == present.len() {
            return Vec::new();
        }
        for &replica in &wrong {
            let why = format!("its results are wrong: {}", finding.why);
            self.failures.insert(replica, Failure::Wrong(why));
            self.notify(Event::Reject(replica));
        }
        self.let_go();
        wrong
    }

    /// Names replicas with their adapters.
    pub(super) fn names(&mut self, replicas: &[usize]) -> String {
        let names: Vec<String> = replicas.iter().map(|&r| format!("{r} ({})", self.adapter(r))).collect();
        format!("replica {}", names.join(", "))
    }
}

/// Describes the results of the known-answer test if nobody failed it, or everybody did.
fn test_summary(failed: usize, all: usize) -> &'static str {
    match (failed, all) {
        (_, 0) => "none can take the known-answer test",
        (0, _) => "all pass the known-answer test",
        _ => "all fail the known-answer test",
    }
}

/// Puts replicas with the same opinion together, the largest group first.
fn grouped(opinions: &BTreeMap<usize, Opinion>) -> Vec<(&Opinion, Vec<usize>)> {
    let mut groups: Vec<(&Opinion, Vec<usize>)> = Vec::new();
    for (&replica, opinion) in opinions {
        match groups.iter_mut().find(|(other, _)| other.agrees(opinion)) {
            Some((_, who)) => who.push(replica),
            None => groups.push((opinion, vec![replica])),
        }
    }
    groups.sort_by_key(|(_, who)| (std::cmp::Reverse(who.len()), who.first().copied()));
    groups
}

/// All replicas agree when each is asked alone: the fault did not last. Those are wrong whose state was
/// another one, if it was right on others.
fn transient(right: Option<Digest>, seen: &[(usize, Digest)]) -> Finding {
    let all: BTreeSet<usize> = seen.iter().map(|(replica, _)| *replica).collect();
    let wrong: BTreeSet<usize> =
        seen.iter().filter(|(_, digest)| Some(*digest) != right).map(|(replica, _)| *replica).collect();
    if wrong.len() < all.len() && !wrong.is_empty() {
        return Finding::new(wrong, "its state after the step differs from what all replicas compute alone");
    }
    Finding::new([], "asked one by one, all agree: the fault did not last")
}
