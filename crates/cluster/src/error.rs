//! Why machines could not do something together.

/// Why a collective operation of several ranks failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
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
        /// Whether that rank refuses to run as it was started, so that starting the run again does not help.
        is_refusal: bool,
    },
    /// Ranks do different things at the same time, as they do if a program calls other functions on one of
    /// them, or goes on there after an error.
    #[error(
        "{rank} is at {found}, {other} at {wanted}: all ranks must call the same functions in the same order"
    )]
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
    #[error("the other ranks continued without this one, because it was silent for too long")]
    Excluded,
    /// This rank has lost at least half of the ranks that were there, and may itself be the part that was cut
    /// off: the others may go on without it. Of two parts of a run only the larger one goes on, or where they
    /// are equal the one with the first rank.
    #[error(
        "{lost} cannot be reached, and may continue without this rank: only the larger part of a run continues, or \
         of two halves the one with the first rank"
    )]
    Minority {
        /// The ranks that are lost, with their hosts.
        lost: String,
    },
    /// A rank was started with something else than the others.
    #[error("{0}")]
    Differs(String),
    /// Messages cannot be sent or received any more.
    #[error("the connection between the ranks: {0}")]
    Link(String),
}

impl ClusterError {
    /// Returns whether nothing can be done together after this error.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Link(_) | Self::Excluded | Self::Minority { .. })
    }
}

/// The reason for which a rank ends its part of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// The reason, in words.
    pub why: String,
    /// Whether the rank refuses to run as it was started, so that starting the run again does not help.
    pub is_refusal: bool,
}

impl From<&str> for Problem {
    fn from(why: &str) -> Self {
        Self { why: why.to_owned(), is_refusal: false }
    }
}

impl Problem {
    /// Returns the bytes of a problem, or of none, in messages.
    pub(crate) fn encode(problem: Option<&Self>) -> Vec<u8> {
        let kind = problem.map_or(0, |problem| 1 + u8::from(problem.is_refusal));
        let why = problem.map_or("", |problem| problem.why.as_str());
        [&[kind], why.as_bytes()].concat()
    }

    /// Reads what [`Problem::encode`] has written.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind @ 1.., why) = bytes.split_first()? else { return None };
        Some(Self { why: String::from_utf8_lossy(why).into_owned(), is_refusal: *kind == 2 })
    }

    /// Returns the error of the ranks to which another one gives this reason.
    pub fn of(self, rank: String) -> ClusterError {
        ClusterError::Other { rank, why: self.why, is_refusal: self.is_refusal }
    }
}
