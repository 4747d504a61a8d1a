//! Names of directories that do not belong to a data set.

use std::path::Path;

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
