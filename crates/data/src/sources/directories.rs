//! Directories of a data set with one directory a class: their names, and classes without files.

use std::path::{Path, PathBuf};

use crate::DataError;

/// Directories that systems and programs make for themselves. Callers also skip names that start with a dot.
const SYSTEM_DIRECTORIES: [&str; 9] = [
    "__MACOSX",
    "__pycache__",
    "@eaDir",
    "@Recycle",
    "#recycle",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
    "found.000",
];

/// Returns whether a directory of this name is one that systems and programs make for themselves.
pub(crate) fn is_of_the_system(name: &Path) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|own| name.as_os_str().eq_ignore_ascii_case(own))
}

/// Returns the names in a directory in the order of their bytes.
pub(crate) fn names(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |cause| DataError::Io { path: directory.into(), cause };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        names.push(PathBuf::from(entry.map_err(io)?.file_name()));
    }
    names.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(names)
}

/// Returns whether a name starts with a dot.
pub(crate) fn is_hidden(name: &Path) -> bool {
    name.as_os_str().as_encoded_bytes().starts_with(b".")
}

/// Returns which classes have no files, in words, given the class of each file.
pub(crate) fn empty_classes(names: &[String], files: impl Iterator<Item = i32>) -> Option<String> {
    let mut has_files = vec![false; names.len()];
    for class in files {
        if let Some(has) = usize::try_from(class).ok().and_then(|class| has_files.get_mut(class)) {
            *has = true;
        }
    }
    let empty = names.iter().zip(has_files).filter(|(_, has)| !has);
    let empty: Vec<&str> = empty.map(|(name, _)| &**name).collect();
    (!empty.is_empty()).then(|| format!("the classes {}", empty.join(", ")))
}
