//! CIFAR-10 and CIFAR-100 in their binary version.

use std::ops::Range;
use std::path::Path;

use super::Bytes;
use crate::{ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source};

/// The number of pixels in one plane.
const PLANE: usize = 32 * 32;
/// The number of pixel values in one image.
const IMAGE: usize = 3 * PLANE;

/// CIFAR images: "x", f32 of shape [32, 32, 3] with values 0 to 255, and the class "y", an i32.
///
/// The channels are last, as for all pictures here. Convolutions take [3, 32, 32], which
/// [`channels_first`](crate::channels_first) makes of them after augmentation.
///
/// The files follow one another in the order given. They are read by position, not loaded.
#[derive(Clone, Debug)]
pub struct Cifar {
    files: Vec<Bytes>,
    /// The number of label bytes before each image. The last of them is the class.
    labels: usize,
    classes: u8,
    specs: Vec<FieldSpec>,
}

impl Cifar {
    /// Opens CIFAR-10: `data_batch_1.bin` and its siblings.
    ///
    /// # Errors
    /// A file cannot be read, is not a regular file, or is not a whole number of records, at least one.
    pub fn ten(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, DataError> {
        Self::open(paths, 1, 10)
    }

    /// Opens CIFAR-100 with its fine labels: `train.bin` or `test.bin`.
    ///
    /// # Errors
    /// Those of [`Cifar::ten`].
    pub fn hundred(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, DataError> {
        Self::open(paths, 2, 100)
    }

    fn open(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        labels: usize,
        classes: u8,
    ) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for path in paths {
            let bytes = Bytes::open(path.as_ref())?;
            let record = labels + IMAGE;
            if bytes.len() == 0 || !bytes.len().is_multiple_of(record as u64) {
                let what = format!("{} bytes are not a whole number of records of {record}", bytes.len());
                return Err(DataError::format(bytes.path(), what));
            }
            files.push(bytes);
        }
        let spec =
            |name: &str, dtype, shape: &[usize]| FieldSpec { name: name.into(), dtype, shape: shape.into() };
        let specs = vec![spec("x", FieldDType::F32, &[32, 32, 3]), spec("y", FieldDType::I32, &[])];
        Ok(Self { files, labels, classes, specs })
    }

    fn record(&self) -> u64 {
        (self.labels + IMAGE) as u64
    }

    /// Returns the file that holds a sample, and which of its records the sample is.
    fn place(&self, index: u64) -> Option<(&Bytes, u64)> {
        let mut index = index;
        for file in &self.files {
            let records = file.len() / self.record();
            if index < records {
                return Some((file, index));
            }
            index -= records;
        }
        None
    }
}

impl Source for Cifar {
    fn len(&self) -> u64 {
        self.files.iter().map(|file| file.len() / self.record()).sum()
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (file, at) = self.place(index).ok_or(DataError::Index { index, len: self.len() })?;
        let record = file.to_vec(at * self.record(), self.record())?;
        let (labels, planes) = record.split_at(self.labels);
        let class = labels.last().copied().unwrap_or(0);
        if class >= self.classes {
            return Err(DataError::other(format!("class {class} is not one of {}", self.classes)));
        }
        let image: Vec<f32> = (0..IMAGE).map(|i| f32::from(planes[i % 3 * PLANE + i / 3])).collect();
        Ok(Sample::new()
            .with(self.specs[0].name.clone(), Field::f32([32, 32, 3], image))
            .with(self.specs[1].name.clone(), Field::i32([], [i32::from(class)])))
    }

    fn describe(&self, index: u64) -> String {
        match self.place(index) {
            Some((file, at)) => format!("{}: image {at}", file.path().display()),
            None => format!("sample {index}"),
        }
    }

    /// Covers the contents: all of them up to 64 MiB a file, evenly spaced blocks of larger files.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs);
        let add = |hash: Fingerprint, file: &Bytes| file.fingerprint(hash.clone()).unwrap_or(hash);
        self.files.iter().fold(hash, add).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        hash.word(self.labels as u64);
        hash.word(self.classes.into());
        for index in samples {
            let (file, at) = self.place(index).ok_or(DataError::Index { index, len: self.len() })?;
            file.hash(at * self.record(), self.record(), hash)?;
        }
        Ok(())
    }
}
