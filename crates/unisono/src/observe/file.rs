//! Files of loggers: they are replaced as a whole, and their directories are created.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use unisono_checkpoint::write_whole;

/// Replaces a file as a whole: the bytes of the parts are written beside it and renamed into its place, so
/// that neither a link nor a pipe there is followed. Creates the file's directory.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> Result<()> {
    create_parent(path)?;
    write_whole(path, parts).map_err(Error::other)
}

/// Creates the directory that a file is in.
pub(crate) fn create_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::create_dir_all(parent),
        _ => Ok(()),
    }
}
