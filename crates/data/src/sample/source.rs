//! The trait behind every data set.

use std::ops::Range;
use std::sync::Arc;

use crate::sample::tree::hash_fetched;
use crate::{ContentHash, Coverage, DataError, FieldSpec, Fingerprint, Sample};

/// A data set: a length, and samples by index.
///
/// Loader threads call `fetch` at the same time and in any order. The same index must always give the same
/// sample. So a stream, whose length is unknown or which is read only from its start (PyTorch's
/// `IterableDataset`), is no source: it is written to files first, such as those of
/// [`Lines`](crate::Lines) and [`TarShards`](crate::TarShards).
///
/// ```
/// use unisono_data::{DataError, FieldDType, Field, FieldSpec, Sample, Source};
///
/// /// Squares of whole numbers.
/// struct Squares([FieldSpec; 2]);
///
/// impl Source for Squares {
///     fn len(&self) -> u64 {
///         1_000_000_000
///     }
///     fn fields(&self) -> &[FieldSpec] {
///         &self.0
///     }
///     fn fetch(&self, index: u64) -> Result<Sample, DataError> {
///         let x = index as f32;
///         Ok(Sample::new().with("x", Field::f32([1], [x])).with("y", Field::f32([1], [x * x])))
///     }
/// }
///
/// let spec = |name: &str| FieldSpec { name: name.into(), dtype: FieldDType::F32, shape: vec![1] };
/// let squares = Squares([spec("x"), spec("y")]);
/// assert_eq!(squares.fetch(3)?.field("y"), Some(&Field::f32([1], [9.0])));
/// # Ok::<(), DataError>(())
/// ```
#[doc(alias = "Dataset")]
pub trait Source: Send + Sync {
    /// Returns the number of samples.
    fn len(&self) -> u64;

    /// Returns the name, type and shape of the fields of every sample, in order.
    fn fields(&self) -> &[FieldSpec];

    /// Returns the sample at an index below [`len`](Self::len).
    fn fetch(&self, index: u64) -> Result<Sample, DataError>;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what errors call the sample, such as its file. Default: "sample 17".
    fn describe(&self, index: u64) -> String {
        format!("sample {index}")
    }

    /// Returns the names of the classes that the numbers of an i32 field stand for, from 0, where the source
    /// knows them. A trainer compares those of its training and validation data. Default: `None`.
    fn field_classes(&self, _field: &str) -> Option<&[String]> {
        None
    }

    /// Returns what a user should know of how the data were read, in sentences: what was passed over. A fit
    /// tells its observers. Default: nothing.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether samples share values, as overlapping windows of a series do, or come several times.
    /// The parts of a random split then have values in common, and a fit tells its observers. Default: false.
    fn overlaps(&self) -> bool {
        false
    }

    /// Returns 64 bits that change when the data do, for checkpoints and saved statistics; see
    /// [`Fingerprint`].
    ///
    /// The default covers the length and the fields' names, types and shapes, not the contents.
    fn fingerprint(&self) -> u64 {
        Fingerprint::new().source(self.len(), self.fields()).finish()
    }

    /// Returns how the content takes part in a run's identity. Default: [`Coverage::Unknown`].
    ///
    /// A source whose samples may be read once more returns [`Coverage::Hashed`]. One that computes them
    /// returns [`Coverage::Named`] with a name and a version.
    fn coverage(&self) -> Coverage {
        Coverage::Unknown
    }

    /// Adds the content of samples to a hash: whatever decides their values. Default: fetches the samples.
    ///
    /// Sources that hold bytes hash these without decoding them. It is called on a thread of its own, for
    /// one block of samples after another.
    ///
    /// # Errors
    /// The content cannot be read.
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        hash_fetched(self, samples, hash)
    }
}

macro_rules! source_behind_a_pointer {
    ($($pointer:ty),*) => {$(
        impl<S: Source + ?Sized> Source for $pointer {
            fn len(&self) -> u64 {
                (**self).len()
            }
            fn fields(&self) -> &[FieldSpec] {
                (**self).fields()
            }
            fn fetch(&self, index: u64) -> Result<Sample, DataError> {
                (**self).fetch(index)
            }
            fn is_empty(&self) -> bool {
                (**self).is_empty()
            }
            fn describe(&self, index: u64) -> String {
                (**self).describe(index)
            }
            fn field_classes(&self, field: &str) -> Option<&[String]> {
                (**self).field_classes(field)
            }
            fn notes(&self) -> Vec<String> {
                (**self).notes()
            }
            fn overlaps(&self) -> bool {
                (**self).overlaps()
            }
            fn fingerprint(&self) -> u64 {
                (**self).fingerprint()
            }
            fn coverage(&self) -> Coverage {
                (**self).coverage()
            }
            fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
                (**self).hash_content(samples, hash)
            }
        }
    )*};
}

source_behind_a_pointer!(&S, Box<S>, Arc<S>);
