//! The ranks of a run, as the rest of the program sees them.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cuts::cuts;
use crate::error::{ClusterError, Problem};
use crate::link::Link;
use crate::packed::{pack, unpack};
use crate::session::Session;
use crate::session::exchange::Sum;

/// How long the last clone of a cluster waits for the others to end too, if the run ends with an error.
/// Otherwise it waits until the deadline: its end may end their processes, and they may have files to write.
const GOODBYE: Duration = Duration::from_secs(5);
/// The default deadline: longer than the time that a machine has to compile its kernels.
const DEADLINE: Duration = Duration::from_secs(900);

/// The records of a gather, each with the number of its rank, in the order of the ranks.
pub type Records = Vec<(usize, Vec<u8>)>;

/// The ranks of a run (PyTorch's process group, MPI's communicator): one for each process. All ranks call the
/// same functions in the same order. Clones are the same cluster.
///
/// In a process that is alone, every function returns its own input and costs nothing.
#[derive(Clone, Default)]
pub struct Cluster(Option<Arc<Shared>>);

struct Shared {
    session: Mutex<Session>,
    /// The error that ended everything.
    broken: Mutex<Option<ClusterError>>,
    /// Whether the last part of the run ended with an error on any rank.
    failed: AtomicBool,
    /// The reason for which this rank ends before the others.
    leaves: Mutex<Option<Problem>>,
}

impl Cluster {
    /// Returns the cluster of a single process.
    pub fn alone() -> Self {
        Self(None)
    }

    /// Returns the cluster of the ranks that a link connects. A single rank is alone.
    pub fn new(mut link: Box<dyn Link>) -> Self {
        if link.hosts().len() < 2 {
            link.end(true);
            return Self::alone();
        }
        let session = Mutex::new(Session::new(link, DEADLINE));
        let (broken, failed) = (Mutex::new(None), AtomicBool::new(false));
        let leaves = Mutex::default();
        Self(Some(Arc::new(Shared { session, broken, failed, leaves })))
    }

    /// Returns whether there is no other rank, and there never was one.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.read(|session| session.me)
    }

    /// Returns whether this is the first of the ranks that are left: the one that prints.
    pub fn is_first(&self) -> bool {
        self.0.is_none() || self.read(|session| session.place() == 0)
    }

    /// Returns the number of ranks that the run was started with.
    pub fn size(&self) -> usize {
        if self.is_alone() { 1 } else { self.read(|session| session.hosts().len()) }
    }

    /// Returns the numbers of the ranks that are left, in order.
    pub fn present(&self) -> Vec<usize> {
        if self.is_alone() { vec![0] } else { self.read(|session| session.present.clone()) }
    }

    /// Returns this rank's place among those that are left.
    pub fn place(&self) -> usize {
        self.read(|session| session.place())
    }

    /// Returns the number of a rank and the name of its machine, as messages name it: `rank 2 (hostb)`.
    pub fn name(&self, rank: usize) -> String {
        self.read(|session| session.name(rank))
    }

    /// Returns the name of each rank's machine, in the order of the ranks. A process that is alone has none.
    pub fn hosts(&self) -> Vec<String> {
        self.read(|session| session.hosts().to_vec())
    }

    /// Returns the ranks that were lost, each with the reason.
    pub fn lost(&self) -> Vec<(usize, String)> {
        self.read(|session| session.lost.iter().map(|(rank, why)| (*rank, why.clone())).collect())
    }

    /// Returns this rank's place among the ranks on its machine, and their number.
    pub fn local(&self) -> (usize, usize) {
        if self.is_alone() {
            return (0, 1);
        }
        self.read(|session| {
            let hosts = session.hosts();
            let is_here = |rank: &usize| hosts.get(*rank) == hosts.get(session.me);
            let here: Vec<usize> = (0..hosts.len()).filter(is_here).collect();
            (here.iter().position(|rank| *rank == session.me).unwrap_or_default(), here.len())
        })
    }

    /// Returns the bytes that this rank has sent to add up buckets.
    pub fn bytes_sent(&self) -> u64 {
        self.read(|session| session.sent)
    }

    /// Returns the time that this rank has waited for others.
    pub fn waited(&self) -> Duration {
        self.read(|session| session.waited)
    }

    /// Returns the part of [`Cluster::waited`] within steps: for sums, and for what is gathered before a step
    /// commits ([`Cluster::gather_once`]).
    pub fn waited_in_steps(&self) -> Duration {
        self.read(|session| session.waited_in_steps)
    }

    /// Returns the number of messages that each answered the one before: four a step, and some around steps.
    pub fn messages_in_a_row(&self) -> u64 {
        self.read(|session| session.in_a_row)
    }

    /// Returns the time that a message takes to the farthest rank, as the link measured it at the start; zero
    /// where it did not.
    pub fn latency(&self) -> Duration {
        self.read(|session| session.latency())
    }

    /// Sets the time after which a rank that does not answer ends the run. Default: 15 minutes.
    pub fn set_deadline(&self, deadline: Duration) {
        self.read(|session| session.deadline = deadline);
    }

    /// Begins a step. Ranks that are already known to be lost do not end it with [`ClusterError::Changed`].
    ///
    /// # Errors
    /// Errors end the run.
    pub fn begin(&self) -> Result<(), ClusterError> {
        self.act(Session::begin)
    }

    /// Sends a record to all ranks and returns the records of all (an all-gather). If ranks are lost in the
    /// meantime, this has happened on all remaining ranks or on none of them. `what` names the records; all
    /// ranks must use the same name.
    ///
    /// # Errors
    /// [`ClusterError::Changed`]: it has happened on no rank. [`ClusterError::Crossed`]: another rank gathers
    /// something else. Others end the run.
    pub fn gather_once(&self, what: &str, record: &[u8]) -> Result<Records, ClusterError> {
        if self.is_alone() {
            return Ok(vec![(0, record.to_vec())]);
        }
        self.in_step(|session| session.gather(what, record))
    }

    /// Sends a record to all ranks and returns the records of all remaining ranks, as
    /// [`Cluster::gather_once`] does.
    ///
    /// # Errors
    /// Errors end the run.
    pub fn gather(&self, what: &str, record: &[u8]) -> Result<Records, ClusterError> {
        if self.is_alone() {
            return Ok(vec![(0, record.to_vec())]);
        }
        loop {
            match self.act(|session| session.gather(what, record)) {
                Err(ClusterError::Changed) => {}
                other => return other,
            }
        }
    }

    /// Returns whether `here` is true on any rank. `what` names the question.
    ///
    /// # Errors
    /// Errors end the run.
    pub fn any(&self, what: &str, here: bool) -> Result<bool, ClusterError> {
        if self.is_alone() {
            return Ok(here);
        }
        Ok(self.gather(what, &[u8::from(here)])?.iter().any(|(_, record)| record == &[1]))
    }

    /// Sends the bytes of rank `from` to all ranks. `what` names them.
    ///
    /// # Errors
    /// [`ClusterError::Other`] if that rank is lost. Others end the run.
    pub fn broadcast(&self, what: &str, from: usize, bytes: Vec<u8>) -> Result<Vec<u8>, ClusterError> {
        if self.is_alone() {
            return Ok(bytes);
        }
        let own = if self.rank() == from { bytes } else { Vec::new() };
        let records = self.gather(what, &own)?;
        let found = records.into_iter().find(|(rank, _)| *rank == from).map(|(_, bytes)| bytes);
        found.ok_or_else(|| ClusterError::Other {
            rank: self.name(from),
            why: "it was lost".into(),
            is_refusal: false,
        })
    }

    /// Ends a part of the run on all ranks. Each rank passes the error with which it ended here, if there is
    /// one. Returns those of all ranks. If another rank is still in another operation, that operation fails
    /// there.
    ///
    /// # Errors
    /// Errors end the run.
    pub fn conclude(&self, problem: Option<&Problem>) -> Result<Vec<(usize, Option<Problem>)>, ClusterError> {
        if self.is_alone() {
            return Ok(vec![(0, problem.cloned())]);
        }
        let concluded = loop {
            match self.act(|session| session.conclude(problem)) {
                Err(ClusterError::Changed) => {}
                other => break other,
            }
        };
        let is_sound = concluded.as_ref().is_ok_and(|all| all.iter().all(|(_, problem)| problem.is_none()));
        self.0.iter().for_each(|shared| shared.failed.store(!is_sound, Ordering::Relaxed));
        concluded
    }

    /// Says why this rank ends before the others. When the last clone of the cluster is dropped, operations
    /// that wait for this rank fail with this reason.
    pub fn leave(&self, problem: Problem) {
        if let Some(shared) = &self.0 {
            *lock(&shared.leaves) = Some(problem);
        }
    }

    /// Compares records by name. Each rank passes the same names in the same order, with its own values.
    ///
    /// # Errors
    /// [`ClusterError::Differs`] on all ranks if a rank has another value than the first rank; it names both.
    /// Others end the run.
    pub fn compare(&self, own: &[(String, String)]) -> Result<(), ClusterError> {
        if self.is_alone() {
            return Ok(());
        }
        let parts: Vec<&[u8]> =
            own.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]).collect();
        let records = self.gather("a comparison", &pack(&parts))?;
        let wrong = || ClusterError::Differs("the ranks are not of one version".into());
        let read = |record: &[u8]| -> Option<Vec<(String, String)>> {
            let parts = unpack(record)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Some(parts.as_chunks::<2>().0.iter().map(|[name, value]| (text(name), text(value))).collect())
        };
        let all: Option<Vec<_>> = records.iter().map(|(rank, record)| Some((*rank, read(record)?))).collect();
        let all = all.ok_or_else(wrong)?;
        let Some((first, wanted)) = all.first() else { return Ok(()) };
        for (rank, found) in &all[1..] {
            if found.len() != wanted.len() {
                return Err(wrong());
            }
            let differs = found.iter().zip(wanted).find(|(found, wanted)| found != wanted);
            if let Some(((name, found), (_, wanted))) = differs {
                let text = format!("{}: {name} {found}, rank {first}: {wanted}", self.name(*rank));
                return Err(ClusterError::Differs(text));
            }
        }
        Ok(())
    }

    /// Starts to sum a bucket over all ranks (an all-reduce). `blocks` has this rank's blocks, one after
    /// another.
    ///
    /// # Errors
    /// Errors end the run.
    pub fn begin_exchange(&self, sum: Sum, blocks: &[f32]) -> Result<(), ClusterError> {
        self.act(|session| session.begin_exchange(sum, blocks))
    }

    /// Processes the messages that have arrived for exchanges, without waiting.
    ///
    /// # Errors
    /// Errors end the run.
    pub fn poll(&self) -> Result<(), ClusterError> {
        if self.is_alone() { Ok(()) } else { self.act(Session::poll) }
    }

    /// Waits for the sums of a bucket.
    ///
    /// # Errors
    /// [`ClusterError::Changed`]: ranks are lost, and the remaining ranks start the step again. Others end
    /// the run.
    pub fn finish_exchange(&self, bucket: usize) -> Result<Vec<f32>, ClusterError> {
        self.in_step(|session| session.finish_exchange(bucket))
    }

    /// Returns the shards of each remaining rank, in proportion to the weights. `weights` has one for each
    /// rank.
    pub fn runs(&self, shards: usize, weights: &[usize]) -> Vec<Range<usize>> {
        let weight = |rank: &usize| weights.get(*rank).copied().unwrap_or(1).max(1);
        cuts(shards, &self.present().iter().map(weight).collect::<Vec<_>>())
    }

    /// Reads or sets something. A process that is alone has the default.
    fn read<T: Default>(&self, read: impl FnOnce(&mut Session) -> T) -> T {
        self.0.as_ref().map(|shared| read(&mut lock(&shared.session))).unwrap_or_default()
    }

    /// Does a part of a step, and counts its wait as one within steps.
    fn in_step<T>(
        &self,
        act: impl FnOnce(&mut Session) -> Result<T, ClusterError>,
    ) -> Result<T, ClusterError> {
        self.act(|session| {
            let before = session.waited;
            let result = act(session);
            session.waited_in_steps += session.waited.saturating_sub(before);
            result
        })
    }

    fn act<T>(&self, act: impl FnOnce(&mut Session) -> Result<T, ClusterError>) -> Result<T, ClusterError> {
        let Some(shared) = &self.0 else { return Err(ClusterError::Link("this process is alone".into())) };
        if let Some(broken) = lock(&shared.broken).clone() {
            return Err(broken);
        }
        let result = act(&mut lock(&shared.session));
        if let Some(error) = result.as_ref().err().filter(|error| error.is_final()) {
            *lock(&shared.broken) = Some(error.clone());
        }
        result
    }
}

/// The last clone ends the rank's part of the run.
impl Drop for Shared {
    fn drop(&mut self) {
        let broken = lock(&self.broken).take();
        let leaves = lock(&self.leaves).take();
        let failed = *self.failed.get_mut() || leaves.is_some() || std::thread::panicking();
        let patience = match &broken {
            Some(_) => Duration::ZERO,
            None if failed => GOODBYE,
            None => lock(&self.session).deadline,
        };
        let problem = leaves.or_else(|| Some(broken?.to_string().as_str().into()));
        lock(&self.session).end(problem.as_ref(), patience);
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_alone() {
            true => f.write_str("Cluster::alone"),
            false => write!(f, "Cluster({} of {})", self.rank(), self.size()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::link::Received;
    use crate::message::{Kind, Message};

    /// The link of rank 0 to another rank, which concludes whenever this one does and says goodbye later.
    struct Later {
        hosts: [String; 2],
        now: Duration,
        goodbye: Option<Duration>,
        comes: VecDeque<Vec<u8>>,
        together: Arc<Mutex<Option<bool>>>,
    }

    impl Link for Later {
        fn rank(&self) -> usize {
            0
        }

        fn hosts(&self) -> &[String] {
            &self.hosts
        }

        fn send(&mut self, _: usize, bytes: Vec<u8>) {
            if Message::decode(&bytes).unwrap().kind == Kind::Conclude {
                self.comes.push_back(bytes);
            }
        }

        fn receive(&mut self, wait: Duration) -> Result<Received, String> {
            if let Some(bytes) = self.comes.pop_front() {
                return Ok(Received::Message { from: 1, bytes });
            }
            self.now += wait;
            let goodbye = self.goodbye.take_if(|goodbye| *goodbye <= self.now);
            let message = Message { kind: Kind::Bye, view: 0, sequence: 0, bucket: 0, body: b"" };
            let message = || Received::Message { from: 1, bytes: message.encode() };
            Ok(goodbye.map_or(Received::Nothing, |_| message()))
        }

        fn now(&self) -> Duration {
            self.now
        }

        fn end(&mut self, together: bool) {
            *self.together.lock().unwrap() = Some(together);
        }
    }

    /// Returns whether this rank ends together with one that is done later.
    fn ends_together(later: Duration, problem: Option<&Problem>) -> bool {
        let together = Arc::default();
        let link = Later {
            hosts: ["a".into(), "b".into()],
            now: Duration::ZERO,
            goodbye: Some(later),
            comes: VecDeque::new(),
            together: Arc::clone(&together),
        };
        let cluster = Cluster::new(Box::new(link));
        cluster.conclude(problem).unwrap();
        drop(cluster);
        together.lock().unwrap().unwrap()
    }

    #[test]
    fn a_rank_that_is_done_waits_for_one_that_is_not() {
        let seconds = Duration::from_secs;
        assert!(ends_together(seconds(600), None) && !ends_together(seconds(1000), None));
        let problem = Problem::from("no");
        let ends_so = |later| ends_together(seconds(later), Some(&problem));
        assert!(ends_so(4) && !ends_so(6));
    }
}
