//! The worker threads as the coordinator reaches them: threads, queues and reports. Nothing is decided here.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use unisono_gpu::{Adapter, Counters, GpuError};
use unisono_graph::Program;

use crate::error::ReplicaError;
use crate::observe::report::{Left, ReplicaReport};
use crate::options::Options;
use crate::owners::Owners;
use crate::worker::message::{Answer, Failure, Order};
use crate::worker::programs::Programs;
use crate::worker::serve::{Start, serve};

#[derive(Debug)]
pub(crate) struct Threads {
    members: Vec<Member>,
    programs: Programs,
    options: Options,
    /// The owners of what the optimizer keeps, and the rank of this machine.
    owners: (Arc<Owners>, usize),
    answers: Receiver<Answer>,
    to_us: Sender<Answer>,
}

#[derive(Debug)]
struct Member {
    /// The queue of its orders; none once it has left.
    orders: Option<Sender<Order>>,
    /// The thread; none when it is not waited for at the end, because it did not answer in time.
    thread: Option<JoinHandle<()>>,
    report: ReplicaReport,
}

impl Threads {
    pub fn new(programs: &[Arc<Program>], options: &Options, owners: (Arc<Owners>, usize)) -> Self {
        let (to_us, answers) = unbounded();
        Self {
            members: Vec::new(),
            programs: Programs::new(programs),
            options: options.clone(),
            owners,
            answers,
            to_us,
        }
    }

    /// Starts a thread, which opens its device and then answers under `ticket`. Returns the replica's number.
    pub fn start(&mut self, adapter: &Adapter, ticket: u64) -> Result<usize, ReplicaError> {
        let replica = self.members.len();
        let (orders, inbox) = unbounded();
        let start = Start {
            replica,
            ticket,
            adapter: adapter.clone(),
            programs: self.programs.clone(),
            options: self.options.clone(),
            holding: self.owners.0.holding(self.owners.1, replica),
            orders: inbox,
            answers: self.to_us.clone(),
        };
        let named = std::thread::Builder::new().name(format!("replica-{replica}"));
        let thread = named.spawn(move || serve(start)).map_err(|error| ReplicaError::Start {
            replica,
            adapter: adapter.label(),
            why: format!("no thread: {error}"),
        })?;
        let report = ReplicaReport::new(replica, adapter.label(), thread.thread().id());
        self.members.push(Member { orders: Some(orders), thread: Some(thread), report });
        Ok(replica)
    }

    /// Gives programs to all threads, also to those that are started later.
    pub fn add_programs(&self, more: &[Arc<Program>]) {
        self.programs.add(more);
    }

    /// Returns the number of replicas that were ever started.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_present(&self, replica: usize) -> bool {
        self.members.get(replica).is_some_and(|member| member.orders.is_some())
    }

    pub fn report(&mut self, replica: usize) -> &mut ReplicaReport {
        &mut self.members[replica].report
    }

    pub fn reports(&self) -> impl Iterator<Item = &ReplicaReport> {
        self.members.iter().map(|member| &member.report)
    }

    /// Sends an order. If the thread has ended, a failure is put into the queue of answers in its place.
    pub fn send(&self, replica: usize, order: Order) {
        let ticket = order.ticket;
        let to = self.members.get(replica).and_then(|member| member.orders.as_ref());
        if to.is_none_or(|to| to.send(order).is_err()) {
            let result = Err(Failure::Panic("its thread has ended".to_owned()));
            // Sending cannot fail, since this struct holds the receiver.
            let (spans, counters) = (Vec::new(), Counters::default());
            let _ = self.to_us.send(Answer { replica, ticket, result, spans, counters });
        }
    }

    /// Waits for the next answer of any worker. Returns none if there is none within this time.
    pub fn hear(&self, within: Duration) -> Option<Answer> {
        self.answers.recv_timeout(within).ok()
    }

    /// Dismisses a replica: its queue is closed, and its thread ends once it has noticed.
    pub fn dismiss(&mut self, replica: usize, step: u64, failure: &Failure) -> Left {
        let member = &mut self.members[replica];
        member.orders = None;
        if let Failure::Silent(_) = failure {
            member.thread = None;
        }
        let adapter = member.report.adapter.clone();
        let out_of_memory = match failure {
            Failure::Gpu(GpuError::OutOfMemory { what, bytes }) => Some((what.clone(), *bytes)),
            _ => None,
        };
        let left = Left { adapter, replica, step, why: failure.to_string(), out_of_memory };
        member.report.left = Some(left.clone());
        left
    }
}

impl Drop for Threads {
    /// Waits for the threads, so that all devices are closed when this returns, except for threads that did
    /// not answer in time.
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| member.orders = None);
        for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
            let _ = thread.join();
        }
    }
}
