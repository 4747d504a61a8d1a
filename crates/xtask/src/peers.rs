//! What tests compare with: packages of Python in an environment of their own, and tools of Vulkan. And what
//! tests left out because it is not there.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{run, setup};

/// The packages that read what Unisono writes, and write what it reads.
const PACKAGES: [&str; 4] = ["onnxruntime", "tensorboard", "safetensors", "numpy"];
/// Imports all of them.
const IMPORT: &str = "import onnxruntime, tensorboard.backend, safetensors.numpy, numpy";
/// What a line has that says how to get what was missing.
const INSTALL: &str = "(install: ";

/// Installs what tests compare with. Returns the Python that has the packages.
///
/// # Errors
/// There is no Python with `venv`, the packages cannot be installed, or tools of Vulkan cannot.
pub fn install(target: &Path) -> Result<PathBuf, String> {
    setup::tools()?;
    let dir = target.join("python");
    let own = dir.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !has_packages(&own) {
        let outer = if cfg!(windows) { "python" } else { "python3" };
        let made = run(Command::new(outer).args(["-m", "venv"]).arg(&dir));
        made.map_err(|error| format!("{error}: tests need Python with venv (Debian: python3-venv)"))?;
        run(Command::new(&own).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
    }
    if has_packages(&own) { Ok(own) } else { Err(format!("{} cannot: {IMPORT}", own.display())) }
}

fn has_packages(python: &Path) -> bool {
    let status = Command::new(python).args(["-c", IMPORT]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns the variables that tests need: the file for what they leave out, and the Python that was
/// installed. Without it, the caller's `UNISONO_PYTHON` stays.
pub fn environment(left_out: &Path, python: Option<&Path>) -> Vec<(&'static str, OsString)> {
    let absolute = |path: &Path| env::current_dir().map_or_else(|_| path.to_owned(), |dir| dir.join(path));
    let file = ("UNISONO_LEFT_OUT", absolute(left_out).into_os_string());
    let python = python.map(|python| ("UNISONO_PYTHON", absolute(python).into_os_string()));
    std::iter::once(file).chain(python).collect()
}

/// Prints what tests left out. Returns the error if nothing may be missing that this machine can have.
pub fn report(listed: &str, complete: bool) -> Option<String> {
    let lines: BTreeSet<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        eprintln!("xtask: the tests left out nothing");
        return None;
    }
    eprintln!("xtask: the tests left out:");
    lines.iter().for_each(|line| eprintln!("    {}", line.trim_start_matches("left out: ")));
    let missing: Vec<&str> = lines.into_iter().filter(|line| line.contains(INSTALL)).collect();
    let problem =
        || format!("with --complete, tests leave out nothing that can be installed: {}", missing.join("; "));
    (complete && !missing.is_empty()).then(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_installed_may_not_be_left_out_of_a_complete_run() {
        let long = "left out: a run on two drivers: it is long\n";
        let package = "left out: TensorBoard's loader: python3 has no package (install: pip install x)\n";
        for (listed, complete, fails) in [
            (String::new(), true, false),
            (long.to_owned(), true, false),
            (format!("{long}{package}{package}"), false, false),
            (format!("{long}{package}{package}"), true, true),
        ] {
            let problem = report(&listed, complete);
            assert_eq!(problem.is_some(), fails, "{listed}");
            assert!(problem.is_none_or(|problem| problem.matches("TensorBoard").count() == 1));
        }
    }

    #[test]
    fn paths_for_tests_hold_from_any_directory() {
        let found =
            environment(Path::new("target/left_out.txt"), Some(Path::new("target/python/bin/python")));
        assert!(found.iter().all(|(_, path)| Path::new(path).is_absolute()));
        assert_eq!(found.len(), 2);
        assert_eq!(environment(Path::new("x"), None).len(), 1);
    }
}
