//! Why there is no link over MPI.

/// Why a process could not take part in a run over MPI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// There is no MPI library, or one of another kind.
    #[error("no MPI library can be used: {0}; install one (openmpi-bin), or name its file in UNISONO_MPI")]
    Library(String),
    /// A call failed.
    #[error("{call}: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's own words.
        why: String,
    },
    /// Some ranks have no connection to each other, although MPI has started on all of them.
    #[error(
        "{rank}: {problem} within {seconds} s after MPI had started; let MPI use only the network that the \
        machines share, as with --mca btl_tcp_if_include 192.168.1.0/24, and let a firewall pass what they send \
        each other (docs/MACHINES.md)"
    )]
    Apart {
        /// This rank, with its host.
        rank: String,
        /// Who has heard nothing from whom.
        problem: String,
        /// The seconds that were waited.
        seconds: u64,
    },
    /// MPI has not started.
    #[error(
        "{rank}: MPI has not started within {seconds} s: it waits for all ranks to begin and for mpirun's \
        own connections; let these use only the network that the machines share, as with --mca oob_tcp_if_include \
        192.168.1.0/24 (docs/MACHINES.md)"
    )]
    Start {
        /// This rank, with its host, as far as they are known.
        rank: String,
        /// The seconds that were waited.
        seconds: u64,
    },
    /// The thread that owns MPI ended.
    #[error("the thread that owns MPI ended")]
    Thread,
}
