//! Parts of the workspace: one package by the name of its folder, and those that differ from the last commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{cargo, output, run, tidy};

/// The packages whose tests take minutes. Here they are compiled, and not run.
const LONG: [&str; 3] = ["unisono-examples", "unisono-testkit", "unisono-tests"];

/// Returns the name of the package in a folder.
fn package_in(dir: &Path) -> Option<String> {
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).ok()?;
    let (_, rest) = manifest.split_once("[package]\nname = \"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Returns the name of the package of a folder that is named as people do: `data` for `crates/data`, `tests`.
pub fn package(root: &Path, name: &str) -> Option<String> {
    if name.is_empty() || name.contains('.') {
        return None;
    }
    [root.join("crates").join(name), root.join(name)].iter().find_map(|dir| package_in(dir))
}

/// Returns the packages with files that differ from the last commit, given what `git status` lists.
fn changed(root: &Path, listed: &str) -> BTreeSet<String> {
    let files = listed.lines().filter_map(|line| line.get(3..));
    files.filter_map(|file| Path::new(file).ancestors().find_map(|dir| package_in(&root.join(dir)))).collect()
}

/// Says whether a change is worth all tests: checks the house rules, lints the workspace, and runs the tests
/// of the packages that differ from the last commit.
///
/// # Errors
/// The first of these that fails.
pub fn check(root: &Path) -> Result<(), String> {
    tidy::run(root)?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    let mut git = Command::new("git");
    git.current_dir(root).args(["status", "--porcelain", "--no-renames", "--untracked-files=all"]);
    let all = changed(root, &output(&mut git)?);
    let (long, short): (Vec<_>, Vec<_>) = all.iter().partition(|package| LONG.contains(&package.as_str()));
    if !short.is_empty() {
        run(cargo().arg("test").args(short.iter().flat_map(|package| ["-p", package.as_str()])))?;
    }
    eprintln!(
        "xtask: passed: house rules, clippy, tests of {short:?}; not run: {long:?} and what uses these"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn packages_are_named_by_their_folders() {
        let named = |name: &str| package(&root(), name);
        assert_eq!(named("data").as_deref(), Some("unisono-data"));
        assert_eq!(named("tests").as_deref(), Some("unisono-tests"));
        assert_eq!(named("xtask").as_deref(), Some("xtask"));
        assert_eq!([named("softmax"), named(""), named("..")], [None, None, None]);
    }

    #[test]
    fn what_differs_belongs_to_the_innermost_package() {
        let listed = " M crates/data/src/lib.rs\n?? tests/fuzz/src/new.rs\n D tests/src/x.rs\n M README.md\n";
        let expected = ["unisono-data", "unisono-fuzz", "unisono-tests"].map(str::to_owned);
        assert_eq!(changed(&root(), listed), BTreeSet::from(expected));
        assert!(changed(&root(), "").is_empty());
    }
}
