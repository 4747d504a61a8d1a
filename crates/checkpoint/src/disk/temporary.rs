//! The names of temporary files and directories, such as `.tmp-probe-0123456789abcdef`: `.tmp-`, what it is,
//! and 16 hex digits that nobody can guess, so that nobody can plant a link under the name.

use std::path::Path;

use crate::disk::Disk;
use crate::tensors::error::{Result, io};

/// The prefix of all temporary names.
pub(crate) const TEMPORARY: &str = ".tmp-";
/// The temporary file that shows whether a directory can be written.
pub(crate) const PROBE: &str = "probe";
/// The temporary file that replaces another in a run's directory when it is complete. The directory is
/// locked.
pub(crate) const FILE: &str = "file";
/// The temporary file of an export, which needs no lock. It is never swept, since its process may be at work.
pub(crate) const EXPORT: &str = "export";
/// The names that temporary files had in a run's directory in earlier versions.
const EARLIER: [&str; 3] = [".tmp-probe", ".model.safetensors.tmp", ".model.json.tmp"];

/// Returns a new temporary name.
pub(crate) fn temporary_name(disk: &dyn Disk, what: &str) -> String {
    format!("{TEMPORARY}{what}-{:016x}", disk.token())
}

/// Removes the temporary files that killed processes left in a run's directory, as far as possible. What they
/// link to stays. The caller holds the directory's lock.
pub(crate) fn sweep(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let names = disk.list(dir).map_err(io(dir, "list"))?;
    for path in names.iter().filter(|name| is_leftover(name)).map(|name| dir.join(name)) {
        if !disk.is_dir(&path) {
            // A leftover that stays harms nobody: its name does not come again.
            let _ = disk.remove(&path);
        }
    }
    Ok(())
}

/// Whether a name is that of a temporary file in a run's directory, of this version or an earlier one.
fn is_leftover(name: &str) -> bool {
    EARLIER.contains(&name) || what_of(name).is_some_and(|what| [PROBE, FILE].contains(&what))
}

/// Returns what a temporary name of this version says that it is of.
pub(crate) fn what_of(name: &str) -> Option<&str> {
    let (what, digits) = name.strip_prefix(TEMPORARY)?.rsplit_once('-')?;
    let is_digit = |b| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == 16 && digits.bytes().all(is_digit)).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::StdDisk;

    #[test]
    fn a_temporary_name_is_known_again_and_comes_once() {
        let names = [PROBE, FILE].map(|what| [(); 2].map(|()| temporary_name(&StdDisk, what)));
        assert!(names.iter().all(|[a, b]| a != b && is_leftover(a) && is_leftover(b)), "{names:?}");
        for name in
            [".tmp-", ".tmp-mine", ".tmp-file-0123", ".tmp-file-0123456789ABCDEF", ".lock", "model.json"]
        {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
