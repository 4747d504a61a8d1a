//! What messages say to do with a table that is read in the wrong way.

use super::number::Number;

/// The fewest lines whose numbers are noted.
const MOST_LIKELY_COUNTED: usize = 8;

/// What a label is, where features are not chosen.
pub(super) const LABEL: &str = "a whole number: use Csv::target to predict a number; if the labels are texts, also \
                                choose the features with Csv::numbers";

/// Returns what a value is expected to be, and what to do with one that is a text or empty.
pub(super) fn advised(expected: &'static str, value: &str) -> &'static str {
    match (expected, value.trim()) {
        ("a number", "") => "a number: Csv::numbers with Csv::missing fills empty cells",
        ("a number", text) if text.replace(',', ".").parse::<f64>().is_ok() => {
            "a number that has a point as its decimal separator, not a comma"
        }
        ("a number", text) if text.contains([';', '\t']) => {
            "a number: Csv::delimiter says what separates columns"
        }
        ("a number", _) => "a number: Csv::category takes a column of texts",
        (expected, _) => expected,
    }
}

/// Returns a note on a column of features that counts the lines.
pub(super) fn of_line_numbers(column: &Number) -> Option<String> {
    let counts = column.values.windows(2).all(|pair| pair[1] == pair[0] + 1.0);
    (counts && column.values.len() >= MOST_LIKELY_COUNTED).then(|| {
        format!(
            "the column {:?} counts the lines from {}: line numbers tell a model nothing about new data, so leave it \
             out of Csv::numbers, unless it is a time",
            column.name, column.values[0]
        )
    })
}

/// Returns what is wrong with a first column of this name, if it is the index that pandas writes. It has no
/// name in the file, and becomes "Unnamed: 0" where pandas reads the file and writes it again.
pub(super) fn of_an_index(name: &str) -> Option<String> {
    ["", "Unnamed: 0"].contains(&name.trim_start_matches('\u{feff}')).then(|| {
        format!(
            "the first column is called {name:?} and is probably the index that pandas writes: write the file with \
             index=False, or choose columns with Csv::numbers"
        )
    })
}
