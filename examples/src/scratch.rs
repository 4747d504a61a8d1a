//! Directories for files that nobody needs after the run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::Error;

/// A directory in the system's directory for temporary files. It is removed with all that it has when this is
/// dropped, also where an error or a signal ends the program.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory that nobody else has. `what` is a part of its name.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(what: &str) -> Result<Self, Error> {
        let place = std::env::temp_dir();
        for number in 0..1_000 {
            let dir = place.join(format!("unisono-{what}-{}-{number}", std::process::id()));
            // Others may write to that place: a folder or a link that somebody else made is not used.
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self(dir)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{}: {error}", dir.display()).into()),
            }
        }
        Err(format!("{}: all names for a new directory are taken", place.display()).into())
    }

    /// Returns the path of a file in the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A program that cannot remove its files has still done what it was asked to do.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_removed_where_an_error_ends_the_program() {
        let mut places = Vec::new();
        let mut fails = || -> Result<(), Error> {
            let (one, other) = (Scratch::new("test")?, Scratch::new("test")?);
            for dir in [&one, &other] {
                fs::write(dir.join("file"), "text")?;
                places.push(dir.join("file"));
            }
            Err("a problem".into())
        };
        assert_eq!(fails().unwrap_err().to_string(), "a problem");
        assert!(places[0] != places[1]);
        assert!(places.iter().all(|file| !file.exists() && !file.parent().unwrap().exists()));
    }
}
