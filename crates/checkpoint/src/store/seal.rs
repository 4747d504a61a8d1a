//! The checksum that a JSON text of a store has of itself: its last field, `"sha256"`, is the SHA-256 of the
//! whole text in which the 64 digits of this value are zeros.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tensors::digest::hex;
use crate::tensors::error::{Error, Result, broken};

/// What stands before and after the digits of the checksum. Nothing follows.
const SEAL: (&[u8], &[u8]) = (b"\"sha256\": \"", b"\"\n}\n");
/// The number of digits of the checksum.
const DIGITS: usize = 64;

/// The format and version of a text.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}

/// Checks the format and version of a text. This comes first, so that another version is reported as such,
/// not as a missing field.
pub(crate) fn check_version(
    path: &Path,
    text: &[u8],
    known: (&str, u32),
    invalid: impl FnOnce(serde_json::Error) -> Error,
) -> Result<()> {
    let Version { format, version } = serde_json::from_slice(text).map_err(invalid)?;
    if (&*format, version) == known {
        return Ok(());
    }
    let known = format!("{:?} version {} is known", known.0, known.1);
    Err(broken(path, format!("format {format:?} version {version}, where {known}")))
}

/// Returns the value of the field before the checksum is known.
pub(crate) fn zeros() -> String {
    "0".repeat(DIGITS)
}

/// Writes a value as JSON and puts the checksum in place of its last field's [`zeros`].
pub(crate) fn sealed(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    let checksum = hex(&Sha256::digest(&text));
    if let Some(digits) = digits(&text) {
        text[digits].copy_from_slice(checksum.as_bytes());
    }
    Ok(text)
}

/// Whether a text ends in the right checksum.
pub(crate) fn is_sealed(text: &[u8]) -> bool {
    let Some(digits) = digits(text) else { return false };
    let mut zeroed = text.to_vec();
    zeroed[digits.clone()].fill(b'0');
    hex(&Sha256::digest(&zeroed)).as_bytes() == &text[digits]
}

/// Returns where the digits of the checksum are, if the text ends in one.
fn digits(text: &[u8]) -> Option<Range<usize>> {
    let end = text.strip_suffix(SEAL.1)?.len();
    let start = end.checked_sub(DIGITS)?;
    text[..start].ends_with(SEAL.0).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Short {
        a: u32,
        sha256: String,
    }

    #[test]
    fn a_checksum_is_that_of_the_text_with_zeros_in_its_place() {
        let text = sealed(&Short { a: 1, sha256: zeros() }).unwrap();
        let (at, zeros) = (text.len() - 4 - DIGITS, zeros());
        let zeroed = [&text[..at], zeros.as_bytes(), &text[text.len() - 4..]].concat();
        assert!(zeroed.ends_with(format!("\"sha256\": \"{zeros}\"\n}}\n").as_bytes()));
        assert_eq!(hex(&Sha256::digest(&zeroed)).as_bytes(), &text[at..][..DIGITS]);
        assert!(is_sealed(&text));
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 1;
            assert!(!is_sealed(&other), "byte {at}");
        }
    }
}
