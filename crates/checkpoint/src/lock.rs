//! One owner a directory.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::{Error, Result, io};

/// Holds a directory for one store. The system lets go of it when the owner dies, however it dies, so the file itself
/// stays and means nothing.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn acquire(path: &Path) -> Result<Self> {
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io(path, "open"))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(reason)) => Err(io(path, "lock")(reason)),
        }
    }
}
