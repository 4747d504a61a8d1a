//! What can be wrong with data, each naming its culprit.

use std::path::{Path, PathBuf};

use crate::Dtype;

/// Any error that a transform or a source of one's own may return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Everything that this crate reports. A cause is part of the message, so printing the error once says it all.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be opened or read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A value in a CSV file does not parse, or is not finite.
    #[error("{}: line {line}: column {column}: {value:?} is not {expected}", path.display())]
    CsvValue {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: usize,
        /// The text found there.
        value: String,
        /// What it should have been, such as "a number".
        expected: &'static str,
    },
    /// A line of a CSV file has another number of columns than the first.
    #[error("{}: line {line}: {found} columns, expected {expected}", path.display())]
    CsvWidth {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Columns in this line.
        found: usize,
        /// Columns in the first line, or what the shape asked for needs.
        expected: usize,
    },
    /// A CSV file cannot be read on after a line: bad compression, or text that is not UTF-8.
    #[error("{}: line {line}: {cause}", path.display())]
    CsvBroken {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        cause: String,
    },
    /// A CSV file has no samples, or not the column asked for.
    #[error("{}: {what}", path.display())]
    CsvTable {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// A file is not what its format says.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A source's fields do not fit each other, or a field is missing or of another type than needed.
    #[error("field '{field}': {what}")]
    Field {
        /// The field's name.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// A value that is infinite or not a number.
    #[error("field '{field}': element {element} is {value}")]
    NonFinite {
        /// The field's name.
        field: String,
        /// The element's index within the sample.
        element: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A sample has another shape than its pipeline's samples have at this stage.
    #[error("{sample}: field '{field}': shape {found:?}, expected {expected:?}, after {stage}")]
    Shape {
        /// The sample, as its source describes it.
        sample: String,
        /// The field's name.
        field: String,
        /// This sample's shape.
        found: Vec<usize>,
        /// The pipeline's.
        expected: Vec<usize>,
        /// The stage that the sample came out of.
        stage: String,
    },
    /// A sample has another type than its pipeline's samples have at this stage.
    #[error("{sample}: field '{field}': dtype {found}, expected {expected}, after {stage}")]
    Dtype {
        /// The sample, as its source describes it.
        sample: String,
        /// The field's name.
        field: String,
        /// This sample's type.
        found: Dtype,
        /// The pipeline's.
        expected: Dtype,
        /// The stage that the sample came out of.
        stage: String,
    },
    /// A sample has other fields than its pipeline's samples have at this stage.
    #[error("{sample}: fields {found:?}, expected {expected:?}, after {stage}")]
    Fields {
        /// The sample, as its source describes it.
        sample: String,
        /// This sample's field names.
        found: Vec<String>,
        /// The pipeline's.
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
        /// What it returned.
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
    /// An index beyond a source's end.
    #[error("sample {index} of a source of {len}")]
    Index {
        /// The index asked for.
        index: u64,
        /// The source's length.
        len: u64,
    },
    /// A position beyond its epoch's end.
    #[error("position {sample} of epoch {epoch}: an epoch has {len} samples")]
    Position {
        /// The epoch asked for.
        epoch: u32,
        /// The sample asked for.
        sample: u64,
        /// The source's length.
        len: u64,
    },
    /// A setting that cannot work.
    #[error("{setting}: {what}")]
    Setting {
        /// The setting's name, such as "batch".
        setting: &'static str,
        /// Why not.
        what: String,
    },
    /// A worker thread could not be started, or ended by itself.
    #[error("loader threads: {0}")]
    Threads(String),
    /// An error of a source of one's own.
    #[error("{0}")]
    Other(BoxError),
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for DataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl DataError {
    /// Wraps the error of a source of one's own.
    pub fn other(cause: impl Into<BoxError>) -> Self {
        Self::Other(cause.into())
    }

    /// A file that does not keep to its format.
    pub(crate) fn format(path: &Path, what: impl Into<String>) -> Self {
        Self::Format { path: path.into(), what: what.into() }
    }

    /// A field that is missing or does not fit.
    pub(crate) fn field(field: &str, what: impl Into<String>) -> Self {
        Self::Field { field: field.into(), what: what.into() }
    }
}
