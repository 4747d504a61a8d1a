//! The table of Keras's examples, `docs/keras/COVERAGE.md`: its numbers are those of its lines.

use std::collections::BTreeSet;

/// The table's path from the root.
pub const PAGE: &str = "docs/keras/COVERAGE.md";
/// The verdicts on an example, with the lines of one's own that it may take.
const VERDICTS: [(&str, std::ops::Range<u32>); 4] =
    [("as it is", 0..1), ("few lines", 1..20), ("work", 20..1_000), ("not", 0..1)];

/// Returns a violation for each line of the table that is wrong, and for each number above it that is not
/// what the lines add up to.
pub fn check(text: &str) -> Vec<String> {
    let (mut violations, mut names, mut counts) = (Vec::new(), BTreeSet::new(), [0; VERDICTS.len()]);
    let (before, _) = text.split_once("\n## ").unwrap_or((text, ""));
    let rows = text.lines().zip(1..).filter(|(line, _)| line.starts_with("| `"));
    for (line, number) in rows {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, verdict, how] = cells[..] else {
            violations.push(format!(":{number}: a line has {} cells, not 3", cells.len()));
            continue;
        };
        if !names.insert(name) {
            violations.push(format!(":{number}: {name} is there twice"));
        }
        let (verdict, lines) = verdict.split_once(", ").unwrap_or((verdict, "0"));
        let kind = VERDICTS.iter().position(|(own, lines_of)| {
            *own == verdict && lines.parse().is_ok_and(|lines| lines_of.contains(&lines))
        });
        match kind {
            Some(kind) => counts[kind] += 1,
            None => violations.push(format!(":{number}: {verdict}, {lines} lines, is no verdict")),
        }
        if verdict != "not" && !how.contains("](") {
            violations.push(format!(":{number}: {name} leads nowhere"));
        }
    }
    let wanted = [("code examples", names.len())].into_iter();
    let parts = ["are possible as it is", "take a few lines", "are work", "are not possible"];
    for (what, count) in wanted.chain(parts.into_iter().zip(counts)) {
        if !before.contains(&format!("{count} {what}")) {
            violations
                .push(format!(": the table has {count} that {what}, and the text above it does not say so"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::root;

    #[test]
    fn the_numbers_are_those_of_the_table() {
        let text = fs::read_to_string(root().join(PAGE)).unwrap();
        assert_eq!(check(&text), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_in_a_table_is_told() {
        let head = "What 2 code examples take. 1 are possible as it is; 1 take a few lines; 0 are work; 0 are \
                    not possible.\n\n## One\n";
        let table = |rows: &str| check(&format!("{head}{rows}"));
        let right = "| `a` | as it is | [x](y) |\n| `b` | few lines, 5 | [x](y) |\n";
        assert_eq!(table(right), Vec::<String>::new());
        assert_eq!(table(&right.replace("`b`", "`a`")).len(), 2);
        assert_eq!(table(&right.replace(", 5", ", 25")).len(), 2);
        assert_eq!(table(&right.replace("5 | [x](y)", "5 | x")), [":5: `b` leads nowhere"]);
        assert_eq!(table(&right.replace("as it is |", "not |")).len(), 2);
        assert_eq!(table("").len(), 3);
    }
}
