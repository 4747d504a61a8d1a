//! The content of a data set as hashes: which samples there are, value by value.

use sha2::{Digest, Sha256};

use crate::{FieldSpec, Sample, Values};

/// How the content of a data set takes part in a run's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Coverage {
    /// [`Source::hash_content`](crate::Source::hash_content) hashes every sample, once in a run and beside
    /// the training.
    Hashed,
    /// A name and a version, which the source's author changes when the samples change, stand for the
    /// content, beside the number of samples and the fields. It is for sources whose samples are computed, or
    /// are too slow to be read once more.
    Named(String),
    /// Nothing stands for the content: the run's identity says that the data are not covered.
    #[default]
    Unknown,
}

/// A SHA-256 that takes the values of samples.
#[derive(Clone, Debug, Default)]
pub struct ContentHash(Sha256);

impl ContentHash {
    /// Returns the hash of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes. Bytes of varying length should follow their length, given to [`word`](Self::word).
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        self.0.update(word.to_le_bytes());
    }

    /// Adds a text, after its length.
    pub fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    /// Adds f32 values by their bits, little-endian.
    pub fn f32s(&mut self, values: &[f32]) {
        self.words(bytemuck::cast_slice(values));
    }

    /// Adds i32 values, little-endian.
    pub fn i32s(&mut self, values: &[i32]) {
        self.words(bytemuck::cast_slice(values));
    }

    /// Adds the number of fields, and the name, type and shape of each.
    pub(crate) fn fields(&mut self, fields: &[FieldSpec]) {
        self.word(fields.len() as u64);
        for spec in fields {
            self.text(&spec.name);
            self.text(&spec.dtype.to_string());
            self.word(spec.shape.len() as u64);
            spec.shape.iter().for_each(|&extent| self.word(extent as u64));
        }
    }

    /// Adds a sample: each field's name, shape and values.
    pub fn sample(&mut self, sample: &Sample) {
        self.word(sample.fields().len() as u64);
        for (name, field) in sample.fields() {
            self.text(name);
            self.word(field.shape.len() as u64);
            field.shape.iter().for_each(|&extent| self.word(extent as u64));
            self.values(&field.values);
        }
    }

    /// Adds values after their type and number.
    pub fn values(&mut self, values: &Values) {
        self.text(&values.dtype().to_string());
        self.word(values.len() as u64);
        match values {
            Values::F32(values) => self.f32s(values),
            Values::I32(values) => self.i32s(values),
        }
    }

    /// Returns the 32 bytes.
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    fn words(&mut self, words: &[u32]) {
        if cfg!(target_endian = "little") {
            self.bytes(bytemuck::cast_slice(words));
        } else {
            words.iter().for_each(|word| self.bytes(&word.to_le_bytes()));
        }
    }
}
