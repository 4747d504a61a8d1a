//! The rules of this repository that a compiler does not check. The task lists all violations, then fails.

mod dependencies;
mod metadata;
pub mod rooms;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cargo, root};

/// The directories in which the repository keeps code.
const PLACES: [&str; 4] = ["crates", "shaders", "examples", "tests"];

/// Checks the files of the repository, and their format. The error lists every violation.
pub fn run(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut files)?;
    }
    files.sort();
    let mut violations = unformatted(root)?;
    violations.extend(rooms::check(root)?);
    for path in files {
        let shown = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        if let Some(check) = check_of(&shown) {
            let text = fs::read_to_string(&path).map_err(|error| format!("{shown}: {error}"))?;
            violations
                .extend(check(&shown, &text).into_iter().map(|violation| format!("{shown}{violation}")));
        }
    }
    if violations.is_empty() {
        return Ok(());
    }
    Err(format!("{} violations of the house rules:\n  {}", violations.len(), violations.join("\n  ")))
}

/// A check of one file, given its path from the root and its text. It returns the text of each
/// violation after the path: `:LINE: what` or `: what`.
type Check = fn(&str, &str) -> Vec<String>;

/// Returns the check for a path, if there is one for files of its kind.
fn check_of(path: &str) -> Option<Check> {
    match path.rsplit('/').next()? {
        "Cargo.toml" => Some(check_manifest),
        name if name.ends_with(".rs") => Some(source::check_rust),
        name if name.ends_with(".wgsl") => Some(|_, text| source::check_wgsl(text)),
        _ => None,
    }
}

fn check_manifest(path: &str, text: &str) -> Vec<String> {
    let readme = root().join(path).with_file_name("README.md");
    [dependencies::check(text), metadata::check(text, readme.exists())].concat()
}

/// Adds all files below a directory to `files`, except for hidden ones and those in `target`.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.') || entry.file_name() == "target";
        if hidden {
            continue;
        }
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Returns a violation for each file that `cargo fmt` would change.
fn unformatted(root: &Path) -> Result<Vec<String>, String> {
    let output = cargo().current_dir(root).args(["fmt", "--all", "--check", "--", "-l"]).output();
    let output = output.map_err(|error| format!("cargo fmt: {error}"))?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let shown = |file| Path::new(file).strip_prefix(root).unwrap_or(Path::new(file)).display();
    let files: Vec<String> = listed.lines().map(|file| format!("{}: not formatted", shown(file))).collect();
    if files.is_empty() {
        return Err(format!("cargo fmt: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(files)
}
