//! A witness: an extra adapter that recomputes some of the run's steps, on its own thread.
//! It is a second opinion for a run on one device, and delays it only at its end.
//!
//! ```text
//! an audited step --> the state before it, the batch, its outputs and the digest of the state after it
//!                 --> the witness makes the step from that state --> the same bytes
//!                                                                --> others: it makes the step once more,
//!                                                                    and the known-answer test
//! others, twice the same --> the replicas make the step alone, and the known-answer test --> who is wrong
//! ```

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use unisono_gpu::Adapter;
use unisono_graph::Program;

use crate::batch::outputs::Outputs;
use crate::coordinator::audit::State;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::Task;
use crate::error::ReplicaError;
use crate::options::Options;
use crate::schedule::{Audits, Job, Verdict};
use crate::worker::digest::Digest;

/// The most programs that a witness keeps compiled.
const PROGRAMS: usize = 8;

/// The reason given when a witness's thread has ended.
const ENDED: &str = "its thread ended";

/// A witness on the CPU uses one core in four.
const DIVIDED_BY: usize = 4;

/// What is known about a witness.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WitnessReport {
    /// The label of its adapter.
    pub adapter: String,
    /// The number of the run's steps that it made again and that gave the same bytes.
    pub agreed: u64,
    /// The time that it spent on these steps, while the run went on.
    pub took: Duration,
    /// The time for which the run waited for it.
    pub waited: Duration,
    /// Why it left, if it did.
    pub left: Option<String>,
}

/// The run's end of a witness.
#[derive(Debug)]
pub(crate) struct Witness {
    orders: Option<Sender<Sample>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
    /// The step that it makes.
    under_way: Option<Sample>,
    /// When it may take the next step.
    rested: Instant,
    /// The time that it rests for each second that it computes.
    rest: f64,
    report: WitnessReport,
}

/// A step of the run.
#[derive(Clone, Debug)]
struct Sample {
    /// Its number among the calls of [`Replicas::step`].
    step: u64,
    /// The number of its program is the run's, which the witness does not share.
    task: Task,
    job: Job,
    before: State,
    verdict: Verdict,
    made: StepResult,
}

/// What a step gives: its outputs, and the state after it, if it has changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StepResult {
    pub outputs: Option<Outputs>,
    pub state: Option<Digest>,
}

#[derive(Debug)]
enum Answer {
    Ready,
    Same(Duration),
    /// It made this of the step, twice.
    Other(StepResult),
    Gone(String),
}

impl Replicas {
    /// Opens an adapter as a witness: from now on it recomputes audited steps next to the run, and compares
    /// outputs and states. It must be of the run's numeric class. It takes this share of the machine's cores
    /// on average.
    ///
    /// # Errors
    /// The adapter does not open.
    pub fn start_witness(&mut self, adapter: &Adapter, share: f64) -> Result<(), ReplicaError> {
        let programs = self.own_programs().cloned().collect();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / DIVIDED_BY).max(1);
        let options = self.options.clone().with(|options| {
            options.audits = Audits::Never;
            options.owners = None;
            options.timeline = false;
            options.cores_divided_by = DIVIDED_BY;
            options.fault_scope.push_str("witness:");
        });
        let (orders, inbox) = unbounded();
        let (outbox, answers) = unbounded();
        let name = "witness".to_owned();
        let own = adapter.clone();
        let thread =
            thread::Builder::new().name(name).spawn(move || serve(&own, programs, options, &inbox, &outbox));
        let failed = |why: String| ReplicaError::Witness { adapter: adapter.label(), why };
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        match answers.recv() {
            Ok(Answer::Ready) => {}
            Ok(Answer::Gone(why)) => return Err(failed(why)),
            _ => return Err(failed(ENDED.to_owned())),
        }
        let part = threads as f64 / cores as f64;
        self.witness = Some(Witness {
            orders: Some(orders),
            answers,
            thread: Some(thread),
            under_way: None,
            rested: Instant::now(),
            rest: (part / share.max(1e-6) - 1.0).max(0.0),
            report: WitnessReport { adapter: adapter.label(), ..WitnessReport::default() },
        });
        Ok(())
    }

    /// Returns what is known about the witness, if there is one.
    pub fn witness(&self) -> Option<&WitnessReport> {
        self.witness.as_ref().map(|witness| &witness.report)
    }

    /// Returns whether a witness is there that has not left.
    pub fn has_witness(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.orders.is_some())
    }

    /// Returns the number of the step ([`crate::Audited::witnessed`]) that the witness has confirmed since
    /// the last call by computing the same bytes as the run, or `None` if there is none. With `wait`, it
    /// first waits for the step that the witness is recomputing, if there is one.
    ///
    /// # Errors
    /// [`ReplicaError::Audit`] if the witness computed other bytes, and the same ones when it repeated the
    /// step. Other errors that occur when the replicas then repeat the step. After these errors the replicas
    /// have another state, so go back to a state that you trust. [`ReplicaError::InFlight`] if steps are in
    /// flight.
    pub fn hear_witness(&mut self, wait: bool) -> Result<Option<u64>, ReplicaError> {
        self.none_in_flight()?;
        let Some(witness) = &mut self.witness else { return Ok(None) };
        if witness.under_way.is_none() {
            return Ok(None);
        }
        let began = Instant::now();
        let waited = || witness.answers.recv().map_err(|_| TryRecvError::Disconnected);
        let answer = if wait { waited() } else { witness.answers.try_recv() };
        witness.report.waited += if wait { began.elapsed() } else { Duration::ZERO };
        match (answer, witness.under_way.take()) {
            (Ok(Answer::Same(took)), Some(sample)) => {
                witness.rested = Instant::now() + took.mul_f64(witness.rest);
                witness.report.agreed += 1;
                witness.report.took += took;
                Ok(Some(sample.step))
            }
            (Ok(Answer::Other(made)), Some(sample)) => {
                let name = witness.report.adapter.clone();
                let Sample { step, task, job, before, verdict, .. } = sample;
                Err(self.contradicted(step, &task, &job, &before, verdict, (&name, &made)))
            }
            (Ok(Answer::Gone(why)), _) => {
                witness.leave(why);
                Ok(None)
            }
            (Err(TryRecvError::Disconnected), _) => {
                witness.leave(ENDED.to_owned());
                Ok(None)
            }
            (_, under_way) => {
                witness.under_way = under_way;
                Ok(None)
            }
        }
    }

    /// Forgets the step that the witness makes, whose state the run has left.
    pub fn forget_witnessed(&mut self) {
        let Some(witness) = &mut self.witness else { return };
        if witness.under_way.take().is_some()
            && let Ok(Answer::Gone(why)) | Err(why) = witness.answers.recv().map_err(|_| ENDED.to_owned())
        {
            witness.leave(why);
        }
    }

    /// Hands a step over to the witness, if it is there and has rested. Returns the step's number if it was.
    pub(super) fn offer(
        &mut self,
        task: &Task,
        job: &Job,
        before: &State,
        verdict: Verdict,
        made: &dyn Fn() -> StepResult,
    ) -> Option<u64> {
        let step = self.steps.saturating_sub(1);
        let is_asked = self.audits.is_asked(task.index);
        let witness = self.witness.as_mut()?;
        let may = job.changes_state && witness.under_way.is_none();
        if !may || !is_asked && Instant::now() < witness.rested {
            return None;
        }
        let sample = Sample {
            step,
            task: task.clone(),
            job: job.clone(),
            before: Arc::clone(before),
            verdict,
            made: made(),
        };
        witness.orders.as_ref()?.send(sample.clone()).ok()?;
        witness.under_way = Some(sample);
        Some(step)
    }
}

impl Witness {
    fn leave(&mut self, why: String) {
        (self.orders, self.under_way, self.report.left) = (None, None, Some(why));
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It ends when it has made the step that it makes.
            let _ = thread.join();
        }
    }
}

/// Serves the run on the witness's thread.
fn serve(
    adapter: &Adapter,
    programs: Vec<Arc<Program>>,
    options: Options,
    orders: &Receiver<Sample>,
    answers: &Sender<Answer>,
) {
    let started = Replicas::start(std::slice::from_ref(adapter), programs.clone(), options);
    let mut replicas = match started {
        Ok(replicas) => replicas,
        Err(error) => {
            // The run may be gone, and then nobody asks.
            let _ = answers.send(Answer::Gone(error.of_the_only_one()));
            return;
        }
    };
    let mut known: Vec<(usize, Arc<Program>)> = programs.into_iter().enumerate().collect();
    let mut answer = Answer::Ready;
    loop {
        let is_gone = matches!(answer, Answer::Gone(_));
        if answers.send(answer).is_err() || is_gone {
            return;
        }
        let Ok(sample) = orders.recv() else { return };
        let began = Instant::now();
        answer = match second_opinion(&mut replicas, &mut known, &sample) {
            Ok(None) => Answer::Same(began.elapsed()),
            Ok(Some(made)) => Answer::Other(made),
            Err(why) => Answer::Gone(why),
        };
    }
}

/// Makes a step. Returns what it gives where that is not what the run has.
///
/// # Errors
/// Why the witness is of no use: it fails, or gives something else each time.
fn second_opinion(
    replicas: &mut Replicas,
    known: &mut Vec<(usize, Arc<Program>)>,
    sample: &Sample,
) -> Result<Option<StepResult>, String> {
    let mut make = || recompute(replicas, known, sample).map_err(ReplicaError::of_the_only_one);
    let first = make()?;
    if first == sample.made {
        return Ok(None);
    }
    if make()? != first {
        return Err(format!("it computed step {} twice, with different results", sample.step));
    }
    match replicas.known_wrong_ones() {
        (_, 0) => Err("it cannot take the known-answer test".to_owned()),
        (wrong, _) if wrong.is_empty() => Ok(Some(first)),
        _ => Err("it fails the known-answer test".to_owned()),
    }
}

/// Makes a step from the state before it.
fn recompute(
    replicas: &mut Replicas,
    known: &mut Vec<(usize, Arc<Program>)>,
    sample: &Sample,
) -> Result<StepResult, ReplicaError> {
    let found = known.iter().find(|(_, program)| Arc::ptr_eq(program, &sample.task.program));
    let index = match found {
        Some((index, _)) => *index,
        None => {
            if known.len() >= PROGRAMS.max(2) {
                // The first one has the state of all.
                let (oldest, _) = known.remove(1);
                replicas.forget_programs(oldest..oldest + 1)?;
            }
            let index = replicas.add_programs(vec![Arc::clone(&sample.task.program)])?;
            known.push((index, Arc::clone(&sample.task.program)));
            index
        }
    };
    for (tensor, bytes) in sample.before.iter().enumerate() {
        replicas.write_state(tensor, bytes)?;
    }
    match replicas.step(index, &sample.task.feed, &mut |_| sample.verdict) {
        Ok(outcome) => {
            let state =
                if outcome.committed { replicas.digests()?.first().map(|(_, digest)| *digest) } else { None };
            Ok(StepResult { outputs: Some(outcome.outputs), state })
        }
        Err(ReplicaError::NotFinite { .. } | ReplicaError::StateNotFinite { .. }) => {
            Ok(StepResult::default())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::{Tape, Type};

    use super::*;

    fn replicas() -> Replicas {
        let tape = Tape::new();
        tape.output("y", &(tape.input("x", Type::sample(&[2])) * 2.0));
        let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
        let options = Options::default().with(|options| options.global_batch = 4);
        Replicas::start(&unisono_gpu::select(&["cpu"]).unwrap(), vec![program], options).unwrap()
    }

    #[test]
    fn a_witness_whose_thread_has_ended_leaves_although_nobody_waits_for_it() {
        let mut replicas = replicas();
        let task =
            Task { index: 0, program: Arc::clone(&replicas.programs[&0].program), feed: Arc::default() };
        let sample = Sample {
            step: 0,
            task,
            job: replicas.job_of(0, 4),
            before: State::default(),
            verdict: Verdict::Commit,
            made: StepResult::default(),
        };
        let (outbox, answers) = unbounded();
        replicas.witness = Some(Witness {
            orders: Some(unbounded().0),
            answers,
            thread: None,
            under_way: Some(sample),
            rested: Instant::now(),
            rest: 0.0,
            report: WitnessReport::default(),
        });
        assert_eq!((replicas.hear_witness(false), replicas.has_witness()), (Ok(None), true));
        drop(outbox);
        assert_eq!((replicas.hear_witness(false), replicas.has_witness()), (Ok(None), false));
        assert_eq!(replicas.witness().unwrap().left.as_deref(), Some(ENDED));
    }

    #[test]
    fn a_witness_that_does_not_open_is_named_as_such() {
        let gone = Adapter { name: "gone".to_owned(), ..unisono_gpu::adapters(&[]).remove(0) };
        let error = replicas().start_witness(&gone, 1.0).unwrap_err().to_string();
        let label = gone.label();
        assert!(
            error.starts_with(&format!("the witness ({label}): ")) && !error.contains("replica"),
            "{error}"
        );
    }
}
