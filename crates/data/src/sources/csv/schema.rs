//! What a table's columns were read with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a table's columns were read with, for reading another file the same way: the data to predict, or
/// those held out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TableSchema {
    /// The categories of each column of categories, in the order of their ids.
    pub categories: BTreeMap<String, Vec<String>>,
    /// The names of the classes in the order of the labels, where labels are texts.
    pub classes: Vec<String>,
    /// Whether the labels are whole numbers, without class names. False in schemas from older versions.
    #[serde(default)]
    pub whole_labels: bool,
    /// For each column of numbers, what takes the place of those that are missing.
    pub fills: BTreeMap<String, f32>,
    /// The names of the columns of numbers, in the order of "x". Empty in a schema that was saved before it
    /// had them.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// The number of lines that were left out.
    pub left_out: u64,
}

impl TableSchema {
    /// Checks that columns of numbers do not come in another order than in the table of this schema.
    ///
    /// # Errors
    /// The same columns come in another order. The error is the message.
    pub(in crate::sources) fn check_order(&self, numbers: &[String]) -> Result<(), String> {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names
        };
        if numbers == self.numbers || sorted(numbers) != sorted(&self.numbers) {
            return Ok(());
        }
        Err(format!(
            "the numbers {numbers:?} are those of the other table (like) in another order, and a model takes \
             them by their places: choose them as {:?}",
            self.numbers
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Csv;

    #[test]
    fn labels_of_another_kind_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.csv");
        let table = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Csv::new(&path).numbers(["a"]).label("y")
        };
        let (_, schema) = table("y,a\n0,1\n2,1\n").read_with_schema().unwrap();
        let error = table("y,a\nten,1\nzero,1\n").like(&schema).read().unwrap_err().to_string();
        assert!(error.contains("\"ten\" is not a 32-bit integer, but those of the other table"), "{error}");
    }

    #[test]
    fn columns_in_another_order_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.csv");
        std::fs::write(&path, "a,b,c\n1,2,3\n").unwrap();
        let table = |columns: &[&str]| Csv::new(&path).numbers(columns.iter().copied());
        let (_, schema) = table(&["a", "b"]).read_with_schema().unwrap();
        assert_eq!(schema.numbers, ["a", "b"]);
        let like = |columns: &[&str]| table(columns).like(&schema).read_with_schema();
        let error = like(&["b", "a"]).unwrap_err().to_string();
        assert!(error.contains(r#"["b", "a"]"#) && error.contains(r#"choose them as ["a", "b"]"#), "{error}");
        // Other columns may have other names in another file.
        for columns in [&["a", "b"][..], &["a", "c"], &["b"]] {
            assert_eq!(like(columns).unwrap().1.numbers, columns);
        }
        // A schema that was saved without the names says nothing of their order.
        let saved = serde_json::to_value(&schema).unwrap();
        let mut old = saved.as_object().unwrap().clone();
        old.remove("numbers");
        let old: TableSchema = serde_json::from_value(old.into()).unwrap();
        assert!(table(&["b", "a"]).like(&old).read().is_ok());
    }
}
