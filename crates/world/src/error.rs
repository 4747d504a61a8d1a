//! Why machines could not do something together.

/// Why a collective operation of several ranks failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// Ranks were lost, and those that are left have agreed on who is left. The operation has happened on no
    /// rank: it is done again by those that are left.
    #[error("the ranks of the run have changed")]
    Changed,
    /// Some ranks did not answer by the deadline.
    #[error("no answer from {ranks} for {seconds} s")]
    Silent {
        /// The ranks, with their hosts.
        ranks: String,
        /// The seconds that were waited.
        seconds: u64,
    },
    /// Another rank ended its part of the run.
    #[error("{rank}: {why}")]
    Other {
        /// The rank, with its host.
        rank: String,
        /// Its reason.
        why: String,
    },
    /// Ranks do different things at the same time, as they do if a program calls other functions on one of
    /// them, or goes on there after an error.
    #[error("{rank} is at {found}, {other} at {wanted}: all ranks call the same functions")]
    Crossed {
        /// The first rank that does something else than the first one, with its host.
        rank: String,
        /// What it does.
        found: String,
        /// The first rank, with its host.
        other: String,
        /// What that one does.
        wanted: String,
    },
    /// The other ranks have gone on without this one.
    #[error("the other ranks went on without this one, which was silent for too long")]
    Excluded,
    /// A rank was started with something else than the others.
    #[error("{0}")]
    Differs(String),
    /// Messages cannot be sent or received any more.
    #[error("the connection between the ranks: {0}")]
    Link(String),
}
