//! The errors of this crate. Every message names the file and the reason.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::tensors::info::TensorDType;
use crate::tensors::report::LoadReport;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a checkpoint could not be written or read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused an operation.
    #[error("{path}: cannot {action}: {reason}")]
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// The operation that was tried: "write", "rename", ...
        action: &'static str,
        /// The system's answer. Its kind tells a full disk from a forbidden one.
        reason: io::Error,
    },
    /// Another store, in this process or another, has the directory open.
    #[error("{path}: in use by another trainer, which holds its lock")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory holds a complete checkpoint of a later step, so it belongs to another run, or to this
    /// run's future.
    #[error(
        "{path}: holds step {newest}, later than step {step}: resume from it, or choose another directory"
    )]
    Behind {
        /// The directory of the later checkpoint.
        path: PathBuf,
        /// The step to be saved.
        step: u64,
        /// The step of the later checkpoint.
        newest: u64,
    },
    /// The step is later than any that a checkpoint may have, 2^53.
    #[error("step {step} is later than {latest}, the latest that a checkpoint may have")]
    Step {
        /// The step to be saved.
        step: u64,
        /// The latest step that can be saved.
        latest: u64,
    },
    /// A file does not hold what it should.
    #[error("{path}: {reason}")]
    Broken {
        /// The file concerned.
        path: PathBuf,
        /// The description of the error.
        reason: String,
    },
    /// There are checkpoints, and not one of them is complete.
    #[error("{path}: no complete checkpoint: {}", Listed(.skipped))]
    NoneComplete {
        /// The directory searched.
        path: PathBuf,
        /// Each checkpoint and what is wrong with it, newest first.
        skipped: Vec<Skipped>,
    },
    /// The record of trusted checkpoints is there and cannot be read. It may have said that the newest
    /// checkpoints are suspects, so none is used.
    #[error(
        "{reason}; it may have said that the newest checkpoints are suspects of a failed audit, so none is \
         used: without this file, the newest counts, and audits trust it anew"
    )]
    Record {
        /// The record.
        path: PathBuf,
        /// The description of the error, which names the file.
        reason: String,
    },
    /// A tensor's bytes do not fit its shape.
    #[error("shape {shape:?} of {dtype} does not take {bytes} bytes")]
    Shape {
        /// The element type.
        dtype: TensorDType,
        /// The shape.
        shape: Vec<usize>,
        /// The number of bytes given.
        bytes: usize,
    },
    /// The tensors of a file do not fit the model.
    #[error("{path}: does not fit the model:\n{report}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Everything that does not fit.
        report: Box<LoadReport>,
    },
    /// A partial plan found none of the model's tensors.
    #[error(
        "{path}: no tensor of the file has a name that the model has, so nothing would be loaded (Plan::rename, \
         Plan::strip_prefix):\n{report}"
    )]
    Nothing {
        /// The file.
        path: PathBuf,
        /// The names on both sides.
        report: Box<LoadReport>,
    },
    /// A plan loads only the tensors that match its patterns, and none of the model does.
    #[error(
        "{path}: nothing to load: the plan wants only {patterns:?}, but no tensor of the model has such a name"
    )]
    Only {
        /// The file.
        path: PathBuf,
        /// The patterns.
        patterns: Vec<String>,
    },
    /// A rule for names has more stars on the right than on the left.
    #[error("renaming {from:?} to {to:?}: the new name has more stars than the old one")]
    Rule {
        /// The pattern.
        from: String,
        /// The name or pattern that it should become.
        to: String,
    },
    /// The thread that writes checkpoints has ended, which is a bug of this crate.
    #[error("the thread that writes checkpoints has stopped")]
    Stopped,
    /// Tensors cannot be stored in the safetensors format, or the trainer's state not in a checkpoint.
    #[error("cannot be stored: {reason}")]
    Unstorable {
        /// The tensor or file concerned, and the reason.
        reason: String,
    },
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Whether the same save may succeed later: the disk is full, or the directory is gone, forbidden or
    /// locked by another store. All other errors are mistakes of the caller, which no waiting mends.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Locked { .. })
    }

    /// Whether this error of reading says that a file is missing or is not what it should be. Any other error
    /// says nothing of the file, such as that of a disk or of a network that fails in passing.
    pub(crate) fn is_of_contents(&self) -> bool {
        match self {
            Self::Io { reason, .. } => is_of_entry(reason),
            _ => true,
        }
    }
}

/// Whether an error says that a name is not there, or is not that of a regular file of the right size.
fn is_of_entry(reason: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    #[cfg(unix)]
    if rustix::io::Errno::from_io_error(reason) == Some(rustix::io::Errno::LOOP) {
        return true;
    }
    let kinds = [FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof];
    kinds.contains(&reason.kind())
}

/// A checkpoint on disk that was passed over, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The description of the error, which names the file.
    pub reason: String,
}

impl Skipped {
    /// Returns what was passed over if the result is an error, else `None`.
    pub(crate) fn of(path: &Path, result: Result<()>) -> Option<Self> {
        Some(Self { path: path.to_owned(), reason: result.err()?.to_string() })
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

struct Listed<'a>(&'a [Skipped]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, skipped) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "; " }, skipped.reason)?;
        }
        Ok(())
    }
}

/// Returns a function that adds the path and the operation to an I/O error.
pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |reason| Error::Io { path: path.to_owned(), action, reason }
}

/// Returns an error about the contents of a file.
pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Error {
    Error::Broken { path: path.to_owned(), reason: reason.into() }
}
