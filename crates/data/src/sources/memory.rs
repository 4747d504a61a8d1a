//! Samples in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::sample::field::elements;
use crate::{ContentHash, Coverage, DataError, Field, FieldSpec, Fingerprint, Sample, Source, Values};

/// The number of samples that are compared to find windows of a series.
const WINDOWS: usize = 4;
/// The fewest steps that two windows have in common.
const LEAST_COMMON: usize = 4;
/// The most steps between the starts of two windows.
const MOST_SHIFT: usize = 16;

/// Arrays in memory (PyTorch's `TensorDataset`, Keras's `from_tensor_slices`): one contiguous array for each
/// field, sample after sample.
///
/// ```
/// use unisono_data::{Memory, Source};
///
/// let xor = Memory::labelled([0., 0., 0., 1., 1., 0., 1., 1.], [2], [0, 1, 1, 0])?;
/// assert_eq!(xor.len(), 4);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("TensorDataset", "from_tensor_slices"))]
#[derive(Clone, Debug)]
pub struct Memory {
    len: usize,
    specs: Vec<FieldSpec>,
    /// The array of each field.
    arrays: Vec<Values>,
    /// The names of the classes of fields, where they are known.
    classes: BTreeMap<String, Vec<String>>,
    notes: Vec<String>,
}

impl Memory {
    /// Creates a source with one field. `values` has the samples one after another, each of `shape`.
    ///
    /// # Errors
    /// The shape has no elements, or the values are not a whole number of samples.
    pub fn new(
        name: impl Into<Arc<str>>,
        shape: impl Into<Vec<usize>>,
        values: Values,
    ) -> Result<Self, DataError> {
        let spec = FieldSpec { name: name.into(), dtype: values.dtype(), shape: shape.into() };
        let len = sample_count(&spec, &values)?;
        Ok(Self { len, specs: vec![spec], arrays: vec![values], classes: BTreeMap::new(), notes: vec![] })
    }

    /// Adds a field with the same number of samples.
    ///
    /// # Errors
    /// Those of [`Memory::new`]. The number of samples differs, or the name is taken.
    pub fn with(
        mut self,
        name: impl Into<Arc<str>>,
        shape: impl Into<Vec<usize>>,
        values: Values,
    ) -> Result<Self, DataError> {
        let spec = FieldSpec { name: name.into(), dtype: values.dtype(), shape: shape.into() };
        let len = sample_count(&spec, &values)?;
        if len != self.len {
            let what = format!("{len} samples, but '{}' has {}", self.specs[0].name, self.len);
            return Err(DataError::field(&spec.name, what));
        }
        if self.specs.iter().any(|other| other.name == spec.name) {
            return Err(DataError::field(&spec.name, "there are two fields of this name"));
        }
        self.specs.push(spec);
        self.arrays.push(values);
        Ok(self)
    }

    /// Creates a source with features "x" of `shape`, and one class label "y" for each sample.
    ///
    /// # Errors
    /// Those of [`Memory::new`]. The number of labels is not the number of samples.
    pub fn labelled(
        features: impl Into<Vec<f32>>,
        shape: impl Into<Vec<usize>>,
        labels: impl Into<Vec<i32>>,
    ) -> Result<Self, DataError> {
        Self::new("x", shape, Values::F32(features.into()))?.with("y", [], Values::I32(labels.into()))
    }

    /// Names the classes that the numbers of an i32 field stand for, from 0. A trainer compares them with
    /// those of its other data. Default: they are not known.
    pub fn with_classes<C: Into<String>>(
        mut self,
        field: impl Into<String>,
        classes: impl IntoIterator<Item = C>,
    ) -> Self {
        self.classes.insert(field.into(), classes.into_iter().map(Into::into).collect());
        self
    }

    /// Adds what a user should know of how the data were read.
    #[cfg(feature = "csv")]
    pub(crate) fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    /// Returns a field of all samples, [samples, ...], without a copy.
    pub(crate) fn into_field(mut self, name: &str) -> Result<Field, DataError> {
        let at = self.specs.iter().position(|spec| *spec.name == *name);
        let at = at.ok_or_else(|| DataError::field(name, "no such field"))?;
        let shape = std::iter::once(self.len).chain(self.specs[at].shape.iter().copied()).collect();
        Ok(Field { shape, values: self.arrays.swap_remove(at) })
    }

    /// Returns the whole array of a field.
    pub fn array(&self, name: &str) -> Option<&Values> {
        let at = self.specs.iter().position(|spec| *spec.name == *name)?;
        self.arrays.get(at)
    }
}

impl Source for Memory {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let beyond = || DataError::Index { index, len: self.len() };
        if index >= self.len() {
            return Err(beyond());
        }
        let mut sample = Sample::new();
        for (spec, array) in self.specs.iter().zip(&self.arrays) {
            let size = array.len() / self.len;
            let start = index as usize * size;
            let values = array.slice(start..start + size).ok_or_else(beyond)?;
            sample.set(spec.name.clone(), Field { shape: spec.shape.clone(), values });
        }
        Ok(sample)
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        self.classes.get(field).map(Vec::as_slice)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Returns whether samples are windows of a series that were cut by hand: in a field of sequences, each
    /// of the first samples is the one before it, shifted by the same number of steps.
    fn overlaps(&self) -> bool {
        let is_series = |(spec, array): (&FieldSpec, &Values)| {
            let (Some(&steps), Values::F32(values)) = (spec.shape.first(), array) else { return false };
            let row = (values.len() / self.len.max(1)).max(1);
            let rows: Vec<&[f32]> = values.chunks_exact(row).take(WINDOWS).collect();
            let step = row / steps.max(1);
            let is_shifted = |by: usize| {
                rows.windows(2).all(|pair| pair[0][by * step..] == pair[1][..pair[1].len() - by * step])
            };
            let is_flat = || rows.iter().all(|row| row.iter().all(|x| *x == rows[0][0]));
            let last = steps.saturating_sub(LEAST_COMMON).min(MOST_SHIFT);
            rows.len() == WINDOWS && step > 0 && (1..=last).any(is_shifted) && !is_flat()
        };
        self.specs.iter().zip(&self.arrays).any(is_series)
    }

    /// Covers the contents as well.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs);
        self.arrays.iter().fold(hash, Fingerprint::values).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        for array in &self.arrays {
            let size = array.len() / self.len.max(1);
            let values = samples.start as usize * size..samples.end as usize * size;
            match array {
                Values::F32(all) => all.get(values).map(|values| hash.f32s(values)),
                Values::I32(all) => all.get(values).map(|values| hash.i32s(values)),
            }
            .ok_or(DataError::Index { index: samples.end, len: self.len() })?;
        }
        Ok(())
    }
}

/// Returns how many samples of `spec` the array holds. It is an error unless that is a whole number.
fn sample_count(spec: &FieldSpec, values: &Values) -> Result<usize, DataError> {
    match elements(&spec.shape) {
        Some(0) => Err(DataError::field(&spec.name, format!("shape {:?} has no elements", spec.shape))),
        Some(size) if values.len().is_multiple_of(size) => Ok(values.len() / size),
        _ => {
            let what = format!("{} values are not a whole number of shape {:?}", values.len(), spec.shape);
            Err(DataError::field(&spec.name, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_what_was_put_in() {
        let memory = Memory::labelled([1., 2., 3., 4., 5., 6.], [3, 1], [7, 8]).unwrap();
        let sample = memory.fetch(1).unwrap();
        assert_eq!(sample.field("x"), Some(&Field::f32([3, 1], [4., 5., 6.])));
        assert_eq!(sample.field("y"), Some(&Field::i32([], [8])));
        assert_eq!(sample.specs(), memory.fields());
        assert_eq!(memory.fetch(2).unwrap_err().to_string(), "sample 2: the source's length is 2");
        assert!(memory.fetch(u64::MAX).is_err());
    }

    #[test]
    fn arrays_must_fit() {
        let message = |result: Result<Memory, DataError>| result.unwrap_err().to_string();
        assert_eq!(
            message(Memory::labelled([1.; 5], [2], [0, 1])),
            "field 'x': 5 values are not a whole number of shape [2]"
        );
        assert_eq!(message(Memory::labelled([1.; 6], [2], [0, 1])), "field 'y': 2 samples, but 'x' has 3");
        assert_eq!(message(Memory::labelled([1.; 6], [0], [0])), "field 'x': shape [0] has no elements");
        let huge = Memory::labelled([1.; 6], [usize::MAX, 3], [0]);
        assert!(message(huge).contains("not a whole number"));
        let twice = Memory::labelled([1.], [1], [0]).unwrap().with("x", [1], Values::F32(vec![2.]));
        assert_eq!(message(twice), "field 'x': there are two fields of this name");
    }

    #[test]
    fn the_fingerprint_sees_contents_and_shapes() {
        let print =
            |x: [f32; 4], shape: &[usize], y: &[i32]| Memory::labelled(x, shape, y).unwrap().fingerprint();
        let base = print([1., 2., 3., 4.], &[2], &[0, 1]);
        assert_eq!(base, print([1., 2., 3., 4.], &[2], &[0, 1]));
        assert_ne!(base, print([1., 2., 4., 3.], &[2], &[0, 1]));
        assert_ne!(base, print([1., 2., 3., 4.], &[2, 1], &[0, 1]));
        assert_ne!(base, print([1., 2., 3., 4.], &[2], &[1, 0]));
        assert_ne!(base, print([1., 2., 3., -4.], &[2], &[0, 1]));
    }
}
