//! Files of loggers: they are replaced as a whole, and their directories are created.

use std::fs;
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// Replaces a file as a whole: the bytes are written beside it and renamed into its place. Creates the
/// file's directory.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    create_parent(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let write = |beside: &PathBuf| fs::File::create(beside)?.write_all(bytes);
    let written = write(&beside).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What could not be written is of no use.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Creates the directory that a file is in.
pub(crate) fn create_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::create_dir_all(parent),
        _ => Ok(()),
    }
}
