//! Learning a vocabulary: counting terms.

use std::collections::{BTreeMap, BTreeSet};

use super::{RESERVED, Settings, Vocabulary};
use crate::DataError;

/// The most words or characters of a term that may be asked for.
pub(super) const LONGEST_RUN: usize = 16;

/// The settings of a vocabulary that is to be learned. [`Vocabulary::words`] and [`Vocabulary::characters`]
/// make it.
#[derive(Clone, Debug)]
pub struct VocabularyBuilder {
    settings: Settings,
    most: usize,
    least: u64,
}

impl VocabularyBuilder {
    pub(super) fn new(characters: bool) -> Self {
        let settings = Settings { characters, keep_case: false, keep_punctuation: false, run: 1 };
        Self { settings, most: i32::MAX as usize, least: 1 }
    }

    /// Sets the most ids, those of padding and of unknown terms included. Only the most frequent terms then
    /// have one. Default: no limit.
    #[doc(alias = "max_tokens")]
    pub fn most(self, ids: usize) -> Self {
        Self { most: ids, ..self }
    }

    /// Leaves out terms that come less often in all texts. Default: 1.
    #[doc(alias = "min_df")]
    pub fn least(self, times: u64) -> Self {
        Self { least: times, ..self }
    }

    /// Takes runs of up to this many words or characters as terms, too. Default: 1.
    pub fn ngrams(mut self, longest: usize) -> Self {
        self.settings.run = longest;
        self
    }

    /// Tells capital letters from small ones. Default: texts are taken in lower case.
    pub fn keep_case(mut self) -> Self {
        self.settings.keep_case = true;
        self
    }

    /// Keeps punctuation. Default: the ASCII characters ``!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~`` are left out, as
    /// Keras does, so "don't" is "dont".
    pub fn keep_punctuation(mut self) -> Self {
        self.settings.keep_punctuation = true;
        self
    }

    /// Learns the vocabulary of some texts. The order of the texts does not matter.
    ///
    /// # Errors
    /// There is no term; a limit of less than three ids; runs of no words or of more than 16.
    #[doc(alias("adapt", "fit"))]
    pub fn learn<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) -> Result<Vocabulary, DataError> {
        let wrong = |what: String| Err(DataError::Setting { setting: "vocabulary", what });
        if !(1..=LONGEST_RUN).contains(&self.settings.run) {
            return wrong(format!("runs of {} words, not of 1 to {LONGEST_RUN}", self.settings.run));
        }
        if self.most <= RESERVED {
            let what = format!("{} ids leave none for a term: padding and unknown terms take two", self.most);
            return wrong(what);
        }
        // How often each term comes, and in how many texts.
        let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut read = 0;
        for text in texts {
            let terms = self.settings.terms(text.as_ref());
            for term in terms.iter().collect::<BTreeSet<_>>() {
                counts.entry(term.clone()).or_default().1 += 1;
            }
            for term in terms {
                counts.entry(term).or_default().0 += 1;
            }
            read += 1;
        }
        let mut found: Vec<(String, (u64, u64))> =
            counts.into_iter().filter(|(_, (times, _))| *times >= self.least).collect();
        // The terms are in alphabetical order already, which a stable sort keeps.
        found.sort_by_key(|(_, (times, _))| std::cmp::Reverse(*times));
        found.truncate((self.most - RESERVED).min(i32::MAX as usize - RESERVED));
        if found.is_empty() {
            return wrong(format!("no term comes {} times or more in {read} texts", self.least));
        }
        let (terms, counts): (Vec<String>, Vec<(u64, u64)>) = found.into_iter().unzip();
        let containing = counts.into_iter().map(|(_, texts)| texts).collect();
        Ok(Vocabulary::of_terms(self.settings, terms, containing, read))
    }
}

impl Vocabulary {
    pub(super) fn of_terms(settings: Settings, terms: Vec<String>, containing: Vec<u64>, texts: u64) -> Self {
        let places = terms.iter().cloned().zip(0..).collect();
        Self { settings, terms, containing, texts, places }
    }
}
