//! Files and directories, with errors that name them.

use std::fs;
use std::io::Error;
use std::path::Path;

/// Returns what makes an error of the file system the message of a path.
pub fn failed(path: &Path) -> impl Fn(Error) -> String {
    let shown = path.display().to_string();
    move |error| format!("{shown}: {error}")
}

/// Makes a directory, and those above it.
pub fn make(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(failed(dir))
}

/// Writes a text.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(failed(path))
}

/// Copies a file into a directory that is made if it is not there.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let shown = format!("{} to {}", from.display(), to.display());
    to.parent().map_or(Ok(()), make)?;
    fs::copy(from, to).map(drop).map_err(|error| format!("{shown}: {error}"))
}
