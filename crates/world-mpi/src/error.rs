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
    /// The thread that owns MPI ended.
    #[error("the thread that owns MPI ended")]
    Thread,
}
