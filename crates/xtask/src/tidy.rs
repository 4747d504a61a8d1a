//! The rules of this repository that a compiler does not check. The task lists all violations, then fails.

mod coverage;
mod dependencies;
mod links;
mod metadata;
pub mod modules;
mod paths;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cargo, root};

/// The directories in which the repository keeps code and documents.
const PLACES: [&str; 5] = ["crates", "docs", "examples", "shaders", "tests"];
/// Files and directories outside of these that documents may name.
const BESIDE: [&str; 8] =
    [".cargo", ".ci", ".github", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "deny.toml"];

/// Checks the files of the repository, and their format. The error lists every violation.
pub fn run(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut files)?;
    }
    for place in BESIDE.map(|place| root.join(place)) {
        if place.is_dir() { collect(&place, &mut files)? } else { files.push(place) }
    }
    files.sort();
    let shown = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
    let names: Vec<String> = files.iter().map(shown).collect();
    let mut violations = unformatted(root)?;
    violations.extend(modules::check(root)?);
    for (path, name) in files.iter().zip(&names) {
        let text = || fs::read_to_string(path).map_err(|error| format!("{name}: {error}"));
        let mut found = match check_of(name) {
            Some(check) => check(name, &text()?),
            None if paths::applies_to(name) => paths::check(&text()?, &names),
            None => Vec::new(),
        };
        if links::applies_to(name) {
            found.extend(links::check(root, name, &text()?));
        }
        if name == coverage::PAGE {
            found.extend(coverage::check(&text()?));
        }
        violations.extend(found.into_iter().map(|violation| format!("{name}{violation}")));
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
    let has = |name: &str| root().join(path).with_file_name(name).exists();
    let own = |name: &str| fs::read(root().join(path).with_file_name(name)).ok();
    let is_licence =
        |name: &&str| own(name).is_none_or(|text| fs::read(root().join(name)).ok() != Some(text));
    let lacks: Vec<&str> = metadata::LICENCES.into_iter().filter(is_licence).collect();
    [dependencies::check(text), metadata::check(text, has("README.md"), &lacks)].concat()
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
