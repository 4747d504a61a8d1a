//! Vocabularies that are learned from texts, and texts as ids or as counts of terms.

mod learn;
mod saved;

use std::collections::BTreeMap;

use crate::{DataError, Memory, Sequences};

pub use learn::VocabularyBuilder;

/// The id that fills a sequence up to its length.
const PADDING: i32 = 0;
/// The id of a term that is not in the vocabulary.
const UNKNOWN: i32 = 1;
/// The number of ids that stand before those of terms.
const RESERVED: usize = 2;

/// The terms of some texts, each with an id: words, characters, or runs of several of them.
///
/// It is Keras's `TextVectorization`. The id 0 is padding, 1 any term that is not known, and the terms follow
/// from 2, the most frequent first and alphabetically where several are as frequent. (Keras leaves that order
/// open.) Learn it from the training texts alone, and save it next to the model: whoever predicts opens it
/// again. The file has all settings.
///
/// ```
/// use unisono_data::{Bag, Source, Vocabulary};
///
/// let texts = ["A good film!", "a bad film.", "good"];
/// let vocabulary = Vocabulary::words().most(20_000).learn(texts)?;
/// assert_eq!(vocabulary.terms(), ["a", "film", "good", "bad"]);
/// // "x" with up to 4 ids, "length" and "y".
/// let train = vocabulary.sequences(texts, [1, 0, 1], 4)?;
/// assert_eq!(train.fetch(1)?.field("x").unwrap().values.as_i32().unwrap(), [2, 5, 3, 0]);
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("vocabulary.json");
/// vocabulary.save(&path)?;
/// let opened = Vocabulary::open(&path)?;
/// assert_eq!(opened.padded("Good, new film", 5), [4, 1, 3, 0, 0]);
/// assert_eq!(opened.bag("good, good film", Bag::Count), [0.0, 0.0, 1.0, 2.0, 0.0]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("TextVectorization", "StringLookup", "CountVectorizer", "TfidfVectorizer"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    settings: Settings,
    terms: Vec<String>,
    /// The number of texts that each term is in.
    containing: Vec<u64>,
    /// The number of texts that were learned from.
    texts: u64,
    /// The place of each term in `terms`.
    places: BTreeMap<String, usize>,
}

/// How a text becomes terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    characters: bool,
    keep_case: bool,
    keep_punctuation: bool,
    /// The most words or characters of a term.
    run: usize,
}

/// What a vector of terms has of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bag {
    /// 1 for each term that is in the text, and 0 for others.
    MultiHot,
    /// The number of times that the term is in the text.
    Count,
    /// The count times ln(1 + n / (1 + d)): n texts were learned from, and d of them contain the term. Rare
    /// terms weigh more. Terms that are not known weigh the mean of all. (As Keras; scikit-learn has another
    /// formula.)
    TfIdf,
}

impl Settings {
    /// Returns the terms of a text: first those of one word or character, then those of two, and so on.
    fn terms(&self, text: &str) -> Vec<String> {
        let mut text = if self.keep_case { text.to_owned() } else { text.to_lowercase() };
        if !self.keep_punctuation {
            text.retain(|character| !character.is_ascii_punctuation());
        }
        let units: Vec<String> = match self.characters {
            true => text.chars().map(String::from).collect(),
            false => text.split_whitespace().map(str::to_owned).collect(),
        };
        let between = if self.characters { "" } else { " " };
        let runs = |length| units.windows(length).map(move |run| run.join(between));
        (1..=self.run.min(units.len())).flat_map(runs).collect()
    }
}

impl Vocabulary {
    /// Starts a vocabulary of words: what stands between white space.
    pub fn words() -> VocabularyBuilder {
        VocabularyBuilder::new(false)
    }

    /// Starts a vocabulary of characters, white space among them.
    pub fn characters() -> VocabularyBuilder {
        VocabularyBuilder::new(true)
    }

    /// Returns the number of ids, those of padding and of unknown terms included: the rows of an embedding.
    #[doc(alias = "vocabulary_size")]
    pub fn len(&self) -> usize {
        self.terms.len() + RESERVED
    }

    /// Whether there are no terms, which is never so.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the terms by their ids, from id 2 on.
    #[doc(alias = "get_vocabulary")]
    pub fn terms(&self) -> &[String] {
        &self.terms
    }

    /// Returns the id of a term, as it is after lower case and punctuation are dealt with.
    pub fn id(&self, term: &str) -> Option<i32> {
        self.places.get(term).map(|&place| (place + RESERVED) as i32)
    }

    /// Returns the ids of a text, as many as it has terms.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        self.settings.terms(text).iter().map(|term| self.id(term).unwrap_or(UNKNOWN)).collect()
    }

    /// Returns the ids of a text, cut off or padded with 0 to a length: a row to predict for.
    pub fn padded(&self, text: &str, length: usize) -> Vec<i32> {
        let mut ids = self.encode(text);
        ids.resize(length, PADDING);
        ids
    }

    /// Returns the text of ids: their terms, between blanks for words. Padding is left out, and an id that no
    /// term has is `[UNK]`.
    pub fn decode(&self, ids: &[i32]) -> String {
        let term = |&id: &i32| {
            let place = usize::try_from(id).ok().and_then(|id| id.checked_sub(RESERVED));
            place.and_then(|place| self.terms.get(place)).map_or("[UNK]", String::as_str)
        };
        let terms: Vec<&str> = ids.iter().filter(|&&id| id != PADDING).map(term).collect();
        terms.join(if self.settings.characters { "" } else { " " })
    }

    /// Makes a source of texts and their classes: "x" with up to `longest` ids, padded with 0, "length" and
    /// "y". What is beyond `longest` is cut off.
    ///
    /// # Errors
    /// Those of [`Sequences::labelled`].
    pub fn sequences<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
        labels: impl Into<Vec<i32>>,
        longest: usize,
    ) -> Result<Sequences, DataError> {
        let cut = |text: T| {
            let mut ids = self.encode(text.as_ref());
            ids.truncate(longest);
            ids
        };
        let reserved = ["[PAD]", "[UNK]"].map(str::to_owned).into_iter();
        let terms = reserved.chain(self.terms.iter().cloned()).collect();
        Ok(Sequences::labelled(texts.into_iter().map(cut), labels, PADDING)?.pad_to(longest)?.named(terms))
    }

    /// Returns a text as a vector with a number for each term: the first is that of all terms that are not
    /// known, and then one for each of [`terms`](Self::terms).
    pub fn bag(&self, text: &str, bag: Bag) -> Vec<f32> {
        let mut counts = vec![0_u32; self.terms.len() + 1];
        for term in self.settings.terms(text) {
            counts[self.places.get(&term).map_or(0, |place| place + 1)] += 1;
        }
        let rarity = |containing: u64| libm::log(1.0 + self.texts as f64 / (1.0 + containing as f64));
        match bag {
            Bag::MultiHot => counts.iter().map(|&count| f32::from(u8::from(count > 0))).collect(),
            Bag::Count => counts.iter().map(|&count| count as f32).collect(),
            Bag::TfIdf => {
                let all: Vec<f64> = self.containing.iter().map(|&texts| rarity(texts)).collect();
                let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
                let weights = std::iter::once(mean).chain(all);
                counts
                    .iter()
                    .zip(weights)
                    .map(|(&count, weight)| (f64::from(count) * weight) as f32)
                    .collect()
            }
        }
    }

    /// Makes a source of texts as vectors, see [`bag`](Self::bag), and their classes: "x" and "y".
    ///
    /// # Errors
    /// Another number of labels than of texts.
    pub fn bags<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
        labels: impl Into<Vec<i32>>,
        bag: Bag,
    ) -> Result<Memory, DataError> {
        let x: Vec<f32> = texts.into_iter().flat_map(|text| self.bag(text.as_ref(), bag)).collect();
        Memory::labelled(x, [self.terms.len() + 1], labels)
    }
}

#[cfg(test)]
mod tests;
