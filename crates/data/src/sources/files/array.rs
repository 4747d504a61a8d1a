//! Arrays in files, whose first axis counts the samples.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::element::{Floats, check_scale};
#[cfg(feature = "zip")]
use super::npz;
use super::{Bytes, Element, idx, npy, safetensors};
use crate::sample::field::elements;
use crate::sources::budget::{Budget, DECODED_BYTES, row_bytes};
use crate::{
    ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source, Values,
};

/// An array in a file. Rows are read on demand; only a compressed file is unpacked into memory.
#[derive(Clone, Debug)]
pub struct Array {
    bytes: Bytes,
    element: Element,
    big_endian: bool,
    /// The first axis counts samples.
    shape: Vec<usize>,
    dtype: FieldDType,
    /// The most bytes that reading a row may take.
    most: u64,
    floats: Floats,
}

impl Array {
    /// Opens an IDX file (MNIST's format), gzipped or not, of any rank. A gzipped one may unpack to at most
    /// [`DECODED_BYTES`].
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file; it is not an IDX file, or holds more or fewer bytes
    /// than its header declares; a gzipped one declares more than [`DECODED_BYTES`], or the build is without
    /// the feature `gzip`; a scalar, or samples without elements.
    pub fn idx(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::idx_within(path, DECODED_BYTES)
    }

    /// Opens an IDX file as [`idx`](Self::idx) does. A gzipped file may unpack to at most `most_bytes`.
    ///
    /// # Errors
    /// Those of [`idx`](Self::idx), with another limit.
    pub fn idx_within(path: impl AsRef<Path>, most_bytes: u64) -> Result<Self, DataError> {
        idx::read(path.as_ref(), most_bytes)
    }

    /// Opens a NumPy `.npy` file in C order.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file; it is not a `.npy` file of version 1, 2 or 3, is in
    /// Fortran order, has elements of another kind than an [`Element`], holds more or fewer bytes than its
    /// shape takes, or is a scalar; samples without elements.
    pub fn npy(path: impl AsRef<Path>) -> Result<Self, DataError> {
        npy::read(Bytes::open(path.as_ref())?)
    }

    /// Opens the array of a name in a NumPy `.npz` file, compressed or not. Needs the feature `zip`.
    ///
    /// The archive's checksum of the array is checked, for which the array is read once. A compressed array
    /// may unpack to at most [`DECODED_BYTES`].
    ///
    /// # Errors
    /// Those of [`npy`](Self::npy) for the array; the archive is damaged, has no array of this name or two,
    /// or its checksum is another; a compressed array takes more than [`DECODED_BYTES`].
    #[cfg(feature = "zip")]
    pub fn npz(path: impl AsRef<Path>, name: &str) -> Result<Self, DataError> {
        Self::npz_within(path, name, DECODED_BYTES)
    }

    /// Opens an array of a `.npz` file as [`npz`](Self::npz) does. A compressed array may unpack to at most
    /// `most_bytes`.
    ///
    /// # Errors
    /// Those of [`npz`](Self::npz), with another limit.
    #[cfg(feature = "zip")]
    pub fn npz_within(path: impl AsRef<Path>, name: &str, most_bytes: u64) -> Result<Self, DataError> {
        npz::read(path.as_ref(), name, most_bytes)
    }

    /// Opens the tensor of a name in a safetensors file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file; it is not a safetensors file, or has no tensor of
    /// this name; the tensor has elements of another kind than an [`Element`], or is a scalar; samples
    /// without elements.
    pub fn safetensors(path: impl AsRef<Path>, name: &str) -> Result<Self, DataError> {
        safetensors::read(path.as_ref(), name)
    }

    /// Checks an array's description: `bytes` must be exactly as many as the shape's elements take, and the
    /// shape must have a first axis.
    pub(crate) fn new(
        bytes: Bytes,
        element: Element,
        big_endian: bool,
        shape: Vec<usize>,
    ) -> Result<Self, DataError> {
        let path = bytes.path();
        let wrong = |what: String| Err(DataError::format(path, what));
        let Some((_, row)) = shape.split_first() else { return wrong("a scalar has no samples".into()) };
        if elements(row) == Some(0) {
            return wrong(format!("shape {shape:?}: a sample has no elements"));
        }
        let size = elements(&shape).and_then(|count| count.checked_mul(element.bytes()));
        if size.map(|size| size as u64) != Some(bytes.len()) {
            return wrong(format!("shape {shape:?} of {element:?} does not take {} bytes", bytes.len()));
        }
        Ok(Self {
            bytes,
            element,
            big_endian,
            shape,
            dtype: element.dtype(),
            most: DECODED_BYTES,
            floats: Floats::default(),
        })
    }

    /// Reads the elements as values of another type: floating-point elements only as f32, whole numbers as
    /// either.
    ///
    /// # Errors
    /// Floating-point elements are to be read as i32.
    pub fn cast(mut self, dtype: FieldDType) -> Result<Self, DataError> {
        if dtype == FieldDType::I32 && self.element.dtype() == FieldDType::F32 {
            let what = format!("{:?} elements cannot be read as i32", self.element);
            return Err(DataError::format(self.bytes.path(), what));
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// Reads the elements as (element - offset) / scale, computed in f64 and rounded to f32 once. Times and
    /// other numbers that are large and close to each other keep their differences so. Reading a row is an
    /// error if the offset or the scale is not finite, or the scale is 0.
    pub fn scaled(mut self, offset: f64, scale: f64) -> Self {
        (self.dtype, self.floats.scale) = (FieldDType::F32, Some((offset, scale)));
        self
    }

    /// Rounds elements that f32 does not hold to the nearest number that it does, as PyTorch's `float()`.
    /// Default: such an element is an error: a whole number beyond 2^24 that f32 does not represent, and an
    /// f64 beyond 2^24 or out of the range of f32.
    pub fn rounded(mut self) -> Self {
        self.floats.rounds = true;
        self
    }

    /// Sets the most bytes that reading one row may take: its bytes in the file, and its values. Default:
    /// [`DECODED_BYTES`]. A larger row is an error: a file with holes may be longer than any memory.
    pub fn most_row_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Returns all extents, the samples' first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the type of the elements in the file.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Returns the values of one row.
    ///
    /// # Errors
    /// [`DataError::Index`] beyond the last row; the file cannot be read; the row takes more than
    /// [`most_row_bytes`](Self::most_row_bytes); a whole number does not fit an i32, or f32 does not hold a
    /// number, unless the array is [`rounded`](Self::rounded); an offset or a scale cannot be used
    /// ([`scaled`](Self::scaled)).
    pub fn row(&self, index: u64) -> Result<Values, DataError> {
        let (count, row) = self.shape.split_first().map_or((0, &[][..]), |(&count, row)| (count as u64, row));
        if index >= count {
            return Err(DataError::Index { index, len: count });
        }
        if let Some(scale) = self.floats.scale {
            let wrong = |what| DataError::Setting { setting: "Array::scaled", what };
            check_scale(scale).map_err(wrong)?;
        }
        // The shape was checked against the file's length.
        let elements = elements(row).unwrap_or(0) as u64;
        let size = elements * self.element.bytes() as u64;
        let budget = Budget { most: self.most, setting: "Array::most_row_bytes" };
        budget.check(self.bytes.path(), "a row", row_bytes(elements, self.element.bytes() as u64))?;
        let bytes = self.bytes.to_vec(index * size, size)?;
        let values = self.element.decode(&bytes, self.big_endian, self.dtype, self.floats);
        values.map_err(|error| DataError::format(self.bytes.path(), format!("row {index}: {error}")))
    }

    /// Adds the bytes of rows to a hash, and how they are read.
    fn hash(&self, rows: &Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        let row = self.shape.get(1..).and_then(elements).unwrap_or(0);
        let size = (row * self.element.bytes()) as u64;
        hash.text(&format!("{:?} {} as {}", self.element, self.big_endian, self.dtype));
        if let Some((offset, scale)) = self.floats.scale {
            hash.text(&format!("less {offset:?} over {scale:?}"));
        }
        self.bytes.hash(rows.start.saturating_mul(size), (rows.end - rows.start).saturating_mul(size), hash)
    }

    fn spec(&self, name: Arc<str>) -> FieldSpec {
        FieldSpec { name, dtype: self.dtype, shape: self.shape.get(1..).unwrap_or(&[]).to_vec() }
    }
}

/// Arrays with equally many rows, as the fields of one source.
///
/// ```no_run
/// use unisono_data::{Array, Arrays};
///
/// let mnist = Arrays::labelled(
///     Array::idx("train-images-idx3-ubyte.gz")?,
///     Array::idx("train-labels-idx1-ubyte.gz")?,
/// )?;
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arrays {
    specs: Vec<FieldSpec>,
    arrays: Vec<Array>,
}

impl Arrays {
    /// Makes a source of one field.
    pub fn new(name: impl Into<Arc<str>>, array: Array) -> Self {
        Self { specs: vec![array.spec(name.into())], arrays: vec![array] }
    }

    /// Adds a field with as many samples.
    ///
    /// # Errors
    /// Another number of samples, or a name that is taken.
    pub fn with(mut self, name: impl Into<Arc<str>>, array: Array) -> Result<Self, DataError> {
        let spec = array.spec(name.into());
        let rows = array.shape.first().map_or(0, |&rows| rows as u64);
        if rows != self.len() {
            let what = format!("{rows} samples, but '{}' has {}", self.specs[0].name, self.len());
            return Err(DataError::field(&spec.name, what));
        }
        if self.specs.iter().any(|other| other.name == spec.name) {
            return Err(DataError::field(&spec.name, "there are two fields of this name"));
        }
        self.specs.push(spec);
        self.arrays.push(array);
        Ok(self)
    }

    /// Makes a source of features "x", read as f32, and class labels "y", read as i32.
    ///
    /// # Errors
    /// The labels have floating-point elements, or there are not as many as features.
    pub fn labelled(features: Array, labels: Array) -> Result<Self, DataError> {
        Self::new("x", features.cast(FieldDType::F32)?).with("y", labels.cast(FieldDType::I32)?)
    }
}

impl Source for Arrays {
    fn len(&self) -> u64 {
        self.arrays.first().and_then(|array| array.shape.first()).map_or(0, |&rows| rows as u64)
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let mut sample = Sample::new();
        for (spec, array) in self.specs.iter().zip(&self.arrays) {
            sample.set(spec.name.clone(), Field { shape: spec.shape.clone(), values: array.row(index)? });
        }
        Ok(sample)
    }

    /// Covers the contents: all of them up to 64 MiB a file, evenly spaced blocks of larger files.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs);
        let add = |hash: Fingerprint, array: &Array| {
            let hash = match array.floats.scale {
                Some((offset, scale)) => hash.word(offset.to_bits()).word(scale.to_bits()),
                None => hash,
            };
            array.bytes.fingerprint(hash.clone()).unwrap_or(hash)
        };
        self.arrays.iter().fold(hash, add).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.arrays.iter().try_for_each(|array| array.hash(&samples, hash))
    }
}
