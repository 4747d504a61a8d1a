//! Columns of texts, categories and labels, which become ids.

use std::collections::{BTreeMap, BTreeSet};

use super::number::whole;
use super::schema::TableSchema;

/// A column of texts. Ids are given in the order in which texts come, and sorted at the end.
pub(super) struct Texts {
    pub at: usize,
    pub name: String,
    pub ids: BTreeMap<String, i32>,
    pub values: Vec<i32>,
    /// The texts that may come, if they are known.
    pub known: Option<BTreeSet<String>>,
}

impl Texts {
    pub fn knows(&self, text: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.contains(text))
    }

    pub fn push(&mut self, text: &str) {
        let next = self.ids.len() as i32;
        let id = match self.ids.get(text) {
            Some(id) => *id,
            None => *self.ids.entry(text.to_owned()).or_insert(next),
        };
        self.values.push(id);
    }

    /// Returns the ids by the order of the texts, known or alphabetical, and the texts: with the empty one,
    /// which stands for what is missing, first if `with_missing` is set and none are known.
    pub fn sorted(self, known: Option<Vec<String>>, with_missing: bool) -> (Vec<i32>, Vec<String>) {
        let texts = known.unwrap_or_else(|| {
            let missing = (with_missing && !self.ids.contains_key("")).then(String::new);
            missing.into_iter().chain(self.ids.keys().cloned()).collect()
        });
        let places: BTreeMap<&String, usize> = texts.iter().zip(0..).collect();
        let mut place = vec![0; self.ids.len()];
        for (text, id) in &self.ids {
            place[*id as usize] = places.get(text).map_or(0, |at| *at as i32);
        }
        (self.values.iter().map(|id| place[*id as usize]).collect(), texts)
    }

    /// Returns labels: the numbers themselves where all texts are whole numbers, "1.0" included, else ids as
    /// [`Texts::sorted`] gives them, with the classes' names. `like` is the schema of another
    /// table, if this one must match it.
    ///
    /// # Errors
    /// A label is a number but not a 32-bit integer, and others are; or the other table has whole numbers,
    /// and a label here is not one. A schema from an older version does not say that its labels are whole
    /// numbers: then a text is an error only if other labels here are whole numbers. The error is the
    /// message.
    pub fn labels(self, like: Option<&TableSchema>) -> Result<(Vec<i32>, Vec<String>), String> {
        let is_whole = |text: &str| whole(text).is_some();
        if let Some(odd) = self.ids.keys().find(|text| !is_whole(text))
            && like.is_some_and(|like| like.whole_labels)
        {
            return Err(format!(
                "the label {odd:?} is not a 32-bit integer, but those of the other table (like) are"
            ));
        }
        let known = like.map(|like| like.classes.clone());
        let are_numbers = known.as_ref().is_some_and(Vec::is_empty);
        let is_odd = |text: &str| !is_whole(text) && (are_numbers || text.parse::<f64>().is_ok());
        if let Some(odd) = self.ids.keys().find(|text| is_odd(text))
            && self.ids.keys().any(|text| is_whole(text))
        {
            return Err(format!("the label {odd:?} is not a 32-bit integer, but others are"));
        }
        let known = known.filter(|classes| !classes.is_empty());
        let numbers: Option<Vec<(i32, i32)>> =
            self.ids.iter().map(|(text, id)| Some((*id, whole(text)?))).collect();
        Ok(match numbers.filter(|_| known.is_none()) {
            Some(numbers) => {
                let by_id: BTreeMap<i32, i32> = numbers.into_iter().collect();
                (self.values.iter().map(|id| by_id[id]).collect(), Vec::new())
            }
            None => self.sorted(known, false),
        })
    }
}
