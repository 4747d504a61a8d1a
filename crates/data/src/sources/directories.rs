//! Directories that are no part of a data set.

use std::path::Path;

/// Directories that systems and programs make for themselves. Those whose names start with a dot are passed
/// over as well.
const OF_THE_SYSTEM: [&str; 9] = [
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
    OF_THE_SYSTEM.iter().any(|own| name.as_os_str().eq_ignore_ascii_case(own))
}
