//! Opening regular files, and nothing else: a pipe would be waited for, and a device may never end.

use std::fs::File;
use std::path::Path;

use crate::DataError;

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
