//! A file of records, each with its length and two checks.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};

use crate::observe::tensorboard::summary;
use crate::protobuf::Message;

/// What TensorBoard knows event files by.
const PREFIX: &str = "events.out.tfevents.";

/// CRC-32C (Castagnoli), the check of records.
const CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// A file of events that is being written.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Creates a file of events in a directory, which is created too. Readers take the files of a directory
    /// in the order of their names, so the name comes after those of the files that are there.
    ///
    /// # Errors
    /// The directory or the file cannot be created.
    pub fn create(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let mut second = (now() as u64).max(newest(dir)?.map_or(0, |newest| newest.saturating_add(1)));
        loop {
            let path = dir.join(format!("{PREFIX}{second:010}.unisono.{}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => second += 1,
                file => {
                    let mut writer = Self { path, file: file? };
                    let begun = writer.write(&summary::version(now()));
                    if begun.is_err() {
                        // A full disk keeps no empty files.
                        let _ = fs::remove_file(&writer.path);
                    }
                    return begun.map(|()| writer);
                }
            }
        }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still the one at its path. It is not if it was removed or moved, or if another
    /// file system was mounted over its directory.
    pub fn is_there(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let identity = |found: fs::Metadata| (found.dev(), found.ino());
            let held = self.file.metadata().map(identity);
            let found = fs::symlink_metadata(&self.path).map(identity);
            matches!((held, found), (Ok(held), Ok(found)) if held == found)
        }
        #[cfg(not(unix))]
        self.path.exists()
    }

    /// Writes an event, and hands it to the operating system: a process that is killed after the step's
    /// checkpoint has not lost the step's events.
    ///
    /// # Errors
    /// Of the file.
    pub fn write(&mut self, event: &Message) -> Result<()> {
        let event = event.as_bytes();
        let length = (event.len() as u64).to_le_bytes();
        let [before, after] = [masked(&length), masked(event)].map(u32::to_le_bytes);
        self.file.write_all(&[&length[..], &before, event, &after].concat())
    }
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Returns whether a directory has files of events.
pub(crate) fn has_events(dir: &Path) -> bool {
    newest(dir).is_ok_and(|newest| newest.is_some())
}

/// Returns the second in the name of the newest file of events in a directory, if there is one.
fn newest(dir: &Path) -> Result<Option<u64>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut newest = None;
    for entry in entries {
        let name = entry?.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let Some(rest) = rest else { continue };
        let second = rest.split('.').next().and_then(|second| second.parse().ok()).unwrap_or(0);
        newest = newest.max(Some(second));
    }
    Ok(newest)
}

/// Returns the check of some bytes as records have it: rotated, with a constant added.
fn masked(bytes: &[u8]) -> u32 {
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_directory_are_in_the_order_in_which_they_were_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_events(&dir.path().join("none")));
        fs::write(dir.path().join(format!("{PREFIX}9000000000.other")), "").unwrap();
        assert!(has_events(dir.path()));
        let made: Vec<String> = (0..3)
            .map(|_| {
                let before = names(dir.path());
                Writer::create(dir.path()).unwrap();
                names(dir.path()).into_iter().find(|name| !before.contains(name)).unwrap()
            })
            .collect();
        assert!(made[0].starts_with("events.out.tfevents.9000000001.") && made.is_sorted(), "{made:?}");
    }

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}
