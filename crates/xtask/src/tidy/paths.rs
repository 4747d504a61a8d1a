//! Paths in documents: a file or folder that a document names in backticks is in the repository.

/// The endings of names that are taken for files even without a slash.
const SOURCES: [&str; 5] = [".rs", ".wgsl", ".py", ".md", ".toml"];

/// Whether paths are checked in this document: the README of the repository or of a crate, CONTRIBUTING.md or
/// a page in `docs`.
pub fn applies_to(document: &str) -> bool {
    let parts: Vec<&str> = document.split('/').collect();
    match parts[..] {
        ["README.md" | "CONTRIBUTING.md"] => true,
        ["docs", page] => page.ends_with(".md"),
        ["crates", _, page] => page == "README.md",
        _ => false,
    }
}

/// Returns a violation for each path in a document's text that is no path of `files`, no folder of one, and
/// no end of either.
pub fn check(text: &str, files: &[String]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut is_code = false;
    for (i, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            continue;
        }
        for path in line.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
            if !files.iter().any(|file| names(path, file)) {
                violations.push(format!(":{}: there is no {path} in the repository", i + 1));
            }
        }
    }
    violations
}

/// Whether a name in backticks is meant as a path. A path with a part in capitals, such as `ops/NAME.rs`, is
/// a pattern, unless it ends in one of the repository's own documents.
fn is_path(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let source = SOURCES.iter().any(|ending| name.strip_suffix(ending).is_some_and(|stem| !stem.is_empty()));
    let in_capitals =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let pattern = !name.ends_with(".md") && name.split(['/', '.']).any(in_capitals);
    plain && (source || name.contains('/')) && !name.starts_with('/') && !pattern
}

/// Whether `path` is the path of `file` or of a folder that holds it, from the root or from any folder on.
fn names(path: &str, file: &str) -> bool {
    format!("/{file}/").contains(&format!("/{}/", path.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let files = ["crates/graph/src/ops/abs.rs", "docs/STATES.md", "shaders/sum.wgsl"];
        check(text, &files.map(str::to_owned))
    }

    #[test]
    fn files_and_folders_are_found_from_any_folder_on() {
        let there =
            "`crates/graph/src/ops/abs.rs` `ops/abs.rs` `abs.rs` `src/ops/` `graph/src` `docs/STATES.md`";
        assert_eq!(found(there), [""; 0]);
        let text = "`abs.rs`\n`crates/graph/ops/abs.rs`, `bs.rs` and `src/op/`\n`STATS.md`";
        let expected = [
            ":2: there is no crates/graph/ops/abs.rs in the repository",
            ":2: there is no bs.rs in the repository",
            ":2: there is no src/op/ in the repository",
            ":3: there is no STATS.md in the repository",
        ];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn what_is_no_path_is_left_alone() {
        let text = "`ops/NAME.rs`, `SUITE.py`, a `.wgsl` file, `a / b.rs`, `/tmp/x.rs`, `Var::abs`\n```sh\n`no.rs`\n```";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn pages_for_readers_are_checked() {
        for page in ["README.md", "CONTRIBUTING.md", "docs/STATES.md", "crates/graph/README.md"] {
            assert!(applies_to(page), "{page}");
        }
        for other in
            ["CHANGELOG.md", "docs/notes.txt", "crates/graph/src/ops/abs.rs", "tests/oracle/README.md"]
        {
            assert!(!applies_to(other), "{other}");
        }
    }
}
