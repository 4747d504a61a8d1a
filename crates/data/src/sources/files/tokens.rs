//! Tokens: text as bytes, or files of tokens, cut into windows with the next token as the target.

use std::ops::Range;
use std::path::Path;

use super::element::Floats;
use super::{Bytes, Element};
use crate::sources::budget::{Budget, DECODED_BYTES, collect, row_bytes};
use crate::{
    ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source, Values,
};

/// The width in which a token is stored: a byte of text, or a little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Width {
    /// One byte: any text is its own tokens, 0 to 255.
    U8,
    /// Two bytes a token.
    U16,
    /// Four bytes a token, whose values must fit an i32.
    U32,
}

/// Windows of a file of tokens: "x", `context` tokens as i32, and "y", the token after each of them.
///
/// Windows start `stride` tokens apart. By default that is their length, so that together they predict every
/// token but the first once. A tail too short for a window is left out. A file is not loaded: each window is
/// one read by position, so a corpus larger than memory costs no memory.
///
/// ```
/// use unisono_data::{Field, Source, Tokens, Width};
/// # let file = tempfile::NamedTempFile::new().unwrap();
/// # std::fs::write(file.path(), "to be or not").unwrap();
/// # let path = file.path();
/// let text = Tokens::open(path, Width::U8, 4)?;
/// assert_eq!(text.len(), 2);
/// let sample = text.fetch(1)?;
/// assert_eq!(sample.field("x"), Some(&Field::i32([4], b"e or".map(i32::from))));
/// assert_eq!(sample.field("y"), Some(&Field::i32([4], b" or ".map(i32::from))));
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokens {
    bytes: Bytes,
    element: Element,
    context: u64,
    stride: u64,
    /// The vocabulary: one above the largest token there may be.
    vocabulary: Option<i32>,
    /// The most bytes that reading a window may take.
    most: u64,
    specs: Vec<FieldSpec>,
}

impl Tokens {
    /// Opens a file as windows of `context` tokens.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file; its bytes are not a whole number of tokens, or hold
    /// no window of `context` and a target; `context` is 0.
    pub fn open(path: impl AsRef<Path>, width: Width, context: usize) -> Result<Self, DataError> {
        Self::new(Bytes::open(path.as_ref())?, width, context)
    }

    /// Takes tokens in memory, such as a text that was unpacked, as windows of `context` tokens. Errors call
    /// them `name`.
    ///
    /// # Errors
    /// The bytes are not a whole number of tokens, or hold no window of `context` and a target; `context` is
    /// 0.
    pub fn in_memory(name: &str, tokens: Vec<u8>, width: Width, context: usize) -> Result<Self, DataError> {
        Self::new(Bytes::held(Path::new(name), tokens), width, context)
    }

    fn new(bytes: Bytes, width: Width, context: usize) -> Result<Self, DataError> {
        let element = match width {
            Width::U8 => Element::U8,
            Width::U16 => Element::U16,
            Width::U32 => Element::U32,
        };
        let size = element.bytes() as u64;
        if !bytes.len().is_multiple_of(size) {
            let what = format!("{} bytes are not a whole number of tokens of {size}", bytes.len());
            return Err(DataError::format(bytes.path(), what));
        }
        let tokens = bytes.len() / size;
        if context == 0 || context as u64 >= tokens {
            let what = format!("{tokens} tokens hold no window of {context} and a target");
            return Err(DataError::format(bytes.path(), what));
        }
        let spec = |name: &str| FieldSpec { name: name.into(), dtype: FieldDType::I32, shape: vec![context] };
        let context = context as u64;
        Ok(Self {
            bytes,
            element,
            context,
            stride: context,
            vocabulary: None,
            most: DECODED_BYTES,
            specs: vec![spec("x"), spec("y")],
        })
    }

    /// Sets how many tokens lie between the starts of two windows, at least one. Default: `context`.
    pub fn stride(self, tokens: usize) -> Self {
        Self { stride: tokens.max(1) as u64, ..self }
    }

    /// Sets a vocabulary: tokens that are not below it are refused. Default: none are.
    pub fn vocabulary(self, tokens: i32) -> Self {
        Self { vocabulary: Some(tokens), ..self }
    }

    /// Sets the most bytes that reading one window may take: its bytes in the file, and its tokens three
    /// times, as they are decoded and as "x" and "y". Default: [`DECODED_BYTES`]. A larger window is an
    /// error.
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Returns the number of tokens that the file holds.
    pub fn tokens(&self) -> u64 {
        self.bytes.len() / self.element.bytes() as u64
    }
}

impl Source for Tokens {
    fn len(&self) -> u64 {
        (self.tokens() - 1 - self.context) / self.stride + 1
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    /// Windows overlap if their starts are closer than their length.
    fn overlaps(&self) -> bool {
        self.stride < self.context
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let size = self.element.bytes() as u64;
        let budget = Budget { most: self.most, setting: "Tokens::most_bytes" };
        budget.check(self.bytes.path(), "a window", row_bytes(self.context + 1, size + 8))?;
        let bytes = self.bytes.to_vec(index * self.stride * size, (self.context + 1) * size)?;
        let Values::I32(tokens) = self.element.decode(&bytes, false, FieldDType::I32, Floats::default())?
        else {
            return Err(DataError::other("tokens are whole numbers"));
        };
        if let Some(limit) = self.vocabulary
            && let Some(token) = tokens.iter().find(|&&token| token >= limit)
        {
            return Err(DataError::other(format!("token {token} in a vocabulary of {limit}")));
        }
        let context = self.context as usize;
        let part = |part: &[i32]| collect(self.bytes.path(), part.iter().copied());
        Ok(Sample::new()
            .with(self.specs[0].name.clone(), Field::i32([context], part(&tokens[..context])?))
            .with(self.specs[1].name.clone(), Field::i32([context], part(&tokens[1..])?)))
    }

    fn describe(&self, index: u64) -> String {
        format!("{}: token {}", self.bytes.path().display(), index.saturating_mul(self.stride))
    }

    /// Covers the contents: all of them up to 64 MiB, evenly spaced blocks of a larger file.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs).word(self.stride);
        self.bytes.fingerprint(hash.clone()).unwrap_or(hash).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    /// Hashes the tokens from the first window to the end of the last.
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        let size = self.element.bytes() as u64;
        [size, self.context, self.stride].into_iter().for_each(|word| hash.word(word));
        let Some(last) = samples.end.checked_sub(1).filter(|&last| last < self.len()) else {
            return Err(DataError::Index { index: samples.end, len: self.len() });
        };
        let [start, end] = [samples.start * self.stride, last * self.stride + self.context + 1];
        self.bytes.hash(start * size, (end - start) * size, hash)
    }
}
