//! The workers as the coordinator sees them: ask some, hear from all of these, let go of those that failed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use unisono_gpu::Adapter;
use unisono_graph::Program;

use crate::error::ReplicaError;
use crate::message::{Answer, Failure, Reply, Request};
use crate::options::Options;
use crate::report::{Left, ReplicaReport};
use crate::worker::{Start, serve};

/// What the members that were asked said, in the order they were asked.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub replies: Vec<(usize, Reply)>,
    pub failures: Vec<(usize, Failure)>,
}

#[derive(Debug)]
pub(crate) struct Team {
    members: Vec<Member>,
    answers: Receiver<Answer>,
}

#[derive(Debug)]
struct Member {
    /// None once it has left.
    requests: Option<Sender<Request>>,
    /// None when it is not to be waited for: it did not answer in time.
    thread: Option<JoinHandle<()>>,
    report: ReplicaReport,
}

impl Team {
    /// Starts a thread a replica; all open their devices at once.
    pub fn start(
        adapters: &[Adapter],
        programs: &[Arc<Program>],
        options: &Options,
    ) -> Result<Self, ReplicaError> {
        let programs: Arc<[Arc<Program>]> = programs.into();
        let (to_us, answers) = unbounded();
        let mut team = Self { members: Vec::with_capacity(adapters.len()), answers };
        for (replica, adapter) in adapters.iter().enumerate() {
            let (requests, inbox) = unbounded();
            let start = Start {
                replica,
                adapter: adapter.clone(),
                programs: Arc::clone(&programs),
                options: options.clone(),
                requests: inbox,
                answers: to_us.clone(),
            };
            let named = std::thread::Builder::new().name(format!("replica-{replica}"));
            let thread = named.spawn(move || serve(start)).map_err(|error| ReplicaError::Start {
                replica,
                adapter: adapter.label(),
                why: format!("no thread: {error}"),
            })?;
            let report = ReplicaReport::new(replica, adapter.label(), thread.thread().id());
            team.members.push(Member { requests: Some(requests), thread: Some(thread), report });
        }
        let mut opened = Round::default();
        team.collect(
            (0..adapters.len()).collect(),
            options.deadline.max(Duration::from_secs(60)),
            &mut opened,
        );
        let left: Vec<Left> =
            opened.failures.iter().map(|(replica, why)| team.dismiss(*replica, 0, why)).collect();
        match left.into_iter().next() {
            None => Ok(team),
            Some(Left { adapter, replica, why, .. }) => Err(ReplicaError::Start { replica, adapter, why }),
        }
    }

    /// Those that have not left, in order.
    pub fn present(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&r| self.members[r].requests.is_some()).collect()
    }

    pub fn report(&mut self, replica: usize) -> &mut ReplicaReport {
        &mut self.members[replica].report
    }

    pub fn reports(&self) -> impl Iterator<Item = &ReplicaReport> {
        self.members.iter().map(|member| &member.report)
    }

    /// Sends each its request and waits until each has answered, or has not for `deadline`.
    pub fn ask(&mut self, requests: Vec<(usize, Request)>, deadline: Duration) -> Round {
        let mut round = Round::default();
        let mut asked = Vec::with_capacity(requests.len());
        for (replica, request) in requests {
            let sent = self.members[replica].requests.as_ref().is_some_and(|to| to.send(request).is_ok());
            if sent {
                asked.push(replica);
            } else {
                round.failures.push((replica, Failure::Panic("its thread has ended".to_owned())));
            }
        }
        self.collect(asked, deadline, &mut round);
        round
    }

    /// Answers of those that are not waited for come from replicas that left: too late.
    fn collect(&mut self, mut waiting: Vec<usize>, deadline: Duration, round: &mut Round) {
        let start = Instant::now();
        while !waiting.is_empty() {
            match self.answers.recv_timeout(deadline.saturating_sub(start.elapsed())) {
                Ok(Answer { replica, result, spent }) => {
                    let Some(at) = waiting.iter().position(|&w| w == replica) else { continue };
                    waiting.swap_remove(at);
                    self.members[replica].report.add(spent);
                    match result {
                        Ok(reply) => round.replies.push((replica, reply)),
                        Err(failure) => round.failures.push((replica, failure)),
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let silent = |replica| (replica, Failure::Silent(start.elapsed()));
                    round.failures.extend(waiting.drain(..).map(silent));
                }
            }
        }
        round.replies.sort_by_key(|(replica, _)| *replica);
        round.failures.sort_by_key(|(replica, _)| *replica);
    }

    /// Lets go of a replica: its thread ends once it has noticed.
    pub fn dismiss(&mut self, replica: usize, step: u64, failure: &Failure) -> Left {
        let member = &mut self.members[replica];
        member.requests = None;
        if let Failure::Silent(_) = failure {
            member.thread = None;
        }
        let adapter = member.report.adapter.clone();
        let left = Left { adapter, replica, step, why: failure.to_string() };
        member.report.left = Some(left.clone());
        left
    }
}

impl Drop for Team {
    /// Waits for the threads, so that devices are closed when this returns; not for one that did not answer.
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| member.requests = None);
        for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
            let _ = thread.join();
        }
    }
}
