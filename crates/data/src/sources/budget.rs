//! What a file may cost: only regular files are read, and what is decoded in memory keeps to a budget.

use std::fs::File;
use std::path::Path;

use crate::DataError;

/// The most bytes that decoding one file takes by default, 2 GiB: the values of a CSV file, the array
/// unpacked from a compressed file, or all buffers of one picture. The sources that decode have a setting for
/// it.
pub const DECODED_BYTES: u64 = 2 << 30;

/// Opens a file for reading.
///
/// # Errors
/// The file cannot be opened, or is not a regular file: a device may have no end, and a pipe that nobody
/// writes to would never open.
pub(crate) fn open_regular(path: &Path) -> Result<File, DataError> {
    let io = |cause| DataError::Io { path: path.into(), cause };
    let refused = || Err(DataError::format(path, "not a regular file"));
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return refused();
    }
    let file = File::open(path).map_err(io)?;
    // Another file may have been put there meanwhile.
    if file.metadata().map_err(io)?.is_file() { Ok(file) } else { refused() }
}

/// A budget of bytes, and the setting by which a user raises it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub most: u64,
    pub setting: &'static str,
}

impl Budget {
    /// Checks that `what` may take this many bytes. `None` stands for more than can be counted.
    pub fn check(self, path: &Path, what: &str, needs: Option<u64>) -> Result<(), DataError> {
        if needs.is_some_and(|needs| needs <= self.most) {
            return Ok(());
        }
        let Self { most, setting } = self;
        Err(DataError::Budget { path: path.into(), what: what.into(), needs, most, setting })
    }
}

/// Makes room for `more` elements in a vector, whose capacity doubles up to `most` elements.
pub(crate) fn reserve<T>(
    path: &Path,
    values: &mut Vec<T>,
    more: usize,
    most: usize,
) -> Result<(), DataError> {
    if values.capacity() - values.len() >= more {
        return Ok(());
    }
    let doubled = values.len().min(most.saturating_sub(values.len()));
    values.try_reserve_exact(doubled.max(more)).map_err(|_| no_memory(path, more as u64))
}

/// Returns the error of an allocation that failed.
pub(crate) fn no_memory(path: &Path, count: u64) -> DataError {
    DataError::format(path, format!("no memory for {count} more values"))
}
