//! Tar archives of samples, as WebDataset writes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::Shards;
use super::lines::fingerprint;
use super::tar_headers::{Member, members};
use crate::sources::budget::{Budget, DECODED_BYTES};
use crate::sources::files::Bytes;
use crate::{BoxError, Coverage, DataError, FieldSpec, Fingerprint, Sample, Source};

type Decode = dyn Fn(&TarSample<'_>) -> Result<Sample, BoxError> + Send + Sync;

/// Tar archives in the format of WebDataset: consecutive files whose names differ only after the first dot,
/// such as `0017.jpg` and `0017.cls`, are one sample.
///
/// Opening reads the headers of each archive, not the files in it. After that, a file is read by its
/// position, so archives may be larger than memory. Archives that are compressed as a whole cannot be read
/// like this and are an error; the files in them may be compressed. Archives must not change while they are
/// open.
///
/// ```no_run
/// use unisono_data::{Field, Loader, Sample, TarShards};
///
/// let shards = (0..10).map(|at| format!("train-{at:04}.tar"));
/// let train = TarShards::open(shards, |files| {
///     let label = files.text("cls")?.trim().parse()?;
///     let pixels: Vec<f32> = files.bytes("u8")?.iter().map(|&byte| f32::from(byte) / 255.0).collect();
///     let x = Field::f32([28, 28], pixels);
///     Ok(Sample::new().with("x", x).with("y", Field::i32([], [label])))
/// })?;
/// // Windows keep reads near to each other.
/// let loader = Loader::new(train).shuffle_window(42, 10_000);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
///
/// With the feature `pictures`, `files.picture(&["jpg", "png"], 3)` returns a field [height, width, 3].
#[doc(alias("WebDataset", "webdataset", "IterableDataset"))]
#[derive(Clone)]
pub struct TarShards {
    shards: Shards,
    /// The samples of each archive.
    samples: Vec<Arc<Vec<Entry>>>,
    specs: Vec<FieldSpec>,
    decode: Arc<Decode>,
    most: u64,
}

/// The files of one sample.
#[derive(Debug)]
struct Entry {
    key: String,
    files: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    extension: String,
    start: u64,
    len: u64,
}

/// The files of one sample, by the part of their names after the first dot, in lower case.
#[derive(Debug)]
pub struct TarSample<'a> {
    archive: &'a Bytes,
    entry: &'a Entry,
    most: u64,
}

impl TarSample<'_> {
    /// Returns the common part of the names of the sample's files, with their directory.
    pub fn key(&self) -> &str {
        &self.entry.key
    }

    /// Returns the part of each file's name after the first dot.
    pub fn extensions(&self) -> impl Iterator<Item = &str> {
        self.entry.files.iter().map(|part| &*part.extension)
    }

    /// Returns the bytes of a file.
    ///
    /// # Errors
    /// The sample has no such file, or it cannot be read, or is larger than
    /// [`most_bytes`](TarShards::most_bytes).
    pub fn bytes(&self, extension: &str) -> Result<Vec<u8>, DataError> {
        let part = self.entry.files.iter().find(|part| part.extension == extension);
        let part = part.ok_or_else(|| {
            let has: Vec<&str> = self.extensions().collect();
            DataError::other(format!("no file .{extension}: there are {has:?}"))
        })?;
        let budget = Budget { most: self.most, setting: "TarShards::most_bytes" };
        budget.check(self.archive.path(), &format!("{}.{extension}", self.key()), Some(part.len))?;
        self.archive.to_vec(part.start, part.len)
    }

    /// Returns the text of a file.
    ///
    /// # Errors
    /// Those of [`bytes`](Self::bytes); the text is not UTF-8.
    pub fn text(&self, extension: &str) -> Result<String, DataError> {
        let bytes = self.bytes(extension)?;
        String::from_utf8(bytes).map_err(|_| DataError::other(format!(".{extension} is not UTF-8")))
    }

    /// Returns the picture in the first of these files that there is, as [height, width, channels] of values
    /// from 0 to 255, with one channel or three.
    ///
    /// # Errors
    /// Those of [`bytes`](Self::bytes); the file is not a picture, or decoding it takes more than
    /// [`most_bytes`](TarShards::most_bytes).
    #[cfg(feature = "pictures")]
    pub fn picture(&self, extensions: &[&str], channels: usize) -> Result<crate::Field, DataError> {
        if channels != 1 && channels != 3 {
            return Err(DataError::other(format!("a picture of {channels} channels, not 1 or 3")));
        }
        let found = extensions.iter().find(|&&wanted| self.extensions().any(|own| own == wanted));
        let extension = found.copied().unwrap_or(extensions.first().copied().unwrap_or(""));
        let file = self.bytes(extension)?;
        let picture = crate::sources::files::decode(&file, channels, |pixel, [height, width]| {
            let budget = Budget { most: self.most, setting: "TarShards::most_bytes" };
            let pixels = (height as u64).checked_mul(width as u64);
            let needs = pixels.and_then(|pixels| pixels.checked_mul(pixel + 5 * channels as u64));
            budget.check(self.archive.path(), &format!("a picture of {width} x {height}"), needs)
        })?;
        let pixels: Vec<f32> = picture.pixels.into_iter().map(f32::from).collect();
        Ok(crate::Field::f32([picture.height, picture.width, channels], pixels))
    }
}

impl TarShards {
    /// Opens archives in this order. `decode` makes a sample of files; all samples must have the fields of
    /// the first one, in their shapes.
    ///
    /// # Errors
    /// A file cannot be read, or is no tar archive; a sample has two files of one name; there are no samples;
    /// the first sample cannot be decoded; an archive is given twice.
    pub fn open<P: AsRef<Path>>(
        archives: impl IntoIterator<Item = P>,
        decode: impl Fn(&TarSample<'_>) -> Result<Sample, BoxError> + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let mut shards = Shards::new();
        let (mut samples, mut given) = (Vec::new(), BTreeSet::new());
        for path in archives {
            let archive = Bytes::open(path.as_ref())?;
            let real = path.as_ref().canonicalize().unwrap_or_else(|_| path.as_ref().to_path_buf());
            if !given.insert(real) {
                let what =
                    "the archive is given twice, so that each of its samples would come twice an epoch";
                return Err(DataError::format(path.as_ref(), what));
            }
            let entries = entries(path.as_ref(), members(&archive)?)?;
            shards.push(archive, entries.len());
            samples.push(Arc::new(entries));
        }
        let decode = Arc::new(decode);
        let mut shards = Self { shards, samples, specs: vec![], decode, most: DECODED_BYTES };
        if shards.is_empty() {
            let files: Vec<_> =
                shards.shards.files.iter().map(|file| file.path().display().to_string()).collect();
            return Err(DataError::other(format!("no samples in the archives {files:?}")));
        }
        shards.specs = shards.fetch(0)?.specs();
        Ok(shards)
    }

    /// Sets the most bytes that reading one file of an archive may take. Default: [`DECODED_BYTES`]. A larger
    /// file is an error.
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }
}

/// Groups the files of an archive to samples.
fn entries(path: &Path, members: Vec<Member>) -> Result<Vec<Entry>, DataError> {
    let mut entries: Vec<Entry> = Vec::new();
    for Member { name, start, len } in members {
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        // A name that starts with a dot, such as those that macOS adds, belongs to no sample.
        let Some(dot) = name[base..].find('.').filter(|&dot| dot > 0) else { continue };
        let (key, extension) = (&name[..base + dot], name[base + dot + 1..].to_lowercase());
        if entries.last().is_none_or(|entry| entry.key != key) {
            entries.push(Entry { key: key.to_owned(), files: vec![] });
        }
        let Some(entry) = entries.last_mut() else { continue };
        if entry.files.iter().any(|part| part.extension == extension) {
            return Err(DataError::format(path, format!("tar: the sample {key} has two files .{extension}")));
        }
        entry.files.push(Part { extension, start, len });
    }
    Ok(entries)
}

impl Source for TarShards {
    fn len(&self) -> u64 {
        self.shards.len()
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (shard, at) = self.shards.locate(index)?;
        let (archive, entry) = (&self.shards.files[shard], &self.samples[shard][at]);
        let files = TarSample { archive, entry, most: self.most };
        (self.decode)(&files).map_err(|cause| match cause.downcast::<DataError>() {
            // A loader tells a file that cannot be read from a bad sample.
            Ok(error) if matches!(*error, DataError::Io { .. } | DataError::Budget { .. }) => *error,
            Ok(error) => DataError::format(archive.path(), format!("{}: {error}", entry.key)),
            Err(error) => DataError::format(archive.path(), format!("{}: {error}", entry.key)),
        })
    }

    /// Returns the sample's archive and key.
    fn describe(&self, index: u64) -> String {
        match self.shards.locate(index) {
            Ok((shard, at)) => {
                format!("{}: {}", self.shards.files[shard].path().display(), self.samples[shard][at].key)
            }
            Err(_) => format!("sample {index}"),
        }
    }

    /// Covers the fields and the archives' bytes: all of them up to 64 MiB each, and parts of larger ones.
    fn fingerprint(&self) -> u64 {
        fingerprint(&self.shards.files, Fingerprint::new().source(self.len(), &self.specs))
    }

    /// The samples are hashed as they are decoded, so the content covers what `decode` makes of the files.
    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
}

impl std::fmt::Debug for TarShards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<_> = self.shards.files.iter().map(Bytes::path).collect();
        f.debug_struct("TarShards")
            .field("archives", &files)
            .field("samples", &self.len())
            .finish_non_exhaustive()
    }
}
