//! The errors of this crate. Every message names the file or directory and the reason.

use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why a model could not be opened or saved.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused an operation.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        reason: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Broken {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A setting is out of range.
    #[error("{name}: {problem}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A prompt cannot be read.
    #[error("prompt {index}: {problem}")]
    Prompt {
        /// Its place among the prompts, from 0.
        index: usize,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file of weights cannot be read or written.
    #[error(transparent)]
    Weights(#[from] unisono::checkpoint::Error),
    /// The trainer or the predictor failed.
    #[error(transparent)]
    Unisono(#[from] unisono::Error),
}

/// Prints the message, so that a `main` that returns the error shows it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn setting(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting { name, problem: problem.into() }
    }

    pub(crate) fn prompt(index: usize, problem: impl Into<String>) -> Self {
        Self::Prompt { index, problem: problem.into() }
    }

    pub(crate) fn broken(path: &Path, problem: impl Into<String>) -> Self {
        Self::Broken { path: path.to_owned(), problem: problem.into() }
    }
}

impl Error {
    /// Returns the error of a predictor whose samples are prompts, with the prompt's place in its batch.
    pub(crate) fn of_batch(error: unisono::Error) -> Self {
        match error {
            unisono::Error::Sample { position, problem, .. } => {
                Self::Prompt { index: usize::try_from(position).unwrap_or(usize::MAX), problem }
            }
            other => Self::Unisono(other),
        }
    }

    /// Returns the error with the place that a prompt has among all, given its place in its batch.
    pub(crate) fn of_prompt(self, place: impl FnOnce(usize) -> usize) -> Self {
        match self {
            Self::Prompt { index, problem } => Self::Prompt { index: place(index), problem },
            other => other,
        }
    }
}
