//! What a file may cost: what is decoded in memory keeps to a budget.

use std::path::Path;

use crate::DataError;

/// The most bytes that decoding one file takes by default, 2 GiB: the values of a CSV file, the array
/// unpacked from a compressed file, or all buffers of one picture. The sources that decode have a setting for
/// it.
pub const DECODED_BYTES: u64 = 2 << 30;

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

/// Returns the bytes that elements take while they are read: as they are in the file, and as values.
pub(crate) fn row_bytes(elements: u64, bytes: u64) -> Option<u64> {
    elements.checked_mul(bytes.checked_add(4)?)
}

/// Collects values, whose number is known. That memory does not suffice is an error.
pub(crate) fn collect<T>(path: &Path, values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, DataError> {
    let mut all = Vec::new();
    all.try_reserve_exact(values.len()).map_err(|_| no_memory(path, values.len() as u64))?;
    all.extend(values);
    Ok(all)
}

/// Returns the error of an allocation that failed.
pub(crate) fn no_memory(path: &Path, count: u64) -> DataError {
    DataError::format(path, format!("no memory for {count} more values"))
}
