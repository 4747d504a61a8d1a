//! Files in archives, and memory that is taken as their bytes come.

use std::io::{self, Read, Seek};

use zip::ZipArchive;

/// Reads an entry of an archive. One of more than `most` bytes is an error.
pub(crate) fn entry(
    archive: &mut ZipArchive<impl Read + Seek>,
    name: &str,
    most: u64,
) -> Result<Vec<u8>, String> {
    let wrong = |problem: String| format!("{name}: {problem}");
    let mut found = archive.by_name(name).map_err(|error| wrong(error.to_string()))?;
    let size = found.size();
    if size > most {
        return Err(wrong(format!("{size} bytes, more than {most}")));
    }
    let bytes = all(&mut found, size).map_err(|error| wrong(error.to_string()))?;
    let is_whole = bytes.len() as u64 == size;
    if is_whole { Ok(bytes) } else { Err(wrong(format!("{} bytes, not {size}", bytes.len()))) }
}

/// Reads up to `most` bytes. The size that a file or an archive says may be wrong: memory is taken as the
/// bytes come.
///
/// # Errors
/// They cannot be read, or there is no memory for them.
pub(crate) fn all(from: &mut impl Read, most: u64) -> io::Result<Vec<u8>> {
    let (mut bytes, mut from) = (Vec::new(), from.take(most));
    let mut part = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut part)?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.try_reserve(count)?;
        bytes.extend_from_slice(&part[..count]);
    }
}
