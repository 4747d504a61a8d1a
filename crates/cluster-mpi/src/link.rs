//! Launched or not, connected or not.

use std::time::Duration;

use unisono_cluster::Cluster;

use crate::error::MpiError;

/// Variables that a launcher of MPI programs sets: Open MPI's, MPICH's and Slurm's (`srun --mpi=pmix`).
const LAUNCHED: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"];

/// Returns whether a launcher of MPI programs has started this process.
pub fn is_launched() -> bool {
    LAUNCHED.iter().any(|name| std::env::var_os(name).is_some())
}

/// Returns whether this process may use one core alone of a machine that has more, as `mpirun` arranges it by
/// default.
pub fn is_bound() -> bool {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let several = online.contains(['-', ',']);
    several && std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1)
}

/// How long MPI may take to start on all ranks, unless told.
const START: Duration = Duration::from_secs(900);
/// How long the ranks may then take to hear from each other.
#[cfg(unix)]
const CONNECT: Duration = Duration::from_secs(60);

/// Connects this process with the others that the launcher has started, within 15 minutes. A process that
/// nobody has launched is alone. A process may do this once.
///
/// # Errors
/// As [`connect_within`].
pub fn connect() -> Result<Cluster, MpiError> {
    connect_within(START)
}

/// Connects this process with the others that the launcher has started, as [`connect`] does. `deadline` is
/// the time that MPI may take to start: it waits until all ranks have begun. After that the ranks have a
/// minute, or the deadline if it is shorter, to hear from each other.
///
/// # Errors
/// There is no MPI library, or it cannot be initialised. [`MpiError::Start`]: it has not started by the
/// deadline. [`MpiError::Apart`]: ranks do not reach each other. The process cannot connect after that, and
/// should end.
#[cfg(unix)]
pub fn connect_within(deadline: Duration) -> Result<Cluster, MpiError> {
    unix::connect(deadline)
}

/// Returns an error: MPI libraries of this system are not known.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn connect_within(_: Duration) -> Result<Cluster, MpiError> {
    Err(MpiError::Library("this is no Unix system".into()))
}

#[cfg(unix)]
mod unix {
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
    use unisono_cluster::{Cluster, Link, Received};

    use super::CONNECT;
    use crate::error::MpiError;
    use crate::owner::{Command, Met, serve};

    /// How long a process waits at its end for MPI to be finalised. Open MPI 5 waits in there for ranks that
    /// were killed, sometimes for good.
    const FINALIZE: Duration = Duration::from_secs(8);

    /// How much longer than the deadlines the thread may take to say what is wrong.
    const SLACK: Duration = Duration::from_secs(10);
    /// Variables with the number of this rank.
    const RANKS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

    pub fn connect(deadline: Duration) -> Result<Cluster, MpiError> {
        let patience = deadline.min(CONNECT);
        let (opened, has_opened) = bounded(1);
        let (lives, has_ended) = bounded::<()>(0);
        let (commands, to_do) = unbounded();
        let (received, has_come) = unbounded();
        let thread = std::thread::Builder::new().name("mpi".into());
        let own = move || {
            serve(&opened, &to_do, &received, patience);
            drop(lives);
        };
        let thread = thread.spawn(own).map_err(|_| MpiError::Thread)?;
        let since = Instant::now();
        let limit = deadline.saturating_add(patience + SLACK);
        let Met { rank, hosts, latency } = match has_opened.recv_timeout(limit) {
            Ok(opened) => opened?,
            Err(RecvTimeoutError::Disconnected) => return Err(MpiError::Thread),
            // The thread is in a call of the library, which cannot be ended.
            Err(RecvTimeoutError::Timeout) => {
                return Err(MpiError::Start { rank: own_name(), seconds: since.elapsed().as_secs() });
            }
        };
        let (thread, since) = (Some(thread), Instant::now());
        let received = has_come;
        Ok(Cluster::new(Box::new(MpiLink {
            rank,
            hosts,
            latency,
            commands,
            received,
            has_ended,
            thread,
            since,
        })))
    }

    /// Returns the name of this rank before MPI has started.
    fn own_name() -> String {
        let rank = RANKS.iter().find_map(|name| std::env::var(name).ok());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let rank = rank.map_or("a rank".into(), |rank| format!("rank {rank}"));
        match host.trim() {
            "" => rank,
            host => format!("{rank} ({host})"),
        }
    }

    struct MpiLink {
        rank: usize,
        hosts: Vec<String>,
        latency: Duration,
        commands: Sender<Command>,
        received: Receiver<Result<Received, String>>,
        /// Is closed when the thread ends.
        has_ended: Receiver<()>,
        thread: Option<JoinHandle<()>>,
        since: Instant,
    }

    impl Link for MpiLink {
        fn rank(&self) -> usize {
            self.rank
        }

        fn hosts(&self) -> &[String] {
            &self.hosts
        }

        fn send(&mut self, to: usize, bytes: Vec<u8>) {
            // If the thread has ended, receiving says why.
            let _ = self.commands.send(Command::Send(to, bytes));
        }

        fn receive(&mut self, wait: Duration) -> Result<Received, String> {
            match self.received.recv_timeout(wait) {
                Ok(received) => received,
                Err(RecvTimeoutError::Timeout) => Ok(Received::Nothing),
                Err(RecvTimeoutError::Disconnected) => Err(MpiError::Thread.to_string()),
            }
        }

        fn now(&self) -> Duration {
            self.since.elapsed()
        }

        fn latency(&self) -> Duration {
            self.latency
        }

        fn end(&mut self, together: bool) {
            let _ = self.commands.send(Command::End(together));
            if let Some(thread) = self.thread.take().filter(|_| together) {
                let waited = self.has_ended.recv_timeout(FINALIZE);
                if waited == Err(RecvTimeoutError::Disconnected) {
                    let _ = thread.join();
                }
            }
        }
    }
}
