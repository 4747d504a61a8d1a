//! Samples stacked into a batch, with their place in the run.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::sample::field::elements;
use crate::sample::part::Part;
use crate::{DataError, Field, FieldSpec, Position, Sample, Values};

/// Consecutive samples of one epoch, stacked field by field: each field has the shape [samples, ...],
/// contiguous and in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The epoch of all its samples.
    pub epoch: u32,
    /// The position of its first sample in the epoch. The others follow one by one, except for those skipped.
    pub first: u64,
    /// The number of this batch in its epoch, from 0. In an epoch that was started in the middle of a batch,
    /// it is the number of the batch that contains position `first` when the epoch is started at position 0.
    pub index_in_epoch: u64,
    /// The index of each sample in the source.
    pub indices: Vec<u64>,
    /// The index in the source of each bad sample left out, where
    /// [`Loader::skip_bad`](crate::Loader::skip_bad) allows it.
    pub skipped: Vec<u64>,
    /// The position in the epoch of each bad sample left out, ascending.
    pub gaps: Vec<u64>,
    /// The position after this batch, at which a resumed run continues.
    pub after: Position,
    /// The stacked fields: of all samples, or of those in [`Batch::rows`] where only a part was fetched.
    pub stacked: Sample,
    /// The part of the batch that was fetched. `None` means all samples.
    pub part: Option<Part>,
}

impl Batch {
    /// Creates a batch of stacked fields, each `[samples, ...]`, that come from no loader, for
    /// `Trainer::step`, `Trainer::predict_batch` and `Predictor::predict_batch`. Its samples are the first
    /// ones of epoch 0. For later ones, call [`starting_at`](Self::starting_at).
    ///
    /// # Errors
    /// There are no fields or no samples, the fields differ in their number of samples, or a field has not as
    /// many values as its shape says.
    ///
    /// ```
    /// use unisono_data::{Batch, Field, Sample};
    ///
    /// let fields = Sample::new().with("x", Field::f32([2, 3], [0.5; 6])).with("y", Field::i32([2], [1, 0]));
    /// let batch = Batch::of_fields(fields)?;
    /// assert_eq!((batch.len(), batch.f32("x")?.len()), (2, 6));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    #[doc(alias("from_tensors", "collate"))]
    pub fn of_fields(stacked: Sample) -> Result<Self, DataError> {
        let mut samples = None;
        for (name, field) in stacked.fields() {
            let Some(&rows) = field.shape.first().filter(|&&rows| rows > 0) else {
                let what =
                    format!("shape {:?} has no samples: the first axis is that of samples", field.shape);
                return Err(DataError::field(name, what));
            };
            let (first, expected) = samples.get_or_insert_with(|| (name.clone(), rows));
            if *expected != rows {
                let what = format!("{rows} samples, and {expected} of the field {first:?}");
                return Err(DataError::field(name, what));
            }
            if elements(&field.shape) != Some(field.values.len()) {
                let what = format!("{} values do not fill the shape {:?}", field.values.len(), field.shape);
                return Err(DataError::field(name, what));
            }
        }
        let none = || DataError::field("", "a batch needs at least one field");
        let samples = samples.ok_or_else(none)?.1 as u64;
        Ok(Self {
            epoch: 0,
            first: 0,
            index_in_epoch: 0,
            indices: (0..samples).collect(),
            skipped: Vec::new(),
            gaps: Vec::new(),
            after: Position { epoch: 0, sample: samples },
            stacked,
            part: None,
        })
    }

    /// Creates a batch of stacked fields, given with their names, as [`of_fields`](Self::of_fields) does.
    ///
    /// # Errors
    /// Those of [`of_fields`](Self::of_fields); two fields have one name.
    ///
    /// ```
    /// use unisono_data::{Batch, Field};
    ///
    /// let batch = Batch::of([("x", Field::f32([2, 3], [0.5; 6])), ("y", Field::i32([2], [1, 0]))])?;
    /// assert_eq!((batch.len(), batch.i32("y")?), (2, &[1, 0][..]));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn of<N: Into<Arc<str>>>(fields: impl IntoIterator<Item = (N, Field)>) -> Result<Self, DataError> {
        let mut stacked = Sample::new();
        for (name, field) in fields {
            let name = name.into();
            if stacked.field(&name).is_some() {
                return Err(DataError::field(&name, "there are two fields of this name"));
            }
            stacked.set(name, field);
        }
        Self::of_fields(stacked)
    }

    /// Returns a batch that comes from no loader with other positions of its samples in the epoch: `first`
    /// for the first one, and so on. The index of each sample in the source becomes its position, too. Errors
    /// name samples by it, and models that draw random numbers draw by it.
    ///
    /// ```
    /// use unisono_data::{Batch, Field};
    ///
    /// let batch = Batch::of([("x", Field::f32([2, 3], [0.5; 6]))])?.starting_at(32);
    /// assert_eq!((batch.first, &batch.indices[..], batch.after.sample), (32, &[32, 33][..], 34));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn starting_at(mut self, first: u64) -> Self {
        let place = |row: usize| first.saturating_add(row as u64);
        self.after = Position { epoch: self.epoch, sample: place(self.len()) };
        (self.first, self.indices) = (first, (0..self.len()).map(place).collect());
        (self.skipped, self.gaps) = (Vec::new(), Vec::new());
        self
    }

    /// Returns the rows of the batch that the stacked fields have: all of them, unless the loader fetches a
    /// part only ([`Loader::fetch_only`](crate::Loader::fetch_only)).
    pub fn rows(&self) -> Range<usize> {
        self.part.as_ref().map_or(0..self.len(), Part::rows)
    }

    /// Returns the batch with the fields of all its samples. It fetches them if only a part is there.
    ///
    /// # Errors
    /// A sample cannot be fetched or transformed.
    pub fn whole(&self) -> Result<Cow<'_, Self>, DataError> {
        match &self.part {
            Some(part) => Ok(Cow::Owned(part.fetch(0..self.len())?)),
            None => Ok(Cow::Borrowed(self)),
        }
    }

    /// Returns the number of samples. It is never zero, and less than the batch size only at the end of an
    /// epoch or of a bucket, or where bad samples were skipped.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns the position in the epoch of the sample in a row.
    pub fn position_of(&self, row: usize) -> u64 {
        let behind = |position, gap: &u64| position + u64::from(*gap <= position);
        self.gaps.iter().fold(self.first + row as u64, behind)
    }

    /// Returns the stacked field of a name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.stacked.field(name)
    }

    /// Returns all stacked fields with their names, in order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, &Field)> {
        self.stacked.fields().map(|(name, field)| (&**name, field))
    }

    /// Returns the stacked elements of an f32 field.
    ///
    /// # Errors
    /// There is no field of this name, or it is of another type.
    pub fn f32(&self, name: &str) -> Result<&[f32], DataError> {
        let field = self.field(name).ok_or_else(|| DataError::field(name, "no such field"))?;
        field.values.as_f32().ok_or_else(|| DataError::field(name, "dtype i32, expected f32"))
    }

    /// Returns the stacked elements of an i32 field.
    ///
    /// # Errors
    /// There is no field of this name, or it is of another type.
    pub fn i32(&self, name: &str) -> Result<&[i32], DataError> {
        let field = self.field(name).ok_or_else(|| DataError::field(name, "no such field"))?;
        field.values.as_i32().ok_or_else(|| DataError::field(name, "dtype f32, expected i32"))
    }
}

impl Batch {
    /// Removes the samples for which `bad` is true.
    pub(crate) fn leave_out(&mut self, bad: impl Fn(u64) -> bool) {
        let keep: Vec<bool> = self.indices.iter().map(|&index| !bad(index)).collect();
        if keep.iter().all(|&keep| keep) {
            return;
        }
        let gaps = (0..keep.len()).filter(|&row| !keep[row]).map(|row| self.position_of(row));
        let gaps: Vec<u64> = gaps.collect();
        self.gaps.extend(gaps);
        self.gaps.sort_unstable();
        self.skipped.extend(self.indices.iter().filter(|&&index| bad(index)));
        self.indices.retain(|&index| !bad(index));
        self.stacked.keep_rows(&keep);
    }
}

/// A batch being built, from samples of the same fields.
pub(crate) struct Stack {
    specs: Vec<FieldSpec>,
    arrays: Vec<Values>,
    samples: usize,
}

impl Stack {
    /// Returns an empty stack with memory for some samples. The arrays of `spare`, a batch no longer needed,
    /// are used again where they fit. It is an error if the memory cannot be had.
    pub fn new(specs: &[FieldSpec], samples: usize, mut spare: Sample) -> Result<Self, DataError> {
        let mut array = |spec: &FieldSpec| {
            let room = elements(&spec.shape).and_then(|size| size.checked_mul(samples));
            let old = spare.remove(&spec.name).map(|field| field.values);
            room.and_then(|room| Values::with_capacity(spec.dtype, room, old)).ok_or_else(|| {
                let what = format!("no memory for {samples} samples of shape {:?}", spec.shape);
                DataError::field(&spec.name, what)
            })
        };
        let arrays = specs.iter().map(&mut array).collect::<Result<_, _>>()?;
        Ok(Self { specs: specs.to_vec(), arrays, samples: 0 })
    }

    /// Adds a sample. It must have been checked to have these fields.
    pub fn push(&mut self, sample: &Sample) {
        for ((array, spec), (name, field)) in self.arrays.iter_mut().zip(&self.specs).zip(sample.fields()) {
            // In a bucket the batch holds only the front of each sample; everywhere else that is the whole
            // sample.
            let fits = array.append_first(&field.values, elements(&spec.shape).unwrap_or(0));
            debug_assert!(fits, "field '{name}' was checked");
        }
        self.samples += 1;
    }

    /// Returns the stacked fields.
    pub fn finish(self) -> Sample {
        let mut stacked = Sample::new();
        for (spec, values) in self.specs.into_iter().zip(self.arrays) {
            let shape = std::iter::once(self.samples).chain(spec.shape).collect();
            stacked.set(spec.name, Field { shape, values });
        }
        stacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_named_fields_is_that_of_a_sample_of_them() {
        let x = || Field::f32([2, 3], [0.5; 6]);
        let labels = || Field::i32([2], [1, 0]);
        let batch = Batch::of([("x", x()), ("y", labels())]).unwrap();
        assert_eq!(batch, Batch::of_fields(Sample::new().with("x", x()).with("y", labels())).unwrap());
        let error = |result: Result<Batch, DataError>| result.unwrap_err().to_string();
        assert_eq!(
            error(Batch::of([("x", x()), ("x", labels())])),
            "field 'x': there are two fields of this name"
        );
        assert!(error(Batch::of([("x", x()), ("y", Field::i32([3], [1, 0, 2]))])).contains("3 samples"));
        assert!(error(Batch::of(Vec::<(String, Field)>::new())).contains("at least one field"));
    }
}
