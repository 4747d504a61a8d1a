//! The record of an audit's verdicts, `trusted.json`: which checkpoints are trusted, and which are not to be
//! used although they still have their names.
//!
//! Each trusted checkpoint is recorded with the SHA-256 of its `manifest.json`, which in turn holds the hash
//! of every other file. So a checkpoint that was put in its place, or saved again under its step, is not
//! trusted, unless it is the same byte for byte. The record lists all trusted checkpoints that are there, not
//! only the newest: if the newest is saved again, the one before it counts once more.
//!
//! The record is replaced as a whole and ends in a checksum of its own. One that cannot be read trusts
//! nothing. Whether it named suspects is not known then, so that no checkpoint is read until it is removed
//! or a new record takes its place.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::store::names::TRUSTED;
use crate::store::seal::{check_version, is_sealed, sealed, zeros};
use crate::tensors::error::{Result, Skipped, broken, io};

const FORMAT: &str = "unisono-trusted";
const VERSION: u32 = 1;
/// The most bytes of a record.
const LONGEST: u64 = 1 << 18;
/// The most checkpoints in a record. Of more, the newest are recorded.
pub(crate) const MOST: usize = 1000;

/// The contents of the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The trusted checkpoints, newest first.
    pub(crate) trusted: Vec<Mark>,
    /// The step of which all later checkpoints are suspects that must still be renamed, while that is so.
    pub(crate) distrusted_after: Option<u64>,
}

/// A trusted checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    pub(crate) step: u64,
    /// The SHA-256 of its `manifest.json`.
    pub(crate) manifest: String,
}

/// The record as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    version: u32,
    trusted: Vec<Mark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distrusted_after: Option<u64>,
    /// The checksum. It comes last.
    sha256: String,
}

impl Record {
    /// Reads the record in a directory of checkpoints. One that is not there, or is no record, is returned as
    /// an empty one, and the latter with the reason. Links are not followed, and pipes not waited for.
    ///
    /// # Errors
    /// It cannot be read, for a reason that may pass.
    pub(crate) fn read(disk: &dyn Disk, checkpoints: &Path) -> Result<(Self, Option<Skipped>)> {
        let path = checkpoints.join(TRUSTED);
        match read(disk, &path) {
            Ok(record) => Ok((record.unwrap_or_default(), None)),
            Err(error) if error.is_of_contents() => {
                Ok((Self::default(), Some(Skipped { path, reason: error.to_string() })))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a checkpoint is trusted.
    pub(crate) fn trusts(&self, step: u64, manifest: &str) -> bool {
        self.trusted.iter().any(|mark| mark.step == step && mark.manifest == manifest)
    }

    /// Whether a checkpoint of a step is a suspect that must still be renamed.
    pub(crate) fn distrusts(&self, step: u64) -> bool {
        self.distrusted_after.is_some_and(|after| step > after)
    }

    /// Returns the text.
    pub(crate) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        sealed(&Stored {
            format: FORMAT.to_owned(),
            version: VERSION,
            trusted: self.trusted.clone(),
            distrusted_after: self.distrusted_after,
            sha256: zeros(),
        })
    }
}

/// Reads the record, or nothing where nothing has its name.
fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Record>> {
    if disk.is_link(path) {
        return Err(broken(path, "is a link"));
    }
    match disk.read_at_most(path, LONGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => parse(path, &text.map_err(io(path, "read"))?).map(Some),
    }
}

fn parse(path: &Path, text: &[u8]) -> Result<Record> {
    let invalid = |error: serde_json::Error| broken(path, format!("no valid record: {error}"));
    check_version(path, text, (FORMAT, VERSION), invalid)?;
    let Stored { mut trusted, distrusted_after, .. } = serde_json::from_slice(text).map_err(invalid)?;
    if !is_sealed(text) {
        return Err(broken(path, "no valid record: its SHA-256 of itself is wrong"));
    }
    trusted.truncate(MOST);
    Ok(Record { trusted, distrusted_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &[u8]) -> String {
        parse(Path::new("trusted.json"), text).unwrap_err().to_string()
    }

    #[test]
    fn a_record_comes_back_and_a_full_one_can_be_read() {
        for (count, distrusted_after) in [(0, None), (2, Some(7)), (MOST as u64, None)] {
            let mark = |at| Mark { step: (1 << 53) - at, manifest: "ab".repeat(32) };
            let record = Record { trusted: (0..count).map(mark).collect(), distrusted_after };
            let text = record.to_json().unwrap();
            assert!((text.len() as u64) < LONGEST);
            assert_eq!(parse(Path::new("trusted.json"), &text).unwrap(), record);
        }
    }

    #[test]
    fn what_is_none_is_named() {
        assert!(error(b"").starts_with("trusted.json: no valid record: EOF"));
        let newer = error(br#"{"format": "unisono-trusted", "version": 2, "pages": []}"#);
        assert!(newer.ends_with("version 2, where \"unisono-trusted\" version 1 is known"), "{newer}");
        let text = Record::default().to_json().unwrap();
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 1;
            error(&other);
        }
    }
}
