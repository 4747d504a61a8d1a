//! WAV files in folders, with one directory a class.

mod wav;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::sources::budget::{Budget, DECODED_BYTES};
use crate::sources::directories::{empty_classes, is_hidden, is_of_the_system, names};
use crate::sources::files::Bytes;
use crate::{ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Fingerprint, Sample, Source};

/// A folder of WAV files with one directory a class: "x", a waveform `[length]` of values from -1 to 1, and
/// the class "y". It is Keras's `audio_dataset_from_directory`.
///
/// Classes are numbered in the order of their directories' names. Channels are averaged. Files are read when
/// they are needed: PCM of 8, 16, 24 and 32 bits, and floats of 32 and 64. All must have one sampling rate,
/// because none is resampled. [`Spectrogram`](crate::Spectrogram) makes mel bands of waveforms.
///
/// ```no_run
/// use unisono_data::{Loader, Spectrogram, WavFolder, augment};
///
/// let train = WavFolder::open("speech_commands/train")?.length(16_000);
/// let mel = Spectrogram::new(400).hop(160).mel(train.rate(), 64).log();
/// let loader = Loader::new(train)
///     .shuffle(42)
///     .try_map("shift", augment::time_shift("x", 1600))
///     .try_map("mel", mel.transform("x"))
///     .try_map("mask", augment::spec_augment("x", [1, 20], [1, 8], 0.0));
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("audio_dataset_from_directory", "wav", "torchaudio"))]
#[derive(Clone, Debug)]
pub struct WavFolder {
    root: PathBuf,
    /// Each file's directory and name, and its class.
    files: Vec<([String; 2], i32)>,
    classes: Vec<String>,
    passed_over: u64,
    rate: u32,
    length: Option<usize>,
    most: u64,
    specs: [FieldSpec; 2],
}

impl WavFolder {
    /// Lists a folder, and reads the first file for the sampling rate.
    ///
    /// # Errors
    /// The folder cannot be read, or has no WAV files in directories; the first file is broken; a name is not
    /// UTF-8.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, DataError> {
        let root = root.as_ref();
        let (mut files, mut classes, mut passed_over) = (Vec::new(), Vec::new(), 0);
        for class in shown_names(root)? {
            let directory = root.join(&class);
            if !directory.is_dir() || is_of_the_system(class.as_ref()) {
                passed_over += 1;
                continue;
            }
            let number = i32::try_from(classes.len()).map_err(DataError::other)?;
            for name in shown_names(&directory)? {
                let is_wav = [".wav", ".wave"].iter().any(|end| name.to_lowercase().ends_with(end));
                if is_wav && directory.join(&name).is_file() {
                    files.push(([class.clone(), name], number));
                } else {
                    passed_over += 1;
                }
            }
            classes.push(class);
        }
        if files.is_empty() {
            return Err(DataError::format(root, "no WAV files in directories, one a class"));
        }
        let spec = |name: &str, dtype, shape| FieldSpec { name: name.into(), dtype, shape };
        let specs = [spec("x", FieldDType::F32, vec![FieldSpec::VARIES]), spec("y", FieldDType::I32, vec![])];
        let (root, length, most) = (root.to_owned(), None, DECODED_BYTES);
        let mut folder = Self { root, files, classes, passed_over, rate: 0, length, most, specs };
        folder.rate = folder.wave(0)?.rate;
        Ok(folder)
    }

    /// Numbers the classes as in another folder. Use it for validation data: a class without files here keeps
    /// its number from the training data.
    ///
    /// # Errors
    /// There are files of a class that the other folder does not have.
    pub fn like(mut self, other: &Self) -> Result<Self, DataError> {
        for (names, class) in &mut self.files {
            let number = other.classes.iter().position(|own| *own == names[0]);
            let number = number.and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
                let what = format!("the class {:?} is not one of {:?}", names[0], other.classes);
                DataError::format(&self.root, what)
            })?;
            *class = number;
        }
        self.classes.clone_from(&other.classes);
        Ok(self)
    }

    /// Cuts waveforms off at a length, or pads them with 0 at their end. Without it they keep their own
    /// lengths, and a transform must make these equal.
    #[doc(alias = "output_sequence_length")]
    pub fn length(mut self, values: usize) -> Self {
        self.length = Some(values);
        self.specs[0].shape = vec![values];
        self
    }

    /// Sets the most bytes that reading one file may take. Default: [`DECODED_BYTES`].
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Returns the sampling rate: the number of values a second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Returns the names of the classes, in the order of their numbers.
    pub fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn path(&self, index: u64) -> Result<(PathBuf, i32), DataError> {
        let file = usize::try_from(index).ok().and_then(|index| self.files.get(index));
        let ([directory, name], class) = file.ok_or(DataError::Index { index, len: self.len() })?;
        Ok((self.root.join(directory).join(name), *class))
    }

    /// Reads a file.
    fn wave(&self, index: u64) -> Result<wav::Wave, DataError> {
        let bytes = Bytes::open(&self.path(index)?.0)?;
        let budget = Budget { most: self.most, setting: "WavFolder::most_bytes" };
        // A value of one byte becomes one of four, twice.
        budget.check(bytes.path(), "the waveform", bytes.len().checked_mul(9))?;
        let file = bytes.to_vec(0, bytes.len())?;
        wav::decode(&file).map_err(|what| DataError::format(bytes.path(), what))
    }
}

/// Returns the names in a directory that do not start with a dot, in order.
fn shown_names(directory: &Path) -> Result<Vec<String>, DataError> {
    let text = |name: PathBuf| match name.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(DataError::format(&directory.join(name), "the name is not UTF-8")),
    };
    names(directory)?.into_iter().filter(|name| !is_hidden(name)).map(text).collect()
}

impl Source for WavFolder {
    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (path, class) = self.path(index)?;
        let wave = self.wave(index)?;
        if wave.rate != self.rate {
            let what = format!("{} values a second, and the first file has {}", wave.rate, self.rate);
            return Err(DataError::format(&path, what));
        }
        let mean = |values: &[f32]| match values {
            [value] => *value,
            values => {
                (values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64) as f32
            }
        };
        let wrong = |what: String| DataError::format(&path, what);
        let mut x = wav::collected(wave.values.chunks_exact(wave.channels).map(mean)).map_err(wrong)?;
        if let Some(length) = self.length {
            let no_memory = |_| DataError::format(&path, format!("no memory for {length} values"));
            x.try_reserve_exact(length.saturating_sub(x.len())).map_err(no_memory)?;
            x.resize(length, 0.0);
        }
        Ok(Sample::new().with("x", Field::f32([x.len()], x)).with("y", Field::i32([], [class])))
    }

    /// Returns the file's path.
    fn describe(&self, index: u64) -> String {
        self.path(index).map_or_else(|_| format!("sample {index}"), |(path, _)| path.display().to_string())
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        (field == "y").then_some(&*self.classes)
    }

    fn notes(&self) -> Vec<String> {
        let (root, skipped, mut notes) = (self.root.display(), self.passed_over, Vec::new());
        if skipped > 0 {
            notes.push(format!(
                "{root}: skipped what is not a WAV file in the directory of a class: {skipped}"
            ));
        }
        let classes = self.files.iter().map(|(_, class)| *class);
        notes.extend(
            empty_classes(&self.classes, classes).map(|empty| format!("{root}: no WAV files of {empty}")),
        );
        notes
    }

    /// Covers the files' names and sizes, not their contents.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs).word(self.rate.into());
        let add = |hash: Fingerprint, ([directory, name], class): &([String; 2], i32)| {
            let file = self.root.join(directory).join(name);
            let size = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
            hash.word(*class as u64).word(size).text(directory).text(name)
        };
        self.files.iter().fold(hash, add).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    /// Hashes the files' bytes, without decoding them, and the length that waveforms are cut to.
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        hash.word(self.length.map_or(u64::MAX, |length| length as u64));
        for index in samples {
            let (path, class) = self.path(index)?;
            hash.i32s(&[class]);
            let bytes = Bytes::open(&path)?;
            bytes.hash(0, bytes.len(), hash)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
