//! Patterns over names, such as `encoder.*` and `*.weight`.

use std::fmt;

/// A pattern over whole names, in which each `*` stands for any run of characters, dots included, or for
/// none. Nothing else has a special meaning.
///
/// ```
/// use unisono_checkpoint::Pattern;
///
/// let attention = Pattern::new("*.attn.*");
/// assert!(attention.matches("h.0.attn.c_attn") && !attention.matches("h.0.mlp.c_fc"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The texts between the stars: one more than there are stars.
    parts: Vec<String>,
}

impl Pattern {
    /// Returns the pattern that a text describes.
    pub fn new(pattern: &str) -> Self {
        Self { parts: pattern.split('*').map(str::to_owned).collect() }
    }

    /// Returns whether a whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.captures(name).is_some()
    }

    /// Returns what each star stands for, all but the last as short as possible. This takes no longer than a
    /// search for each part.
    pub(crate) fn captures<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        let (first, rest) = self.parts.split_first()?;
        let mut name = name.strip_prefix(first.as_str())?;
        let Some((last, between)) = rest.split_last() else { return name.is_empty().then(Vec::new) };
        let mut captures = Vec::with_capacity(rest.len());
        for part in between {
            let (capture, after) = name.split_once(part.as_str())?;
            captures.push(capture);
            name = after;
        }
        captures.push(name.strip_suffix(last.as_str())?);
        Some(captures)
    }

    /// Returns whether the pattern begins with a star.
    pub(crate) fn starts_with_star(&self) -> bool {
        self.stars() > 0 && self.parts.first().is_some_and(String::is_empty)
    }

    /// Returns whether every name matches, as by `*`.
    pub(crate) fn is_star(&self) -> bool {
        self.stars() == 1 && self.parts.iter().all(String::is_empty)
    }

    pub(crate) fn stars(&self) -> usize {
        self.parts.len() - 1
    }

    /// Returns the pattern with its stars replaced.
    pub(crate) fn fill(&self, captures: &[&str]) -> String {
        let between = captures.iter().copied().chain(std::iter::repeat(""));
        let parts = self.parts.iter().zip(between).enumerate();
        parts.fold(String::new(), |name, (at, (part, star))| {
            name + part + if at < self.stars() { star } else { "" }
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("*"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", Some(vec![])),
            ("a.b", "a.bc", None),
            ("", "", Some(vec![])),
            ("*", "", Some(vec![""])),
            ("module.*", "module.fc.weight", Some(vec!["fc.weight"])),
            ("module.*", "fc.module.weight", None),
            ("*.gamma", "bn.gamma", Some(vec!["bn"])),
            ("a*a", "a", None),
            ("*.*.w", "x.y.z.w", Some(vec!["x", "y.z"])),
            ("l*.b*", "l1.a.b2", Some(vec!["1.a", "2"])),
        ] {
            assert_eq!(Pattern::new(pattern).captures(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn captures_fill_another_pattern() {
        assert_eq!(Pattern::new("*.block.*.w").fill(&["x", "y"]), "x.block.y.w");
        assert_eq!(Pattern::new("same").fill(&["x"]), "same");
    }
}
