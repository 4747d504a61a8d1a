//! What messages say to do with a table that is read in the wrong way.

/// What a label is, where features are not chosen.
pub(super) const LABEL: &str = "a whole number: Csv::target takes numbers to predict, and labels that are texts need features \
     that are chosen by Csv::numbers";

/// Returns what a value is expected to be, and what to do with one that is a text or empty.
pub(super) fn advised(expected: &'static str, value: &str) -> &'static str {
    match (expected, value.trim()) {
        ("a number", "") => "a number: Csv::numbers with Csv::missing fills empty cells",
        ("a number", text) if text.replace(',', ".").parse::<f64>().is_ok() => {
            "a number, which has a point: it has a comma"
        }
        ("a number", text) if text.contains([';', '\t']) => {
            "a number: Csv::delimiter says what separates columns"
        }
        ("a number", _) => "a number: Csv::category takes a column of texts",
        (expected, _) => expected,
    }
}

/// Returns what is wrong with a first column of this name, if it is the index that pandas writes. It has no
/// name in the file, and becomes "Unnamed: 0" where pandas reads the file and writes it again.
pub(super) fn of_an_index(name: &str) -> Option<String> {
    ["", "Unnamed: 0"].contains(&name.trim_start_matches('\u{feff}')).then(|| {
        format!(
            "the first column is called {name:?}, as the index of a pandas table is, which numbers the lines: write the \
             file with index=False, or choose columns with Csv::numbers"
        )
    })
}
