//! Drives the scheduler: answers of workers become events, and actions of the scheduler become orders.

use std::time::Duration;

use unisono_gpu::{Adapter, GpuError};

use crate::coordinator::replicas::{OPENING, Replicas};
use crate::error::ReplicaError;
use crate::observe::report::Left;
use crate::observe::timeline::{Activity, Interval, total};
use crate::schedule::{Action, Event, Loss, Response};
use crate::worker::message::{Answer, Failure, Order, Reply, Request, SegmentResults};

impl Replicas {
    /// Passes an event to the scheduler.
    pub(crate) fn notify(&mut self, event: Event) {
        self.actions.extend(self.scheduler.on(self.watch.elapsed(), event));
    }

    /// Returns the next action of the scheduler, and waits for answers until there is one. Workers that leave
    /// are dismissed here.
    pub(crate) fn next(&mut self) -> Action {
        loop {
            match self.actions.pop_front() {
                Some(Action::Leave { worker, loss }) => self.dismiss(worker, loss),
                Some(action) => return action,
                None => self.wait_for_answer(),
            }
        }
    }

    /// Dismisses the workers that leave, without waiting for an answer.
    pub(crate) fn let_go(&mut self) {
        while let Some(action) = self.actions.pop_front() {
            if let Action::Leave { worker, loss } = action {
                self.dismiss(worker, loss);
            }
        }
    }

    /// Waits for the next answer or the next deadline, and passes it to the scheduler. No other function of
    /// the coordinator waits.
    fn wait_for_answer(&mut self) {
        let slice = self.watch.slice(self.scheduler.due());
        let Some(Answer { replica, ticket, mut result, spans, counters, unloaded }) =
            self.threads.receive(slice)
        else {
            return self.notify(Event::Tick);
        };
        if !self.threads.is_present(replica) {
            return;
        }
        let report = self.threads.report(replica);
        report.submissions = report.submissions.max(counters.submissions);
        report.waits = report.waits.max(counters.waits);
        report.loads = report.loads.max(counters.loads);
        report.kernels = counters.kernels;
        report.uploaded = report.uploaded.max(counters.uploaded);
        report.downloaded = report.downloaded.max(counters.downloaded);
        report.resident = counters.resident;
        if !unloaded.is_empty() {
            self.notify(Event::Unloaded { worker: replica, plans: unloaded });
        }
        for span in &spans {
            self.threads.report(replica).add(span);
            if self.options.timeline {
                let (from, to) = (span.from - self.started, span.to - self.started);
                let step = self.steps.saturating_sub(1);
                self.timeline.push(Interval { replica, step, steps: 1, activity: span.activity, from, to });
            }
        }
        let spent =
            total(&spans, &[Activity::Upload, Activity::Driver, Activity::Compute, Activity::Exchange]);
        if let Ok(Reply::Early { blocks, places }) = result {
            self.overlap.spent(replica, spent);
            places.into_iter().for_each(|places| self.overlap.lent.take(replica, places));
            let buckets: Vec<usize> = blocks.iter().map(|(bucket, _)| *bucket).collect();
            self.overlap.add(replica, blocks, &mut self.memory);
            return self.exchange_early(&buckets);
        }
        let spent = spent + self.overlap.take_spent(replica);
        if let Ok(Reply::Results(results)) = &mut result {
            self.overlap_results(replica, results);
        }
        let response = match &result {
            Ok(Reply::Results(results)) if results.bad_cut.is_some() => Response::NotFinite,
            Ok(_) => Response::Done(spent),
            Err(Failure::Plan(_) | Failure::Gpu(GpuError::OutOfMemory { .. })) if self.is_diagnosing => {
                Response::Cannot
            }
            Err(Failure::Plan(_)) => Response::Refused,
            // Before the first step an error is better than a run without this replica.
            Err(Failure::Gpu(GpuError::OutOfMemory { .. })) if self.steps == 0 => Response::Refused,
            Err(Failure::Gpu(GpuError::OutOfMemory { .. })) => Response::NoMemory,
            Err(_) => Response::Failed,
        };
        match result {
            Ok(reply) => drop(self.replies.insert(replica, reply)),
            Err(failure) => drop(self.failures.insert(replica, failure)),
        }
        self.notify(Event::Answer { worker: replica, ticket, response });
    }

    /// Joins a replica's results with the blocks that it has sent before, and has its last ones added too
    /// while others go on.
    fn overlap_results(&mut self, replica: usize, results: &mut SegmentResults) {
        let last = results.blocks.clone();
        results.blocks.splice(0..0, self.overlap.sent(replica));
        if self.options.overlap {
            let buckets: Vec<usize> = last.iter().map(|(bucket, _)| *bucket).collect();
            self.overlap.finish(replica, last, &mut self.memory);
            if !self.overlap.is_finished() {
                self.exchange_early(&buckets);
            }
        }
    }

    /// Dismisses a lost worker, and records the reason.
    fn dismiss(&mut self, replica: usize, loss: Loss) {
        let failure = match loss {
            Loss::Late(after) => Failure::Silent(after),
            Loss::Failed => self.failures.remove(&replica).unwrap_or(Failure::Panic("unknown".into())),
        };
        let left = self.threads.dismiss(replica, self.steps.saturating_sub(1), &failure);
        self.overlap.lost(replica);
        self.replies.remove(&replica);
        self.untold.push(left.clone());
        self.left.push(left);
    }

    pub(crate) fn send(&self, replica: usize, ticket: u64, request: Request) {
        self.threads.send(replica, Order { ticket, request, context: self.context });
    }

    /// Sends a request to some workers and waits for all of their replies, which are returned in the order of
    /// the replicas. Workers that cannot answer leave.
    pub(crate) fn ask(
        &mut self,
        workers: Vec<usize>,
        within: Duration,
        request: &mut dyn FnMut(usize) -> Request,
    ) -> Vec<(usize, Reply)> {
        self.notify(Event::Ask { workers: workers.clone(), within });
        self.settle(&mut |replicas, worker, ticket| replicas.send(worker, ticket, request(worker)));
        let mut replies: Vec<(usize, Reply)> =
            workers.into_iter().filter_map(|worker| Some((worker, self.replies.remove(&worker)?))).collect();
        replies.sort_by_key(|(worker, _)| *worker);
        replies
    }

    /// Waits until all workers that were asked have answered or left. Other actions of the scheduler are kept
    /// for later.
    fn settle(&mut self, tell: &mut dyn FnMut(&mut Self, usize, u64)) {
        let mut later = Vec::new();
        loop {
            match self.next() {
                Action::Ask { worker, ticket } => tell(self, worker, ticket),
                Action::AllAnswered => break,
                action => later.push(action),
            }
        }
        later.into_iter().rev().for_each(|action| self.actions.push_front(action));
    }

    /// Sends a request to all workers and returns their replies.
    pub(crate) fn ask_all(
        &mut self,
        request: &mut dyn FnMut(usize) -> Request,
    ) -> Result<Vec<(usize, Reply)>, ReplicaError> {
        let replies = self.ask(self.scheduler.present(), self.options.deadline, request);
        if self.is_empty() { Err(self.none_left()) } else { Ok(replies) }
    }

    /// Starts a thread for each adapter. All open their devices at once. Returns the numbers of the new
    /// replicas.
    pub(crate) fn open(&mut self, adapters: &[Adapter]) -> Result<Vec<usize>, ReplicaError> {
        let (first, before) = (self.threads.len(), self.left.len());
        let new: Vec<usize> = (first..first + adapters.len()).collect();
        let late = !self.is_empty();
        new.iter().for_each(|&worker| self.notify(Event::Joined { worker, late }));
        let devices = self.scheduler.present().len() * self.options.cores_divided_by.max(1);
        let sharing = [devices, self.cluster.local().1];
        let within = self.options.deadline.max(OPENING);
        self.notify(Event::Ask { workers: new.clone(), within });
        self.settle(&mut |replicas, worker, ticket| {
            replicas.threads.start(&adapters[worker - first], sharing, ticket)
        });
        for &worker in &new {
            if let Some(Reply::Opened { state_bytes }) = self.replies.remove(&worker) {
                self.threads.report(worker).state_bytes = state_bytes;
            }
        }
        first_of(&self.left[before..]).map_or(Ok(new), |left| Err(ReplicaError::not_started(left)))
    }
}

/// Returns the replica with the least number, whichever left first.
fn first_of(left: &[Left]) -> Option<&Left> {
    left.iter().min_by_key(|left| left.replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_several_that_do_not_open_does_not_depend_on_who_answers_first() {
        let left = |replica| {
            let (adapter, why) = (format!("GPU {replica}"), "it is gone".to_owned());
            Left { adapter, replica, step: 0, why, out_of_memory: None }
        };
        let error = ReplicaError::not_started(first_of(&[left(2), left(1), left(3)]).unwrap());
        assert_eq!(error.to_string(), "replica 1 (GPU 1): it is gone");
        assert_eq!(first_of(&[]), None);
    }
}
