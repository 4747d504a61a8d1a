//! Reviews that are made: lines of a label, 0 or 1, a tab, and words.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Error, Refused};

/// Reviews, their labels and their words.
#[derive(Clone, Debug)]
pub struct Reviews {
    /// The words of each review, as ids in the order of their first use.
    pub texts: Vec<Vec<i32>>,
    /// The labels: 1 for a good review.
    pub labels: Vec<i32>,
    /// The number of ids, with those below the first word's.
    pub words: usize,
}

impl Reviews {
    /// Reads reviews, at most `longest` words of each. The first word's id is `first`; those below are free
    /// for padding and other marks.
    ///
    /// # Errors
    /// The file cannot be read, or a line, which the error names, has no label and tab.
    pub fn read(path: &Path, first: i32, longest: usize) -> Result<Self, Error> {
        let (lines, labels) = Self::lines(path)?;
        let mut known = BTreeMap::new();
        let mut words = |text: &String| {
            let words = text.split_whitespace().take(longest).map(|word| {
                let next = first + known.len() as i32;
                *known.entry(word.to_owned()).or_insert(next)
            });
            words.collect()
        };
        let texts = lines.iter().map(&mut words).collect();
        Ok(Self { texts, labels, words: known.len() + first as usize })
    }

    /// Reads reviews as they are written, and their labels.
    ///
    /// # Errors
    /// Those of [`Reviews::read`].
    pub fn lines(path: &Path) -> Result<(Vec<String>, Vec<i32>), Error> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Refused(format!("{}: {error}", path.display())))?;
        let (mut texts, mut labels) = (Vec::new(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let wrong = |problem: &str| Refused(format!("{}, line {}: {problem}", path.display(), at + 1));
            let (label, words) = line.split_once('\t').ok_or_else(|| wrong("no tab behind a label"))?;
            texts.push(words.to_owned());
            labels.push(label.parse().map_err(|_| wrong(&format!("{label:?} is no label")))?);
        }
        Ok((texts, labels))
    }
}
