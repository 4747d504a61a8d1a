//! Texts as ids, by a tokenizer of Hugging Face's crate tokenizers.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Encoding, PostProcessor, TruncationDirection};

use super::gzip::{is_gzipped, unpacked};
use crate::sample::regular::{open_regular, replace};
use crate::{DataError, Sequences, Tokens, Width};

/// A tokenizer from a Hugging Face `tokenizer.json`: WordPiece, byte pair encoding, unigrams. Needs the
/// feature `tokenizers`.
///
/// ```no_run
/// use unisono_data::{Loader, Tokenizer, mask};
///
/// let tokenizer = Tokenizer::open("bert/tokenizer.json")?;
/// let texts = tokenizer.sequences(["a good film", "no good"], [1, 0], 128)?;
/// let loader = Loader::new(texts).try_map("mask", mask("mask", 128));
/// # Ok::<(), unisono_data::DataError>(())
/// ```
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads a `tokenizer.json`. Its padding and truncation settings are ignored, because padding would count
    /// as text.
    ///
    /// # Errors
    /// The file cannot be read, or does not describe a tokenizer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let wrong = |error: tokenizers::Error| DataError::format(path, error.to_string());
        let mut tokenizer = tokenizers::Tokenizer::from_file(path).map_err(wrong)?;
        tokenizer.with_padding(None).with_truncation(None).map_err(wrong)?;
        Ok(Self(tokenizer))
    }

    /// Learns byte pairs from texts, as GPT-2's tokenizer has them: at first each byte is a token, and then
    /// the most frequent pair of neighbours becomes one, again and again, until there are `ids` of them or no
    /// pair comes twice. The id 0 is `[PAD]`. Any text can be encoded. The order of the texts does not
    /// matter.
    ///
    /// Learn it from the training texts alone, and [`save`](Self::save) it next to the model.
    ///
    /// # Errors
    /// Fewer than 257 ids, which are those of bytes and padding; the crate tokenizers fails.
    ///
    /// ```
    /// use unisono_data::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::learn_byte_pairs(["low lower lowest", "low new"], 300)?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("a lower note")?)?, "a lower note");
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    #[doc(alias("BPE", "BpeTrainer", "train_from_iterator"))]
    pub fn learn_byte_pairs<T: AsRef<str>>(
        texts: impl IntoIterator<Item = T>,
        ids: usize,
    ) -> Result<Self, DataError> {
        let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
        if ids <= alphabet.len() {
            let what = format!("{ids} ids, and bytes and padding alone take {}", alphabet.len() + 1);
            return Err(DataError::Setting { setting: "tokenizer", what });
        }
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(ids)
            .min_frequency(2)
            .special_tokens(vec![AddedToken::from("[PAD]", true)])
            .initial_alphabet(alphabet)
            .build();
        let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
        let texts: Vec<String> = texts.into_iter().map(|text| text.as_ref().to_owned()).collect();
        let mut trainer = TrainerWrapper::BpeTrainer(trainer);
        tokenizer.train(&mut trainer, texts.into_iter()).map_err(DataError::other)?;
        Ok(Self(tokenizer))
    }

    /// Saves the tokenizer as a `tokenizer.json`, which [`open`](Self::open) and Hugging Face's libraries
    /// read. The file is replaced by a rename, so it is never there in part.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let text = self.0.to_string(true).map_err(DataError::other)?;
        replace(path.as_ref(), text.as_bytes())
    }

    /// Returns the number of ids, including special tokens: the number of rows of an embedding.
    pub fn len(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id of a token, such as `[PAD]`.
    pub fn id(&self, token: &str) -> Option<i32> {
        i32::try_from(self.0.token_to_id(token)?).ok()
    }

    /// Returns the ids of a text, with the special tokens that the tokenizer adds.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text, or an id is not an i32.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, DataError> {
        ids(&self.0.encode(text, true).map_err(DataError::other)?)
    }

    /// Returns up to `longest` ids of a text, with the special tokens that the tokenizer adds. A text that is
    /// too long loses its last tokens, but keeps the special ones (`truncation=True` of transformers).
    ///
    /// # Errors
    /// `longest` is not larger than the number of special tokens. Those of [`Tokenizer::encode`].
    #[doc(alias("truncation", "max_length", "TruncationParams"))]
    pub fn encode_within(&self, text: &str, longest: usize) -> Result<Vec<i32>, DataError> {
        let special = self.0.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        if longest <= special {
            let what = format!("{longest} ids leave no room for a text next to {special} special tokens");
            return Err(DataError::Setting { setting: "longest", what });
        }
        // The crate itself truncates by a setting of the tokenizer, for which it would have to be copied.
        let mut encoding = self.0.encode(text, false).map_err(DataError::other)?;
        encoding.truncate(longest - special, 0, TruncationDirection::Right);
        ids(&self.0.post_process(encoding, None, true).map_err(DataError::other)?)
    }

    /// Returns the text of some ids, without special tokens.
    ///
    /// # Errors
    /// An id is negative, or the tokenizer cannot decode the ids.
    pub fn decode(&self, ids: &[i32]) -> Result<String, DataError> {
        let ids: Vec<u32> =
            ids.iter().map(|id| u32::try_from(*id).map_err(DataError::other)).collect::<Result<_, _>>()?;
        self.0.decode(&ids, true).map_err(DataError::other)
    }

    /// Creates a source of texts with their classes: "x" with `longest` ids, "length" and "y". Longer texts
    /// are cut off, except for the special tokens at their end, as by [`Tokenizer::encode_within`]. Shorter
    /// ones are padded with the id of `[PAD]` or `<pad>`, or else with 0.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_within`] and of [`Sequences::labelled`].
    pub fn sequences<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
        labels: impl Into<Vec<i32>>,
        longest: usize,
    ) -> Result<Sequences, DataError> {
        let ids = texts.into_iter().map(|text| self.encode_within(text.as_ref(), longest));
        let padding = self.id("[PAD]").or_else(|| self.id("<pad>")).unwrap_or(0);
        Sequences::labelled(ids.collect::<Result<Vec<_>, _>>()?, labels, padding)?.pad_to(longest)
    }

    /// Creates a source for a language model from a text file, gzipped or not: "x" with `context` ids, and
    /// "y" with the id after each of them. [`Tokens`] says how the text is cut.
    ///
    /// The whole text is encoded at once and held in memory, with four bytes for each id. Split what is too
    /// large for that into files of ids, and open them with [`Tokens::open`].
    ///
    /// # Errors
    /// The file cannot be read or is not UTF-8. Those of [`Tokenizer::encode`]. The text has no window of
    /// `context` ids and one more.
    pub fn windows(&self, path: impl AsRef<Path>, context: usize) -> Result<Tokens, DataError> {
        let path = path.as_ref();
        let ids = self.encode(&text(path)?)?;
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Tokens::in_memory(&path.display().to_string(), bytes, Width::U32, context)
    }
}

/// Returns the ids of an encoding.
fn ids(encoding: &Encoding) -> Result<Vec<i32>, DataError> {
    encoding.get_ids().iter().map(|id| i32::try_from(*id).map_err(DataError::other)).collect()
}

/// Reads a text file, gzipped or not.
fn text(path: &Path) -> Result<String, DataError> {
    let io = |cause| DataError::Io { path: path.into(), cause };
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes).map_err(io)?;
    if is_gzipped(&bytes) {
        let packed = std::mem::take(&mut bytes);
        unpacked(path, &*packed)?.read_to_end(&mut bytes).map_err(io)?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        DataError::format(path, format!("it is not a text in UTF-8: byte {at} is none"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null, "model": {"type": "WordLevel",
        "vocab": {"[PAD]": 0, "[UNK]": 1, "a": 2, "good": 3, "film": 4}, "unk_token": "[UNK]"}}"#;

    /// By hand: "low" comes 4 times, so that its pairs are joined first; ties go to the smaller ids.
    #[test]
    fn byte_pairs_are_learned_alike_from_texts_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a.json", "b.json"].map(|name| dir.path().join(name));
        let texts = ["low lower lowest", "low new newer", "Grüße, 漢字!"];
        let tokenizer = Tokenizer::learn_byte_pairs(texts, 270).unwrap();
        assert!(tokenizer.len() > 257 && tokenizer.len() <= 270, "{}", tokenizer.len());
        assert_eq!(tokenizer.id("[PAD]"), Some(0));
        assert!(tokenizer.id("low").is_some(), "the most frequent run of letters is a token");
        for text in ["low", "anything: 漢 \t\n", ""] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
        }
        assert_eq!(tokenizer.encode("low").unwrap().len(), 1);
        let bytes = |tokenizer: &Tokenizer, path: &Path| {
            tokenizer.save(path).unwrap();
            std::fs::read(path).unwrap()
        };
        let saved = bytes(&tokenizer, &path);
        for _ in 0..4 {
            let backwards = Tokenizer::learn_byte_pairs(texts.into_iter().rev(), 270).unwrap();
            assert_eq!(bytes(&backwards, &other), saved);
        }
        let opened = Tokenizer::open(&path).unwrap();
        assert_eq!(opened.encode("a newer low").unwrap(), tokenizer.encode("a newer low").unwrap());
        let source = opened.sequences(["low low", "x"], [0, 1], 4).unwrap();
        assert_eq!(source.fetch(1).unwrap().field("x").unwrap().values.as_i32().unwrap()[1], 0);
        let error = Tokenizer::learn_byte_pairs(texts, 256).err().unwrap().to_string();
        assert_eq!(error, "tokenizer: 256 ids, and bytes and padding alone take 257");
    }

    #[test]
    fn a_text_is_cut_into_windows() {
        let dir = tempfile::tempdir().unwrap();
        let [words, path] = ["words.json", "text.txt"].map(|name| dir.path().join(name));
        std::fs::write(&words, WORDS).unwrap();
        let tokenizer = Tokenizer::open(&words).unwrap();
        std::fs::write(&path, "a good film a film\ngood").unwrap();
        let windows = tokenizer.windows(&path, 2).unwrap();
        let of = |index, name| {
            let sample = windows.fetch(index).unwrap();
            sample.field(name).unwrap().values.as_i32().unwrap().to_vec()
        };
        assert_eq!(windows.len(), 2);
        assert_eq!([of(0, "x"), of(0, "y"), of(1, "x"), of(1, "y")], [[2, 3], [3, 4], [4, 2], [2, 4]]);
        #[cfg(feature = "gzip")]
        {
            let packed = std::fs::File::create(dir.path().join("text.gz")).unwrap();
            let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
            std::io::Write::write_all(&mut packed, b"a good film a film\ngood").unwrap();
            packed.finish().unwrap();
            let same = tokenizer.windows(dir.path().join("text.gz"), 2).unwrap();
            assert_eq!(same.fetch(1).unwrap(), windows.fetch(1).unwrap());
        }
        let problem = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            tokenizer.windows(&path, 2).unwrap_err().to_string()
        };
        assert!(problem(b"a \xff film").ends_with("text.txt: it is not a text in UTF-8: byte 2 is none"));
        assert!(problem(b"a film").ends_with("text.txt: 2 tokens hold no window of 2 and a target"));
        assert!(tokenizer.windows(dir.path().join("none"), 2).unwrap_err().to_string().contains("none"));
    }

    /// The ids are those of the crate's own truncation, which transformers uses.
    #[test]
    fn texts_that_are_too_long_keep_their_special_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let words = WORDS.replace(r#""film": 4"#, r#""film": 4, "[CLS]": 5, "[SEP]": 6"#);
        let bert =
            r#""post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 6], "cls": ["[CLS]", 5]}"#;
        let template = r#""post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"[SEP]": {"id": "[SEP]", "ids": [6], "tokens": ["[SEP]"]}}}"#;
        let text = "a good film a good film";
        for (processor, special) in [(r#""post_processor": null"#, 0), (bert, 2), (template, 1)] {
            std::fs::write(&path, words.replace(r#""post_processor": null"#, processor)).unwrap();
            let tokenizer = Tokenizer::open(&path).unwrap();
            let whole = tokenizer.encode(text).unwrap();
            assert_eq!(whole.len(), 6 + special);
            for longest in special + 1..10 {
                let mut other = tokenizer.0.clone();
                let limit = tokenizers::TruncationParams { max_length: longest, ..Default::default() };
                other.with_truncation(Some(limit)).unwrap();
                let expected = ids(&other.encode(text, true).unwrap()).unwrap();
                let found = tokenizer.encode_within(text, longest).unwrap();
                assert_eq!(found, expected, "{special} special tokens, up to {longest} ids");
                assert_eq!(found.len(), longest.min(whole.len()));
                assert_eq!(found.ends_with(&[6]), special > 0, "{found:?}");
            }
            for longest in 0..=special {
                let error = tokenizer.encode_within(text, longest).unwrap_err().to_string();
                let expected = format!(
                    "longest: {longest} ids leave no room for a text next to {special} special tokens"
                );
                assert_eq!(error, expected);
                assert!(tokenizer.sequences([text], [0], longest).is_err_and(|e| e.to_string() == error));
            }
        }
        // [SEP] is the last id of every text, and all texts have the same length in every source.
        std::fs::write(&path, words.replace(r#""post_processor": null"#, bert)).unwrap();
        let tokenizer = Tokenizer::open(&path).unwrap();
        let x = |texts: [&str; 2]| {
            let source = tokenizer.sequences(texts, [1, 0], 5).unwrap();
            [0, 1].map(|at| source.fetch(at).unwrap().field("x").unwrap().values.as_i32().unwrap().to_vec())
        };
        assert_eq!(x([text, "film"]), [[5, 2, 3, 4, 6], [5, 4, 6, 0, 0]]);
        assert_eq!(x(["", "film"]), [[5, 6, 0, 0, 0], [5, 4, 6, 0, 0]]);
    }

    #[test]
    fn texts_become_padded_ids() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, WORDS).unwrap();
        let tokenizer = Tokenizer::open(&path).unwrap();
        assert_eq!((tokenizer.len(), tokenizer.id("film")), (5, Some(4)));
        assert_eq!(tokenizer.encode("A good play").unwrap(), [2, 3, 1]);
        assert_eq!(tokenizer.decode(&[3, 4]).unwrap(), "good film");
        let texts = tokenizer.sequences(["a film", "good good good good", "film"], [1, 0, 1], 3).unwrap();
        assert_eq!(texts.lengths(), [2, 3, 1]);
        let first = texts.fetch(0).unwrap();
        assert_eq!(first.field("x").unwrap().values.as_i32().unwrap(), [2, 4, 0]);
        // What a file says of padding would count as text.
        let padded = WORDS.replace(
            r#""truncation": null, "padding": null"#,
            r#""truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[PAD]"}"#,
        );
        std::fs::write(&path, padded).unwrap();
        assert_eq!(Tokenizer::open(&path).unwrap().encode("A good play").unwrap(), [2, 3, 1]);
        std::fs::write(&path, "{}").unwrap();
        assert!(Tokenizer::open(&path).is_err_and(|error| error.to_string().contains("tokenizer.json")));
    }
}
