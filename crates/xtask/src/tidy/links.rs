//! Links in documents: what a document of the repository links to is there.

use std::path::Path;

/// Whether links are checked in this document: all of `docs` and `examples`, and the pages at the root.
/// READMEs of crates are pages of rustdoc, too, which checks their links.
pub fn applies_to(document: &str) -> bool {
    let is_at_root = !document.contains('/');
    document.ends_with(".md")
        && (is_at_root || document.starts_with("docs/") || document.starts_with("examples/"))
}

/// Returns a violation for each link in the text of `document`, a path from `root`, whose file or folder is
/// not there. Links to the web and to places of the same page are left alone.
pub fn check(root: &Path, document: &str, text: &str) -> Vec<String> {
    let dir = root.join(document).parent().map(Path::to_owned).unwrap_or_default();
    let mut violations = Vec::new();
    for (number, target) in targets(text) {
        let file = target.split('#').next().unwrap_or_default();
        if !file.is_empty() && !file.contains(':') && !dir.join(file).exists() {
            violations.push(format!(":{number}: a link leads to {target}, which is not there"));
        }
    }
    violations
}

/// Returns the targets of the links in a text with the numbers of their lines, without those in code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (line, number) in text.lines().zip(1..) {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            continue;
        }
        let rests = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        found.extend(rests.map(|target| (number, target.trim_matches(['<', '>']))));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::root;

    #[test]
    fn targets_outside_of_code_are_found() {
        let text = "[a](b.md) and [`c`](../d.rs#L1)\n```\n[e](f)\n```\n![g](<h.png> \"title\")\n";
        assert_eq!(targets(text), [(1, "b.md"), (1, "../d.rs#L1"), (5, "h.png")]);
    }

    #[test]
    fn what_is_not_there_is_told_with_its_line() {
        let check = |text: &str| check(&root(), "docs/keras/README.md", text);
        let there =
            "[a](README.md)\n[b](../../examples#top) [c](https://keras.io) [d](#here) [e](mailto:a@b.c)";
        assert!(check(there).is_empty(), "{:?}", check(there));
        let expected = ":2: a link leads to ../examples/none.rs, which is not there";
        assert_eq!(check("\n[a](../examples/none.rs)"), [expected]);
        let of = |document: &str| applies_to(document);
        assert!(of("README.md") && of("docs/guide/src/text.md") && of("examples/data/README.md"));
        assert!(!of("crates/data/README.md") && !of("docs/keras/bert.py"));
    }

    /// Every example of Keras's site leads to what shows how it is written here.
    #[test]
    fn links_of_the_coverage_lead_somewhere() {
        let name = "docs/keras/COVERAGE.md";
        let text = fs::read_to_string(root().join(name)).unwrap();
        assert!(targets(&text).len() > 200);
        assert_eq!(check(&root(), name, &text), Vec::<String>::new());
    }
}
