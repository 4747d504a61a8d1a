//! What can go wrong, with the file and the reason in every message.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::LoadReport;
use crate::tensor::Dtype;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint could not be written or read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error("{path}: cannot {action}: {reason}")]
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// What was tried: "write", "rename", ...
        action: &'static str,
        /// What the system said; its kind tells a full disk from a forbidden one.
        reason: io::Error,
    },
    /// Another store, in this process or another, has the directory open.
    #[error("{path}: in use by another trainer, which holds its lock")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory holds a complete checkpoint of a later step: it belongs to another run, or to this one's future.
    #[error(
        "{path}: holds step {newest}, later than step {step}: resume from it, or choose another directory"
    )]
    Behind {
        /// The later checkpoint.
        path: PathBuf,
        /// The step to be saved.
        step: u64,
        /// The step of the later checkpoint.
        newest: u64,
    },
    /// A file is not what it should be.
    #[error("{path}: {reason}")]
    Broken {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong with it.
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
    /// A tensor's bytes do not fit its shape.
    #[error("shape {shape:?} of {dtype} does not take {bytes} bytes")]
    Shape {
        /// The element type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
        /// How many bytes were given.
        bytes: usize,
    },
    /// A file's tensors are not a model's.
    #[error("{path}: does not fit the model:\n{report}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Everything that does not fit.
        report: Box<LoadReport>,
    },
    /// A rule for names that makes none.
    #[error("renaming {from:?} to {to:?}: more stars than there are to fill them")]
    Rule {
        /// The pattern.
        from: String,
        /// What it should become.
        to: String,
    },
    /// The thread that writes checkpoints is gone: a bug of ours.
    #[error("the thread that writes checkpoints has stopped")]
    Stopped,
    /// Tensors that the safetensors format cannot hold.
    #[error("cannot be stored as safetensors: {reason}")]
    Unstorable {
        /// Which tensor, and why.
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
    /// Whether the same save may succeed later: the disk is full, the directory is gone, forbidden or in another's hands.
    /// What is left are mistakes of the caller, which no waiting mends.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Locked { .. })
    }
}

/// Something on disk that was passed over, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// What is wrong with it; names the file.
    pub reason: String,
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

/// Names the path and the attempt in an I/O error.
pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |reason| Error::Io { path: path.to_owned(), action, reason }
}

/// An error about the contents of a file.
pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Error {
    Error::Broken { path: path.to_owned(), reason: reason.into() }
}
