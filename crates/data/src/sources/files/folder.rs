//! Image folders: one directory a class.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::listing::{Listing, portable};
use super::{Bytes, picture};
use crate::sources::budget::{Budget, DECODED_BYTES, collect};
use crate::transforms::augment::resize_pixels;
use crate::{ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source};

/// Pictures in directories, JPEG and PNG files, one directory a class: "x", f32 of shape [height, width,
/// channels] with values 0 to 255, and "y", the class as i32. Needs the feature `pictures`.
///
/// Classes are numbered in the order of their directories' names, unless [`classes`](Self::classes) or
/// [`like`](Self::like) says otherwise. Files follow class by class in the order of their paths, compared as
/// bytes, so the order is the same on every system. Pictures in directories within a class's directory
/// belong to the class, as torchvision and Keras have it. WebP, BMP, GIF and TIFF files need the feature
/// `more-pictures`; without it they are an error. Files that are no pictures by their names, names that start
/// with a dot and directories of the system, such as `__MACOSX`, are passed over. They are counted, and a fit
/// says so ([`passed_over`](Self::passed_over)). Unless [`size`](Self::size) is given,
/// height and width vary from sample to sample ([`FieldSpec::VARIES`]), and a transform such as
/// [`augment::resized_crop`](crate::augment::resized_crop) has to make them equal. Convolutions take
/// [channels, height, width], so [`channels_first`](crate::channels_first) comes last.
#[doc(alias = "image_dataset_from_directory")]
#[derive(Clone, Debug)]
pub struct ImageFolder {
    root: PathBuf,
    listing: Listing,
    channels: usize,
    size: Option<[usize; 2]>,
    most: u64,
    specs: Vec<FieldSpec>,
    /// The fingerprint, once it was asked for: it asks the file system for each file.
    fingerprint: OnceLock<u64>,
}

impl ImageFolder {
    /// Lists a directory. No picture is opened.
    ///
    /// # Errors
    /// A directory cannot be read, or holds no pictures in directories of classes; the name of a class is not
    /// UTF-8; there are WebP, BMP, GIF or TIFF files and the feature `more-pictures` is not there. A picture
    /// that cannot be decoded is an error when it is fetched.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, DataError> {
        let root = root.as_ref().to_path_buf();
        let listing = Listing::of(&root)?;
        if listing.files.is_empty() {
            return Err(DataError::format(&root, "no pictures in directories of classes"));
        }
        let folder = Self {
            root,
            listing,
            channels: 3,
            size: None,
            most: DECODED_BYTES,
            specs: vec![],
            fingerprint: OnceLock::new(),
        };
        Ok(folder.with_specs())
    }

    /// Numbers the classes in this order, from 0 (Keras's `class_names`). Pictures of other classes are
    /// passed over, and a class may have no pictures.
    ///
    /// ```no_run
    /// use unisono_data::ImageFolder;
    ///
    /// let folder = ImageFolder::open("pictures")?.classes(["cat", "dog", "fox"])?;
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// A class is given twice, or there are no pictures of these classes.
    pub fn classes<C: Into<String>>(
        mut self,
        classes: impl IntoIterator<Item = C>,
    ) -> Result<Self, DataError> {
        let classes = classes.into_iter().map(Into::into).collect();
        self.listing.number(classes, false).map_err(|problem| DataError::format(&self.root, problem))?;
        Ok(self.with_specs())
    }

    /// Numbers the classes as another folder does: that of the training data, where this one validates. A
    /// class that has no pictures here keeps its number.
    ///
    /// ```no_run
    /// use unisono_data::ImageFolder;
    ///
    /// let train = ImageFolder::open("train")?;
    /// let validation = ImageFolder::open("validation")?.like(&train)?;
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// There are pictures of a class that the other folder does not have.
    pub fn like(mut self, other: &Self) -> Result<Self, DataError> {
        let classes = other.listing.classes.clone();
        self.listing.number(classes, true).map_err(|problem| DataError::format(&self.root, problem))?;
        Ok(self.with_specs())
    }

    /// Resizes every picture to a height and a width, bilinearly. Default: pictures keep their size.
    pub fn size(mut self, height: usize, width: usize) -> Self {
        self.size = Some([height.max(1), width.max(1)]);
        self.with_specs()
    }

    /// Decodes to one channel, the luminance. Default: three channels, red, green and blue.
    pub fn grayscale(mut self) -> Self {
        self.channels = 1;
        self.with_specs()
    }

    /// Sets the most bytes that one picture may take at once while it is decoded: the file, and its pixels
    /// as bytes and as f32, or as f32 and resized. Default: [`DECODED_BYTES`], enough for about 140 million
    /// pixels. A larger picture is an error. Each worker thread of a loader decodes one picture at a time.
    pub fn most_bytes(mut self, most: u64) -> Self {
        self.most = most;
        self
    }

    /// Returns the names of the classes, which are those of their directories, in the order of their
    /// numbers.
    pub fn class_names(&self) -> &[String] {
        &self.listing.classes
    }

    /// Returns what was passed over when the folder was listed, in words such as "files that end in .txt",
    /// and how many there are of it.
    pub fn passed_over(&self) -> &BTreeMap<String, u64> {
        &self.listing.passed_over
    }

    fn with_specs(mut self) -> Self {
        let [height, width] = self.size.unwrap_or([FieldSpec::VARIES; 2]);
        let shape = vec![height, width, self.channels];
        self.specs = vec![
            FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape },
            FieldSpec { name: "y".into(), dtype: FieldDType::I32, shape: vec![] },
        ];
        self.fingerprint = OnceLock::new();
        self
    }

    /// Returns the most bytes that a picture takes at once: the file, and first the `pixel` bytes for each
    /// pixel that decoding takes, then the pixels as bytes and as f32, and then as f32 and resized.
    fn takes(&self, packed: u64, pixel: u64, size: [usize; 2]) -> Option<u64> {
        let values = |[height, width]: [usize; 2], bytes: u64| {
            (height as u64).checked_mul(width as u64)?.checked_mul(bytes)
        };
        let as_f32 = 4 * self.channels as u64;
        let resized = self.size.map_or(Some(0), |size| {
            // Each row and column of the result is found from two of the picture, with their weight.
            let taps = (size[0] as u64).checked_add(size[1] as u64)?.checked_mul(24)?;
            values(size, as_f32)?.checked_add(taps)
        });
        let widened = values(size, self.channels as u64 + as_f32)?;
        let resizing = values(size, as_f32)?.checked_add(resized?)?;
        packed.checked_add(values(size, pixel)?.max(widened).max(resizing))
    }

    fn file(&self, index: u64) -> Option<&(PathBuf, i32)> {
        self.listing.files.get(usize::try_from(index).ok()?)
    }
}

/// Whether a file is gone, or something else has its name. Other errors, such as too many open files, say
/// nothing of the file.
fn is_missing(error: &DataError) -> bool {
    match error {
        DataError::Io { cause, .. } => cause.kind() == std::io::ErrorKind::NotFound,
        // Nothing but a regular file is opened.
        DataError::Format { .. } => true,
        _ => false,
    }
}

impl Source for ImageFolder {
    fn len(&self) -> u64 {
        self.listing.files.len() as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (file, class) = self.file(index).ok_or(DataError::Index { index, len: self.len() })?;
        let bytes = Bytes::open(&self.root.join(file))?;
        let packed = bytes.len();
        let budget = Budget { most: self.most, setting: "ImageFolder::most_bytes" };
        budget.check(bytes.path(), "the file itself", Some(packed))?;
        let packed_bytes = bytes.to_vec(0, packed)?;
        let picture = picture::decode(&packed_bytes, self.channels, |pixel, [height, width]| {
            let what = format!("a picture of {width} x {height}");
            budget.check(bytes.path(), &what, self.takes(packed, pixel, [height, width]))
        })?;
        let from = [picture.height, picture.width, self.channels];
        let to = self.size.unwrap_or([picture.height, picture.width]);
        let pixels = collect(bytes.path(), picture.pixels.into_iter().map(f32::from))?;
        let pixels = if to == [from[0], from[1]] { pixels } else { resize_pixels(&pixels, from, to) };
        Ok(Sample::new()
            .with(self.specs[0].name.clone(), Field::f32([to[0], to[1], self.channels], pixels))
            .with(self.specs[1].name.clone(), Field::i32([], [*class])))
    }

    /// Returns the file's path.
    fn describe(&self, index: u64) -> String {
        match self.file(index) {
            Some((file, _)) => self.root.join(file).display().to_string(),
            None => format!("sample {index}"),
        }
    }

    /// Covers the files' names and sizes, not their contents. The sizes are those of the first call.
    fn fingerprint(&self) -> u64 {
        let add = |hash: Fingerprint, (file, class): &(PathBuf, i32)| {
            let size = std::fs::metadata(self.root.join(file)).map_or(0, |metadata| metadata.len());
            let name = portable(file);
            let hash = hash.word(*class as u64).word(size).word(name.len() as u64);
            name.iter().fold(hash, |hash, &byte| hash.word(byte.into()))
        };
        let hash = Fingerprint::new().source(self.len(), &self.specs);
        *self.fingerprint.get_or_init(|| self.listing.files.iter().fold(hash, add).finish())
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        (field == "y").then_some(&*self.listing.classes)
    }

    fn notes(&self) -> Vec<String> {
        self.listing.notes(&self.root)
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    /// Hashes the files' bytes, without decoding them, and what they are decoded to. A file that is gone
    /// since the folder was listed counts as such; one that cannot be opened for another reason is an error.
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        let [height, width] = self.size.unwrap_or_default();
        [self.channels, height, width].into_iter().for_each(|extent| hash.word(extent as u64));
        for index in samples {
            let (file, class) = self.file(index).ok_or(DataError::Index { index, len: self.len() })?;
            hash.i32s(&[*class]);
            match Bytes::open(&self.root.join(file)) {
                Ok(bytes) => bytes.hash(0, bytes.len(), hash)?,
                // A loader may skip it.
                Err(error) if is_missing(&error) => hash.text("no file"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
