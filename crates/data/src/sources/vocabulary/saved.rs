//! A vocabulary as a file.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::learn::LONGEST_RUN;
use super::{Settings, Vocabulary};
use crate::DataError;
use crate::sample::regular::{open_regular, replace};

const VERSION: u32 = 1;
/// The most bytes of a file.
const LONGEST: u64 = 32 << 20;

/// The file's contents.
#[derive(Deserialize, Serialize)]
struct Written {
    vocabulary: u32,
    characters: bool,
    keep_case: bool,
    keep_punctuation: bool,
    ngrams: usize,
    texts: u64,
    terms: Vec<String>,
    texts_with_term: Vec<u64>,
}

impl Vocabulary {
    /// Returns the vocabulary with its settings as JSON, for `Builder::attach`, which puts it into the file
    /// of the model.
    pub fn to_json(&self) -> String {
        let Settings { characters, keep_case, keep_punctuation, run } = self.settings;
        let written = Written {
            vocabulary: VERSION,
            characters,
            keep_case,
            keep_punctuation,
            ngrams: run,
            texts: self.texts,
            terms: self.terms.clone(),
            texts_with_term: self.containing.clone(),
        };
        // Numbers, truths and texts can always be written.
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Saves the vocabulary with its settings as JSON. The file is replaced by a rename, so it is never there
    /// in part.
    ///
    /// # Errors
    /// The file cannot be written, or would be larger than 32 MiB, which is the most that is opened.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let (path, text) = (path.as_ref(), format!("{}\n", self.to_json()));
        if text.len() as u64 > LONGEST {
            let what = format!("vocabulary: {} bytes, more than {LONGEST}: keep fewer terms", text.len());
            return Err(DataError::format(path, what));
        }
        replace(path, text.as_bytes())
    }

    /// Opens a vocabulary that was saved.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 32 MiB, or is not a vocabulary of this version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let mut text = String::new();
        let read = open_regular(path)?.take(LONGEST + 1).read_to_string(&mut text);
        read.map_err(|cause| DataError::Io { path: path.into(), cause })?;
        if text.len() as u64 > LONGEST {
            return Err(DataError::format(path, "vocabulary: the file is larger than 32 MiB"));
        }
        Self::parse(&text).map_err(|what| DataError::format(path, format!("vocabulary: {what}")))
    }

    /// Makes a vocabulary of what [`to_json`](Self::to_json) returned.
    ///
    /// # Errors
    /// The text is not a vocabulary of this version.
    pub fn from_json(text: &str) -> Result<Self, DataError> {
        Self::parse(text).map_err(|what| DataError::Setting { setting: "vocabulary", what })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Written { vocabulary, characters, keep_case, keep_punctuation, .. } = written;
        if vocabulary != VERSION {
            return Err(format!("version {vocabulary}, not {VERSION}"));
        }
        let settings = Settings { characters, keep_case, keep_punctuation, run: written.ngrams };
        let known = Self::of_terms(settings, written.terms, written.texts_with_term, written.texts);
        if !(1..=LONGEST_RUN).contains(&known.settings.run) {
            return Err(format!("ngrams of {}", known.settings.run));
        }
        let (terms, counts) = (known.terms.len(), known.containing.len());
        if terms == 0 || counts != terms || known.places.len() != terms || i32::try_from(known.len()).is_err()
        {
            let distinct = known.places.len();
            return Err(format!("{terms} terms, {distinct} of them distinct, and {counts} counts"));
        }
        Ok(known)
    }
}
