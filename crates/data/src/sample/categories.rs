//! What the whole numbers of fields stand for.

use std::collections::BTreeMap;

/// For the names of fields the names of their categories, in the order of their numbers: the classes of labels,
/// or a table's categories.
pub type Categories = BTreeMap<String, Vec<String>>;

/// Returns in words where two sources number the categories of the same field differently: at the first number
/// that has other names, or that only `other` has. Returns none where they agree, and for fields that only one
/// of them knows.
pub fn differing_category(own: &Categories, other: &Categories) -> Option<String> {
    other.iter().find_map(|(field, theirs)| {
        let ours = own.get(field)?;
        let at = (0..theirs.len()).find(|&at| ours.get(at) != theirs.get(at))?;
        let name = match ours.get(at) {
            Some(name) => format!("{name:?} in one"),
            None => "no category in one".to_owned(),
        };
        Some(format!("{at} of {field:?} is {name}, and {:?} in the other", theirs[at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Categories {
        Categories::from([("y".to_owned(), names.iter().map(|&name| name.to_owned()).collect())])
    }

    #[test]
    fn the_first_number_with_other_names_is_told() {
        let differing = differing_category(&of(&["cat", "dog", "fox"]), &of(&["cat", "fox"]));
        assert_eq!(differing.as_deref(), Some("1 of \"y\" is \"dog\" in one, and \"fox\" in the other"));
        let longer = differing_category(&of(&["cat"]), &of(&["cat", "dog"]));
        assert_eq!(longer.as_deref(), Some("1 of \"y\" is no category in one, and \"dog\" in the other"));
        // The other one may lack the last ones, or know nothing.
        assert_eq!(differing_category(&of(&["cat", "dog"]), &of(&["cat"])), None);
        assert_eq!(differing_category(&of(&["cat", "dog"]), &Categories::new()), None);
    }
}
