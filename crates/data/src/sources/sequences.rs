//! Sequences of different lengths, in memory.

use std::ops::Range;

use crate::{
    ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source, Values,
};

/// Sequences of i32 with their classes: "x", padded at its end to the longest sequence, "length", and "y".
/// With [`Buckets`](crate::Buckets) over [`lengths`](Self::lengths), batches are cut to the length of their
/// bucket.
#[derive(Clone, Debug)]
pub struct Sequences {
    values: Vec<i32>,
    /// The index in `values` at which each sequence ends.
    ends: Vec<usize>,
    labels: Vec<i32>,
    padding: i32,
    /// What the ids stand for, where that is known.
    terms: Option<Vec<String>>,
    specs: Vec<FieldSpec>,
}

impl Sequences {
    /// Creates a source of sequences, each with its class. `padding` fills the elements after the end of a
    /// sequence.
    ///
    /// # Errors
    /// The number of labels is not the number of sequences. All sequences are empty, or one has 2^32 elements
    /// or more.
    pub fn labelled<T: AsRef<[i32]>>(
        sequences: impl IntoIterator<Item = T>,
        labels: impl Into<Vec<i32>>,
        padding: i32,
    ) -> Result<Self, DataError> {
        let (mut values, mut ends, labels) = (Vec::new(), Vec::new(), labels.into());
        let mut longest = 0;
        for sequence in sequences {
            longest = longest.max(sequence.as_ref().len());
            values.extend_from_slice(sequence.as_ref());
            ends.push(values.len());
        }
        if ends.len() != labels.len() {
            return Err(DataError::field(
                "y",
                format!("{} labels for {} sequences", labels.len(), ends.len()),
            ));
        }
        if longest == 0 || u32::try_from(longest).is_err() {
            return Err(DataError::field("x", format!("the longest sequence has {longest} elements")));
        }
        let spec = |name: &str, shape| FieldSpec { name: name.into(), dtype: FieldDType::I32, shape };
        let specs = vec![spec("x", vec![longest]), spec("length", vec![]), spec("y", vec![])];
        Ok(Self { values, ends, labels, padding, terms: None, specs })
    }

    /// Pads to this length instead of the length of the longest sequence, so that sources from several files
    /// have the same shape.
    ///
    /// # Errors
    /// A sequence is longer, or the length is 2^32 or more.
    pub fn pad_to(mut self, length: usize) -> Result<Self, DataError> {
        let longest = self.specs[0].shape[0];
        if length < longest {
            return Err(DataError::field("x", format!("a sequence of {longest} is longer than {length}")));
        }
        if u32::try_from(length).is_err() {
            return Err(DataError::field(
                "x",
                format!("{length} elements are too many to pad a sequence to"),
            ));
        }
        self.specs[0].shape[0] = length;
        Ok(self)
    }

    /// Says what the ids stand for, from 0. A trainer compares it between its training and validation data.
    pub(crate) fn named(mut self, terms: Vec<String>) -> Self {
        self.terms = Some(terms);
        self
    }

    /// Returns the length of each sequence.
    pub fn lengths(&self) -> Vec<u32> {
        let starts = std::iter::once(&0).chain(&self.ends);
        self.ends.iter().zip(starts).map(|(end, start)| (end - start) as u32).collect()
    }
}

impl Source for Sequences {
    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let at = usize::try_from(index).ok().filter(|&at| at < self.ends.len());
        let at = at.ok_or(DataError::Index { index, len: self.len() })?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut x = self.values[start..self.ends[at]].to_vec();
        let length = x.len() as i32;
        x.resize(self.specs[0].shape[0], self.padding);
        Ok(Sample::new()
            .with(self.specs[0].name.clone(), Field::i32(self.specs[0].shape.clone(), x))
            .with(self.specs[1].name.clone(), Field::i32([], [length]))
            .with(self.specs[2].name.clone(), Field::i32([], [self.labels[at]])))
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        self.terms.as_deref().filter(|_| field == "x")
    }

    /// Covers the contents as well.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs).word(self.padding as u64);
        let hash = self.ends.iter().fold(hash, |hash, &end| hash.word(end as u64));
        hash.values(&Values::I32(self.labels.clone())).values(&Values::I32(self.values.clone())).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        hash.i32s(&[self.padding]);
        for index in samples {
            hash.sample(&self.fetch(index)?);
        }
        Ok(())
    }
}
