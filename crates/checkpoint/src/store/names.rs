//! The names of files and directories.
//!
//! | in `DIR/checkpoints` | is |
//! |---|---|
//! | `step-00000042` | complete |
//! | `.tmp-step-00000042-0123456789abcdef` | being written; a leftover unless the lock is held |
//! | `.tmp-gone-step-00000042-0123456789abcdef` | being deleted; a leftover unless the lock is held |
//! | `.tmp-gone-suspect-step-00000042-0123456789abcdef` | a suspect that is being deleted; the same |
//! | `.old-step-00000042` | complete, making room for another of its step; counts while there is no other |
//! | `broken-step-00000042` | found broken when its step came round again; kept for a person to look at |
//! | `suspect-step-00000042` | distrusted after a failed audit; kept for a person to look at |
//! | `trusted.json` | the record of the checkpoints that are trusted, and of a distrust that is not finished |

use std::path::{Path, PathBuf};

use crate::disk::temporary::{TEMPORARY, what_of};

/// The directory of checkpoints, in DIR.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The lock file, in DIR.
pub(crate) const LOCK: &str = ".lock";
/// The model, in a checkpoint, and in DIR as the final model.
pub(crate) const MODEL: &str = "model.safetensors";
/// The optimizer's state, in a checkpoint.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// The state carried from batch to batch, in a checkpoint of a run that carries any.
pub(crate) const CARRIES: &str = "carries.safetensors";
/// The trainer's own state, in a checkpoint.
pub(crate) const TRAINER: &str = "trainer.json";
/// The manifest, in a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The record of the checkpoints that are trusted, in the directory of checkpoints.
pub(crate) const TRUSTED: &str = "trusted.json";

/// The prefix of a checkpoint that makes room for another of its step.
pub(crate) const OLD: &str = ".old-";
/// What the temporary name of a checkpoint that is being removed says.
pub(crate) const GONE: &str = "gone-";
/// What the temporary name of a copy from another machine said in an earlier version.
const COMING: &str = "coming-";
/// The prefix of a broken checkpoint that was in the way. Of several of one name, the second has `broken-2-`.
pub(crate) const BROKEN: &str = "broken-";
/// The prefix of a checkpoint that may hold wrong numbers. Of several of one name, the second has
/// `suspect-2-`.
pub(crate) const SUSPECT: &str = "suspect-";

/// The latest step that a checkpoint may have, 2^53: every reader of JSON holds it exactly, and no counter of
/// steps wraps soon after.
pub(crate) const LATEST: u64 = 1 << 53;

/// Returns the name of a step's checkpoint, such as `step-00000042`. Names sort as steps do up to 99,999,999,
/// and stay readable beyond.
pub(crate) fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Returns the step of a name written by [`step_name`], and `None` for any other name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// Whether a name is that of a checkpoint that is being written or removed. Those of earlier versions had no
/// digits at their end.
pub(crate) fn is_unfinished(name: &str) -> bool {
    let is_checkpoint = |what: &str| match what.strip_prefix(GONE) {
        Some(gone) => step_of(gone).or_else(|| suspect_of(gone)).is_some(),
        None => step_of(what).is_some(),
    };
    let what = what_of(name).or_else(|| name.strip_prefix(TEMPORARY));
    what.is_some_and(|what| is_checkpoint(what.strip_prefix(COMING).unwrap_or(what)))
}

/// Returns the step of a suspect's name, such as `suspect-step-00000042` or `suspect-2-step-00000042`, and
/// `None` for any other name.
pub(crate) fn suspect_of(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(SUSPECT)?;
    step_of(rest).or_else(|| {
        let (number, plain) = rest.split_once('-')?;
        number.parse::<u64>().ok().and_then(|_| step_of(plain))
    })
}

/// Returns the path with a prefix to its name, in place of the prefix that it has.
pub(crate) fn sibling(path: &Path, prefix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{prefix}{}", name.strip_prefix(OLD).unwrap_or(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_step_and_a_step_one_name() {
        for step in [0, 42, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(step_of(&step_name(step)), Some(step));
        }
        for name in
            ["step-42", "step-+0000042", "step-0000000042", "step-", "step-00000042x", ".old-step-00000042"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_suspect_is_known_by_its_name() {
        for name in ["suspect-step-00000042", "suspect-2-step-00000042"] {
            assert_eq!((suspect_of(name), step_of(name)), (Some(42), None), "{name}");
        }
        for name in ["step-00000042", "suspect-", "suspect-step-42", "suspect-x-step-00000042", "suspect-2-"]
        {
            assert_eq!(suspect_of(name), None, "{name}");
        }
    }

    #[test]
    fn all_that_is_written_or_removed_is_known_by_its_temporary_name() {
        for what in ["step-00000042", "gone-step-00000042", "gone-suspect-step-00000042"] {
            assert!(is_unfinished(&format!(".tmp-{what}")), "{what}");
            assert!(is_unfinished(&format!(".tmp-{what}-0123456789abcdef")), "{what}");
        }
        assert!(is_unfinished(".tmp-coming-step-00000042"));
        assert!(is_unfinished(".tmp-gone-suspect-2-step-00000042-0123456789abcdef"));
        for name in [".tmp-suspect-step-00000042", ".tmp-gone-mine", "step-00000042", ".old-step-00000042"] {
            assert!(!is_unfinished(name), "{name}");
        }
    }
}
