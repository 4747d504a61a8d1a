//! The errors of this crate.

use std::path::{Path, PathBuf};

use crate::FieldDType;

/// Any error that a transform or a user's own source may return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of this crate. Its message includes its cause, so printing the error once says everything.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be opened or read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A value in a CSV file does not parse, or is not finite.
    #[error("{}: line {line}: column {column}{}: {value:?} is not {expected}", path.display(), named(name))]
    CsvValue {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column, counted from 1.
        column: usize,
        /// The column's name, if the columns were chosen by their names.
        name: Option<String>,
        /// The text found there.
        value: String,
        /// The kind of value expected, such as "a number".
        expected: &'static str,
    },
    /// A line of a CSV file has another number of columns than the first.
    #[error("{}: line {line}: {found} columns, expected {expected}", path.display())]
    CsvWidth {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The number of columns in this line.
        found: usize,
        /// The number of columns in the first line.
        expected: usize,
    },
    /// A CSV file cannot be read beyond a line: bad compression, or text that is not UTF-8.
    #[error("{}: line {line}: {cause}", path.display())]
    CsvBroken {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The description of the error.
        cause: String,
    },
    /// A CSV file has no samples, or lacks the column asked for.
    #[error("{}: {what}", path.display())]
    CsvTable {
        /// The file.
        path: PathBuf,
        /// The description of what is missing.
        what: String,
    },
    /// A file does not keep to its format.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The description of the error.
        what: String,
    },
    /// Decoding a file takes more memory than its source may use.
    #[error(
        "{}: {what} {}, and the limit is {most}: raise it with `{setting}`",
        path.display(),
        needs.map_or_else(|| "takes more bytes than can be counted".into(), |needs| format!("takes {needs} bytes"))
    )]
    Budget {
        /// The file.
        path: PathBuf,
        /// The part of the file that takes the memory.
        what: String,
        /// The number of bytes that it takes at least, or `None` where they cannot be counted.
        needs: Option<u64>,
        /// The limit in bytes.
        most: u64,
        /// The setting of the source that raises the limit.
        setting: &'static str,
    },
    /// A source's fields do not fit each other, or a field is missing or of another type than needed.
    #[error("field '{field}': {what}")]
    Field {
        /// The field's name.
        field: String,
        /// The description of the error.
        what: String,
    },
    /// A value is infinite or not a number.
    #[error("field '{field}': element {element} is {value}")]
    NonFinite {
        /// The field's name.
        field: String,
        /// The element's index within the sample.
        element: usize,
        /// The value: NaN or an infinity.
        value: f32,
    },
    /// A field of a sample has another shape than in the pipeline's other samples at this stage.
    #[error("{sample}: field '{field}': shape {found:?}, expected {expected:?}, after {stage}")]
    Shape {
        /// The sample, as its source describes it.
        sample: String,
        /// The field's name.
        field: String,
        /// The field's shape in this sample.
        found: Vec<usize>,
        /// The field's shape in the pipeline's samples.
        expected: Vec<usize>,
        /// The stage that the sample came out of.
        stage: String,
    },
    /// A field of a sample has another type than in the pipeline's other samples at this stage.
    #[error("{sample}: field '{field}': dtype {found}, expected {expected}, after {stage}")]
    Dtype {
        /// The sample, as its source describes it.
        sample: String,
        /// The field's name.
        field: String,
        /// The field's type in this sample.
        found: FieldDType,
        /// The field's type in the pipeline's samples.
        expected: FieldDType,
        /// The stage that the sample came out of.
        stage: String,
    },
    /// A sample has other fields than its pipeline's samples have at this stage.
    #[error("{sample}: fields {found:?}, expected {expected:?}, after {stage}")]
    Fields {
        /// The sample, as its source describes it.
        sample: String,
        /// The names of the fields of this sample.
        found: Vec<String>,
        /// The names of the fields of the pipeline's samples.
        expected: Vec<String>,
        /// The stage that the sample came out of.
        stage: String,
    },
    /// A stage failed on a sample.
    #[error("{sample}: {stage}: {cause}")]
    Stage {
        /// The sample, as its source describes it.
        sample: String,
        /// The stage: "fetch", "map 'resize'".
        stage: String,
        /// The error it returned.
        cause: BoxError,
    },
    /// A stage panicked on a sample.
    #[error("{sample}: {stage}: panicked: {message}")]
    Panic {
        /// The sample, as its source describes it.
        sample: String,
        /// The stage: "fetch", "map 'resize'".
        stage: String,
        /// The panic's message.
        message: String,
    },
    /// An index is beyond the end of a source.
    #[error("sample {index}: the source's length is {len}")]
    Index {
        /// The index asked for.
        index: u64,
        /// The source's length.
        len: u64,
    },
    /// A position is beyond the end of its epoch.
    #[error("position {sample} of epoch {epoch}: an epoch has {len} samples")]
    Position {
        /// The epoch asked for.
        epoch: u32,
        /// The sample asked for.
        sample: u64,
        /// The source's length.
        len: u64,
    },
    /// A setting cannot work.
    #[error("{setting}: {what}")]
    Setting {
        /// The setting's name, such as "batch".
        setting: &'static str,
        /// The reason.
        what: String,
    },
    /// The flag of [`Loader::stop_on`](crate::Loader::stop_on) was set. Nothing is wrong with the data.
    #[error("stopped on request while data were read")]
    Stopped,
    /// A worker thread could not be started, or ended by itself.
    #[error("loader threads: {0}")]
    Threads(String),
    /// A user's own source failed.
    #[error("{0}")]
    Other(BoxError),
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for DataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns a column's name behind its number.
fn named(name: &Option<String>) -> String {
    name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default()
}

impl DataError {
    /// Wraps the error of a user's own source.
    pub fn other(cause: impl Into<BoxError>) -> Self {
        Self::Other(cause.into())
    }

    /// Returns the error of a file that does not keep to its format.
    pub(crate) fn format(path: &Path, what: impl Into<String>) -> Self {
        Self::Format { path: path.into(), what: what.into() }
    }

    /// Returns the error of a field that is missing or does not fit.
    pub(crate) fn field(field: &str, what: impl Into<String>) -> Self {
        Self::Field { field: field.into(), what: what.into() }
    }
}
