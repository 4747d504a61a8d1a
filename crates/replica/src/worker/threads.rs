//! The worker threads as the coordinator reaches them: threads, queues and reports. Nothing is decided here.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use unisono_gpu::{Adapter, Counters, GpuError, SharedKernels, Stopwatch};
use unisono_graph::Program;

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
    /// The kernels that replicas on the CPU share.
    kernels: SharedKernels,
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
            kernels: SharedKernels::default(),
            answers,
            to_us,
        }
    }

    /// Starts a thread, which opens its device, one of `devices` in each of so many processes on this
    /// machine, and then answers under `ticket`.
    pub fn start(&mut self, adapter: &Adapter, [devices, processes]: [usize; 2], ticket: u64) {
        let replica = self.members.len();
        let (orders, inbox) = unbounded();
        let start = Start {
            replica,
            how: self.how(replica, devices, processes),
            ticket,
            adapter: adapter.clone(),
            programs: self.programs.clone(),
            options: self.options.clone(),
            holding: self.owners.0.holding(self.owners.1, replica),
            orders: inbox,
            answers: self.to_us.clone(),
        };
        let named = std::thread::Builder::new().name(format!("replica-{replica}"));
        let spawned = named.spawn(move || serve(start));
        self.add(adapter.label(), ticket, orders, spawned);
    }

    /// Returns how a replica opens its device.
    fn how(&self, replica: usize, devices: usize, processes: usize) -> unisono_gpu::Options {
        unisono_gpu::Options::default().with(|how| {
            how.checked = self.options.checked;
            how.marks = self.options.marks;
            how.deadline = self.options.deadline;
            how.f16 = self.programs.store_f16();
            how.devices = devices;
            how.processes = processes;
            how.turn = replica;
            how.shared = Some(self.kernels.clone());
        })
    }

    /// Joins the threads of replicas that have left and ended, whose stacks stay until then.
    fn join_ended(&mut self) {
        let left = self.members.iter_mut().filter(|member| member.orders.is_none());
        for thread in left.filter_map(|member| member.thread.take_if(|thread| thread.is_finished())) {
            let _ = thread.join();
        }
    }

    /// Adds a replica. If there is no thread for it, its answer is a failure: whoever waits for it then does
    /// so no longer than for others, and the numbers of those behind it are theirs.
    fn add(
        &mut self,
        adapter: String,
        ticket: u64,
        orders: Sender<Order>,
        spawned: std::io::Result<JoinHandle<()>>,
    ) {
        self.join_ended();
        let replica = self.members.len();
        let own = || std::thread::current().id();
        let id = spawned.as_ref().map_or_else(|_| own(), |thread| thread.thread().id());
        let thread =
            spawned.map_err(|error| self.fail(replica, ticket, Failure::NoThread(error.to_string())));
        let report = ReplicaReport::new(replica, adapter, id);
        self.members.push(Member { orders: Some(orders), thread: thread.ok(), report });
    }

    /// Puts a failure into the queue of answers in the place of a thread's answer.
    fn fail(&self, replica: usize, ticket: u64, failure: Failure) {
        let (result, spans, counters) = (Err(failure), Vec::new(), Counters::default());
        let unloaded = Vec::new();
        // Sending cannot fail, since this struct holds the receiver.
        let _ = self.to_us.send(Answer { replica, ticket, result, spans, counters, unloaded });
    }

    /// Gives programs, numbered from `first`, to all threads, also to those that are started later.
    pub fn add_programs(&self, first: usize, more: &[Arc<Program>]) {
        self.programs.add(first, more);
    }

    /// Takes programs from all threads. Each drops what it holds of them before it loads its next plan.
    pub fn forget_programs(&self, programs: &Range<usize>) {
        self.programs.forget(programs);
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
            self.fail(replica, ticket, Failure::Panic("its thread has ended".to_owned()));
        }
    }

    /// Waits for the next answer of any worker. Returns none if there is none within this time.
    pub fn receive(&self, within: Duration) -> Option<Answer> {
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

/// The longest wait for all devices to close. The results of the run have been reported by then.
const CLOSING: Duration = Duration::from_secs(30);
/// How often it is looked whether one is closed.
const PAUSE: Duration = Duration::from_micros(200);

impl Drop for Threads {
    /// Waits for the threads, so that all devices are closed when this returns, except for threads that did
    /// not answer in time, or whose driver does not close its device.
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| member.orders = None);
        let mut watch = Stopwatch::start();
        for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
            while !thread.is_finished() && watch.elapsed() < CLOSING {
                std::thread::sleep(PAUSE);
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device may come and go a thousand times.
    #[test]
    fn threads_of_replicas_that_left_are_joined_when_the_next_one_starts() {
        let mut threads = Threads::new(&[], &Options::default(), (Arc::default(), 0));
        let spawn = || std::thread::Builder::new().spawn(|| {});
        threads.add("first".into(), 1, unbounded().0, spawn());
        threads.add("second".into(), 2, unbounded().0, spawn());
        let is_there = |threads: &Threads, at: usize| threads.members[at].thread.is_some();
        threads.dismiss(0, 0, &Failure::Panic("it left".into()));
        while (0..2).any(|at| threads.members[at].thread.as_ref().is_some_and(|it| !it.is_finished())) {
            std::thread::yield_now();
        }
        assert!(is_there(&threads, 0));
        threads.add("third".into(), 3, unbounded().0, spawn());
        assert_eq!([0, 1, 2].map(|at| is_there(&threads, at)), [false, true, true]);
    }

    /// Those of two runs do not know of each other.
    #[test]
    fn replicas_of_a_run_share_the_kernels_of_the_cpu() {
        let [one, other] = [0, 0].map(|_| Threads::new(&[], &Options::default(), (Arc::default(), 0)));
        assert_eq!(one.how(0, 2, 1).shared, one.how(1, 2, 1).shared);
        if cfg!(feature = "cpu") {
            assert_ne!(one.how(0, 2, 1).shared, other.how(0, 2, 1).shared);
        }
    }

    #[test]
    fn a_replica_without_a_thread_answers_that_it_has_none_and_keeps_its_number() {
        let mut threads = Threads::new(&[], &Options::default(), (Arc::default(), 0));
        let none = || Err(std::io::Error::other("no more of them"));
        threads.add("first".into(), 7, unbounded().0, none());
        threads.add("second".into(), 8, unbounded().0, std::thread::Builder::new().spawn(|| {}));
        assert_eq!((threads.len(), threads.is_present(0), threads.is_present(1)), (2, true, true));
        let Answer { replica, ticket, result, .. } = threads.receive(Duration::ZERO).unwrap();
        let Err(failure) = result else { panic!("{result:?}") };
        assert_eq!((replica, ticket, failure.to_string().as_str()), (0, 7, "no thread: no more of them"));
        assert!(threads.receive(Duration::ZERO).is_none());
        let left = threads.dismiss(0, 0, &failure);
        assert_eq!((left.adapter.as_str(), left.why), ("first", failure.to_string()));
    }
}
