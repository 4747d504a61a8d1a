//! Gzipped files: recognised by their first two bytes, and unpacked where the feature `gzip` is on.

use std::io::{BufRead, Read};
use std::path::Path;

use crate::DataError;

/// Returns whether bytes from a file's start are those of a gzip file.
pub(super) fn is_gzipped(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
}

/// Returns a reader of the unpacked bytes of a gzip file, of all its members one after another.
#[cfg(feature = "gzip")]
pub(super) fn unpacked<R: BufRead>(_: &Path, packed: R) -> Result<impl Read + use<R>, DataError> {
    Ok(flate2::bufread::MultiGzDecoder::new(packed))
}

/// Refuses a gzipped file, because the feature is off.
#[cfg(not(feature = "gzip"))]
pub(super) fn unpacked<R: BufRead>(path: &Path, _: R) -> Result<impl Read + use<R>, DataError> {
    let refused =
        DataError::format(path, "it is gzipped, which this build cannot read: it lacks the feature `gzip`");
    Err::<std::io::Empty, _>(refused)
}

#[cfg(all(test, not(feature = "gzip")))]
mod tests {
    use crate::Array;

    #[test]
    fn a_gzipped_file_is_an_error_that_names_the_feature() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0x1f, 0x8b, 8, 0]).unwrap();
        let error = Array::idx(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("it lacks the feature `gzip`"), "{error}");
    }
}
