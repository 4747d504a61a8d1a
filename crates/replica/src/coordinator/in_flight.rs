//! Steps in flight: on one replica whose device decides by itself whether a step commits, the next step is
//! submitted before the results of the one before it are there.

use std::sync::Arc;
use std::time::Instant;

use crate::batch::feed::Feed;
use crate::batch::outputs::Outputs;
use crate::coordinator::audit::State;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::{Outcome, Task};
use crate::error::ReplicaError;
use crate::schedule::{Event, Job, ShardGroup};
use crate::worker::message::{Reply, Request, SegmentResults, Work};

/// A step in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    task: Task,
    job: Job,
    group: ShardGroup,
    replica: usize,
    /// The number of the step among the calls of [`Replicas::step`] and [`Replicas::begin`].
    number: u64,
    began: Instant,
}

impl Replicas {
    /// Submits a step and does not wait for it. Returns whether it did. If not, nothing has happened: the
    /// caller finishes the steps in flight and calls [`Replicas::step`].
    ///
    /// A step is submitted if all of these hold:
    /// - The run has a single machine, and one replica has all shards of the step and its plan loaded.
    /// - Its device can decide whether the step commits, by the program's conditions
    ///   ([`unisono_graph::Program::with_conditions`]).
    /// - No audit is due.
    /// - No other replica updates a part of the state for it.
    /// - Fewer steps than [`crate::Options::steps_in_flight`] are in flight.
    ///
    /// Until all steps in flight are finished, nothing but this and [`Replicas::finish`] may be called that
    /// runs a program, or reads or writes the state.
    ///
    /// # Errors
    /// Errors of the feed, before anything runs; [`ReplicaError::NoneLeft`].
    pub fn begin(&mut self, program: usize, feed: &Feed) -> Result<bool, ReplicaError> {
        let ready = self.ready(program)?;
        feed.check(&ready.program, self.options.global_batch)?;
        let decides = self.cluster.is_alone() && ready.program.conditions().is_some();
        if !decides || self.in_flight.len() >= self.most_in_flight.max(1) || self.audits.is_due(program) {
            return Ok(false);
        }
        let task = Task {
            index: program,
            program: Arc::clone(&self.ready(program)?.program),
            feed: Arc::new(feed.clone()),
        };
        let job = self.job(program, feed.rows)?;
        let Some((replica, group, within)) = self.scheduler.whole(&job) else { return Ok(false) };
        // What others have to update for it is handed round at the end of a step.
        if !self.owners.is_empty() && !self.owners.holding(self.cluster.rank(), replica).foreign.is_empty() {
            return Ok(false);
        }
        let chained = !self.in_flight.is_empty();
        let work = Work {
            program,
            run: Arc::clone(&group.run),
            step: self.steps,
            segments: 0..task.program.segments(),
            feed: Arc::clone(&task.feed),
            first_row: 0,
            sums: Vec::new(),
            in_place: self.overlap.begin(replica, &group.run, 0).all,
        };
        self.steps += 1;
        let (mut work, began) = (Some(work), Instant::now());
        let replies = self.ask(vec![replica], within, &mut |_| match work.take() {
            Some(work) => Request::Submit { work, chained },
            None => Request::Digest,
        });
        match replies.into_iter().next() {
            Some((_, Reply::Done)) => {}
            Some(_) => {
                self.steps -= 1;
                self.most_in_flight = 1;
                return Ok(false);
            }
            None => {
                self.in_flight.clear();
                return Err(self.none_left());
            }
        }
        self.threads.report(replica).overlapped += u64::from(chained);
        self.audits.began(program);
        self.in_flight.push_back(Flight { task, job, group, replica, number: self.steps - 1, began });
        Ok(true)
    }

    /// Checks that no step is in flight.
    pub(crate) fn none_in_flight(&self) -> Result<(), ReplicaError> {
        match self.in_flight.len() {
            0 => Ok(()),
            steps => Err(ReplicaError::InFlight(steps)),
        }
    }

    /// Returns whether a step may be begun before the one before it is finished, as far as is known.
    pub fn is_overlapping(&self) -> bool {
        self.most_in_flight > 1 && self.cluster.is_alone() && self.len() == 1
    }

    /// Returns the number of steps in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Waits for the oldest step in flight and returns its outcome, as [`Replicas::step`] does. If that is an
    /// error, or the step was not committed, the steps behind it have not happened, and none is in flight any
    /// more: what they were given may depend on how many steps were committed.
    ///
    /// # Errors
    /// [`ReplicaError::NotFinite`], with the state unchanged; [`ReplicaError::StateNotFinite`];
    /// [`ReplicaError::NoneLeft`]; [`ReplicaError::InFlight`] if no step is in flight.
    pub fn finish(&mut self) -> Result<Outcome, ReplicaError> {
        let Some(flight) = self.in_flight.pop_front() else {
            return Err(if self.is_empty() { self.none_left() } else { ReplicaError::InFlight(0) });
        };
        let behind = std::mem::replace(&mut self.steps, flight.number + 1);
        let Some(mut results) = self.collect(&flight) else {
            self.in_flight.clear();
            return Err(self.none_left());
        };
        let program = Arc::clone(&flight.task.program);
        let is_last = results.skipped || results.bad_cut.is_some() || results.bad_state;
        if is_last {
            self.drain();
        }
        if results.bad_cut.is_some() || results.skipped {
            let last = program.segments() - 1;
            results
                .outputs
                .retain(|(index, _)| program.outputs().get(*index).is_some_and(|o| o.segment < last));
        }
        let mut outputs = Outputs::new(program.outputs().len());
        outputs.gather(&program, vec![std::mem::take(&mut results.outputs)], true);
        if let Some(cut) = results.bad_cut {
            self.audits.undone(flight.task.index);
            return Err(self.not_finite_in(&flight, cut, &outputs));
        }
        self.landed(&flight);
        // A kernel that stores a new state beside the old one looks at it in a step that is skipped, too.
        if results.bad_state && !results.skipped {
            self.check_state_flags(flight.task.index, &[(flight.replica, true)])?;
        }
        if !is_last {
            self.steps = behind;
        }
        let left = std::mem::take(&mut self.untold);
        Ok(Outcome { outputs, committed: !results.skipped, left, audit: None })
    }

    /// Waits for the results of a step. Returns none if the replica has left.
    fn collect(&mut self, flight: &Flight) -> Option<SegmentResults> {
        let within = self.scheduler.whole(&flight.job).map_or(self.options.deadline, |(.., within)| within);
        let replies = self.ask(vec![flight.replica], within, &mut |_| Request::Collect);
        match replies.into_iter().next() {
            Some((_, Reply::Results(results))) => Some(results),
            _ => None,
        }
    }

    /// Waits for the steps behind a bad one, which have changed nothing, and forgets them.
    fn drain(&mut self) {
        while let Some(flight) = self.in_flight.pop_front() {
            self.audits.undone(flight.task.index);
            drop(self.collect(&flight));
        }
    }

    /// Names the sum that is not finite.
    fn not_finite_in(&mut self, flight: &Flight, cut: usize, outputs: &Outputs) -> ReplicaError {
        let error = self.diagnose(&flight.task, &flight.job.sizes, cut);
        let error = error.showing(&flight.task.program, outputs);
        if !self.audits.audits_any() {
            return error;
        }
        let job = Job { audited: true, ..flight.job.clone() };
        self.is_not_finite_again(&flight.task, &job, &State::default(), error)
    }

    /// Adds a step to the reports. What it took is counted from the end of the one before it, if that came
    /// later than its own beginning.
    fn landed(&mut self, flight: &Flight) {
        let now = Instant::now();
        let spent = now - flight.began.max(self.finished).min(now);
        self.finished = now;
        let (program, samples) = (flight.task.index, flight.task.feed.rows);
        self.audits.ended(program, spent);
        self.notify(Event::Ran { worker: flight.replica, program, samples, spent });
        let report = self.threads.report(flight.replica);
        report.steps += 1;
        report.shards += flight.group.shards.len() as u64;
        report.samples += samples as u64;
    }
}
