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

/// Pictures in folders, with one folder for each class (torchvision's `ImageFolder`, Keras's
/// `image_dataset_from_directory`). The field "x" is f32 of shape [height, width, channels] with values from
/// 0 to 255. "y" is the class as i32. Needs the feature `pictures`. Reads JPEG and PNG files; WebP, BMP, GIF
/// and TIFF files need the feature `more-pictures` and are an error without it.
///
/// Classes are numbered in the order of their folders' names, unless you call [`classes`](Self::classes) or
/// [`like`](Self::like). Pictures in subfolders of a class's folder belong to the class, as in torchvision
/// and Keras. The files of a class are in the order of their paths, compared as bytes, so the order is the
/// same on every system.
///
/// Files that are not pictures by their names, names that start with a dot, and system folders such as
/// `__MACOSX` are skipped. They are counted, and a fit says so ([`passed_over`](Self::passed_over)).
///
/// Without [`size`](Self::size), height and width vary from sample to sample ([`FieldSpec::VARIES`]). A
/// transform such as [`augment::resized_crop`](crate::augment::resized_crop) must then make them equal.
/// Convolutions take [channels, height, width], so make [`channels_first`](crate::channels_first) the last
/// transform.
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
    /// Lists the files of a folder. It opens no picture.
    ///
    /// # Errors
    /// A folder cannot be read, has no pictures in class folders, or has the parts of a data set, such as
    /// `train` and `val`, in the place of classes. The name of a class is not UTF-8. There
    /// are WebP, BMP, GIF or TIFF files, and the feature `more-pictures` is missing. A picture that cannot be
    /// decoded is an error when it is fetched.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, DataError> {
        let root = root.as_ref().to_path_buf();
        let listing = Listing::of(&root)?;
        if listing.files.is_empty() {
            return Err(DataError::format(&root, "no pictures in directories of classes"));
        }
        if listing.has_parts() {
            let what = format!(
                "the directories {:?} are parts of a data set, with those of the classes in them: open each \
                 part, and number the classes of the others with ImageFolder::like",
                listing.classes
            );
            return Err(DataError::format(&root, what));
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
    /// skipped. A class may have no pictures.
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

    /// Numbers the classes as in another folder. Use it for validation data: a class without pictures here
    /// keeps its number from the training data.
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

    /// Resizes every picture to this height and width, with bilinear interpolation. Default: pictures keep
    /// their size. A height or a width of 0 is an error of the loader.
    pub fn size(mut self, height: usize, width: usize) -> Self {
        self.size = Some([height, width]);
        self.with_specs()
    }

    /// Decodes pictures to one channel, the luminance. Default: three channels, red, green and blue.
    pub fn grayscale(mut self) -> Self {
        self.channels = 1;
        self.with_specs()
    }

    /// Sets the maximum number of bytes that one picture may take while it is decoded: the file, its pixels
    /// as bytes and as f32, and the resized pixels. Default: [`DECODED_BYTES`], enough for about 140 million
    /// pixels. A larger picture is an error. Each thread of a loader decodes one picture at a time.
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Returns the names of the classes, in the order of their numbers. They are the names of the folders.
    pub fn class_names(&self) -> &[String] {
        &self.listing.classes
    }

    /// Returns what was skipped when the folder was listed, in words such as "files that end in .txt", with
    /// the number of such files.
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

    /// Whether pictures are to have no pixels.
    fn has_no_size(&self) -> bool {
        self.size.is_some_and(|size| size.contains(&0))
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
        if self.has_no_size() { 0 } else { self.listing.files.len() as u64 }
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        if let Some([height, width]) = self.size.filter(|_| self.has_no_size()) {
            let what = format!("a height of {height} and a width of {width}: both have to be above 0");
            return Err(DataError::Setting { setting: "ImageFolder::size", what });
        }
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
