//! Launched or not, connected or not.

use unisono_world::World;

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

/// Connects this process with the others that the launcher has started. A process that nobody has launched is
/// alone. A process may do this once.
///
/// # Errors
/// There is no MPI library, or it cannot be initialised.
#[cfg(unix)]
pub fn connect() -> Result<World, MpiError> {
    unix::connect()
}

/// Returns an error: MPI libraries of this system are not known.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn connect() -> Result<World, MpiError> {
    Err(MpiError::Library("this is no Unix system".into()))
}

#[cfg(unix)]
mod unix {
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
    use unisono_world::{Link, Received, World};

    use crate::error::MpiError;
    use crate::owner::{Command, serve};

    /// How long a process waits at its end for MPI to be finalised. Open MPI 5 waits in there for ranks that
    /// were killed, sometimes for good.
    const FINALIZE: Duration = Duration::from_secs(8);

    pub fn connect() -> Result<World, MpiError> {
        let (opened, has_opened) = bounded(1);
        let (lives, has_ended) = bounded::<()>(0);
        let (commands, to_do) = unbounded();
        let (received, has_come) = unbounded();
        let thread = std::thread::Builder::new().name("mpi".into());
        let own = move || {
            serve(&opened, &to_do, &received);
            drop(lives);
        };
        let thread = thread.spawn(own).map_err(|_| MpiError::Thread)?;
        let (rank, hosts) = has_opened.recv().map_err(|_| MpiError::Thread)??;
        let (thread, since) = (Some(thread), Instant::now());
        let received = has_come;
        Ok(World::new(Box::new(MpiLink { rank, hosts, commands, received, has_ended, thread, since })))
    }

    struct MpiLink {
        rank: usize,
        hosts: Vec<String>,
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
