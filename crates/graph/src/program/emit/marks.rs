//! Marks in shader files: lines, such as `//EACH` or `//IF name`, that are replaced or removed when the text
//! of a kernel is made. The search goes line by line, so that it works with the line ends of any system.

/// Returns a text with other lines in the place of the mark.
pub(super) fn filled(text: &str, mark: &str, lines: &str) -> String {
    let mut filled = String::new();
    for line in text.lines() {
        if line.trim() == mark {
            filled += lines;
        } else {
            filled += line;
            filled.push('\n');
        }
    }
    filled
}

/// Returns a text without the marks `//IF name` and `//END name`, and without the lines between them unless
/// they are wanted.
pub(super) fn chosen(text: &str, name: &str, is_wanted: bool) -> String {
    let (start, end) = (format!("//IF {name}"), format!("//END {name}"));
    let (mut left, mut between) = (String::new(), false);
    for line in text.lines() {
        let mark = line.trim();
        if mark == start || mark == end {
            between = mark == start;
        } else if is_wanted || !between {
            left += line;
            left.push('\n');
        }
    }
    left
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns whether a text has a mark of any kind.
    pub(in crate::program::emit) fn has_mark(text: &str) -> bool {
        let marks = ["//EACH", "//IF ", "//END ", "//RESULTS "];
        text.lines().any(|line| marks.iter().any(|mark| line.trim().starts_with(mark)))
    }

    /// Returns a text whose lines end as on Windows.
    pub(in crate::program::emit) fn of_windows(text: &str) -> String {
        text.replace('\n', "\r\n")
    }

    #[test]
    fn marks_are_found_whatever_ends_a_line() {
        let text = "a\n  //EACH\n  //IF K\n  b\n  //END K\nc\n";
        for text in [text.to_owned(), of_windows(text)] {
            assert!(has_mark(&text));
            let filled = filled(&text, "//EACH", "  1\n  2\n");
            assert_eq!(chosen(&filled, "K", true), "a\n  1\n  2\n  b\nc\n");
            assert_eq!(chosen(&filled, "K", false), "a\n  1\n  2\nc\n");
            assert_eq!(chosen(&filled, "V", false), filled);
        }
    }
}
