//! Image folders: one directory a class.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Bytes, picture};
use crate::sources::budget::{Budget, DECODED_BYTES, collect};
use crate::transforms::augment::resize_pixels;
use crate::{ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source};

/// Pictures in directories, JPEG and PNG files, one directory a class: "x", f32 of shape [height, width,
/// channels] with values 0 to 255, and "y", the class as i32. Needs the feature `pictures`.
///
/// Classes are numbered in the order of their directories' names, and files follow class by class in the
/// order of theirs, compared as bytes, so the order is the same on every system. WebP, BMP, GIF and TIFF
/// files need the feature `more-pictures`; without it they are an error. Files that are no pictures by their
/// names, and those whose names start with a dot, are passed over. Unless [`size`](Self::size) is given,
/// height and width vary from sample to sample ([`FieldSpec::VARIES`]), and a transform such as
/// [`augment::resized_crop`](crate::augment::resized_crop) has to make them equal. Convolutions take
/// [channels, height, width], so [`channels_first`](crate::channels_first) comes last.
#[doc(alias = "image_dataset_from_directory")]
#[derive(Clone, Debug)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    /// Each file's path under the root, and its class.
    files: Vec<(PathBuf, i32)>,
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
        let mut folder = Self {
            root,
            classes: vec![],
            files: vec![],
            channels: 3,
            size: None,
            most: DECODED_BYTES,
            specs: vec![],
            fingerprint: OnceLock::new(),
        };
        for directory in names(&folder.root)? {
            let path = folder.root.join(&directory);
            if !path.is_dir() {
                continue;
            }
            let class =
                directory.to_str().ok_or_else(|| DataError::format(&path, "the name is not UTF-8"))?;
            let number = i32::try_from(folder.classes.len()).map_err(DataError::other)?;
            folder.classes.push(class.to_owned());
            let names = names(&path)?;
            if let Some(other) = names.iter().find(|file| !MORE && has_extension(file, &MORE_EXTENSIONS)) {
                let what = "WebP, BMP, GIF and TIFF files need the feature more-pictures";
                return Err(DataError::format(&path.join(other), what));
            }
            let files = names.into_iter().filter(|file| is_picture(Path::new(file)));
            folder.files.extend(files.map(|file| (directory.join(file), number)));
        }
        if folder.files.is_empty() {
            return Err(DataError::format(&folder.root, "no pictures in directories of classes"));
        }
        Ok(folder.with_specs())
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

    /// Returns the names of the directories, in the order of the classes' numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
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
        self.files.get(usize::try_from(index).ok()?)
    }
}

/// Returns the names in a directory that do not start with a dot, in the order of their bytes.
fn names(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |cause| DataError::Io { path: directory.into(), cause };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(PathBuf::from(name));
        }
    }
    names.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(names)
}

/// Returns the bytes of a path with `/` between names, as on Unix, whatever stands there on this system.
fn portable(path: &Path) -> Vec<u8> {
    let names: Vec<&[u8]> = path.iter().map(OsStr::as_encoded_bytes).collect();
    names.join(&b'/')
}

/// Whether files of more formats than JPEG and PNG are decoded.
const MORE: bool = cfg!(feature = "more-pictures");
/// How the names of files of these formats end.
const MORE_EXTENSIONS: [&str; 5] = ["webp", "bmp", "gif", "tif", "tiff"];

fn is_picture(file: &Path) -> bool {
    has_extension(file, &["jpg", "jpeg", "png"]) || MORE && has_extension(file, &MORE_EXTENSIONS)
}

fn has_extension(file: &Path, extensions: &[&str]) -> bool {
    let known = |extension: &OsStr| extensions.iter().any(|known| extension.eq_ignore_ascii_case(known));
    file.extension().is_some_and(known)
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
        self.files.len() as u64
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
        *self.fingerprint.get_or_init(|| self.files.iter().fold(hash, add).finish())
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
