//! Tables in Parquet and Arrow files, read a part at a time.

mod build;
mod cells;
mod chunk;
mod file;
mod source;
mod thrift;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sources::budget::DECODED_BYTES;
use crate::{DataError, Missing, TableSchema};

pub use source::ColumnarSource;

/// Columns of Parquet files, or of Arrow files (Feather version 2), as a source of samples. It needs the
/// feature `parquet`.
///
/// The files are not loaded: a row is found by its number, and up to 8,192 rows around it are decoded and
/// kept, up to [`Columnar::most_bytes`]. So tables may be larger than memory. A shuffle over all rows
/// decodes a part for almost every sample, unless all parts fit.
///
/// Several files are one table, one behind the other in the order in which they are given. All have the
/// columns that are read. Columns have names, and their types are those of the files: numbers and booleans,
/// texts, and lists of numbers with one length. Parquet's compressions are Snappy, GZIP, LZ4, Zstandard and
/// none; Arrow's are LZ4, Zstandard and none.
///
/// A file that is damaged is an error, also where the reader of the crates `parquet` and `arrow-ipc` panics
/// on it. Such a panic is caught, but the program's panic hook hears of it first, and Rust's own hook prints
/// a message on standard error.
///
/// ```no_run
/// use unisono_data::{Columnar, Loader, Missing};
///
/// let rides = Columnar::folder("rides")?.numbers(["distance", "hour"]).category("city").target("minutes");
/// let rides = rides.missing(Missing::Mean).open()?;
/// let loader = Loader::new(rides);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Columnar {
    paths: Vec<PathBuf>,
    columns: Columns,
    missing: Missing,
    like: Option<TableSchema>,
    most: u64,
    floats: Floats,
}

/// How numbers become f32.
#[derive(Clone, Debug, Default)]
struct Floats {
    /// For columns, what is subtracted from a number in f64, and what it is then divided by.
    scaled: BTreeMap<String, (f64, f64)>,
    /// Whether a number that f32 does not hold is rounded.
    rounds: bool,
}

/// The columns that are read.
#[derive(Clone, Debug, Default)]
struct Columns {
    numbers: Vec<String>,
    categories: Vec<String>,
    wholes: Vec<String>,
    lists: Vec<String>,
    texts: Vec<Text>,
    targets: Vec<String>,
    label: Option<String>,
    weight: Option<String>,
}

/// A column of texts that are read as ids.
#[derive(Clone, Debug)]
struct Text {
    column: String,
    /// The number of ids that a text is cut or padded to.
    longest: usize,
    encode: Encode,
}

/// The ids of a text.
type Ids = Result<Vec<i32>, DataError>;

/// A function that makes ids of a text.
#[derive(Clone)]
struct Encode(Arc<dyn Fn(&str) -> Ids + Send + Sync>);

impl fmt::Debug for Encode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encode")
    }
}

impl Columns {
    /// Returns the names of all columns, each once, in alphabetical order.
    fn names(&self) -> Vec<String> {
        let lists = [&self.numbers, &self.categories, &self.wholes, &self.lists, &self.targets];
        let texts = self.texts.iter().map(|text| &text.column);
        let mut names: Vec<String> = lists
            .into_iter()
            .flatten()
            .chain(texts)
            .chain(&self.label)
            .chain(&self.weight)
            .cloned()
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Columnar {
    /// Reads these files, one behind the other. Whether one is a Parquet or an Arrow file is seen by its
    /// first bytes.
    pub fn new<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self {
            paths: paths.into_iter().map(|path| path.as_ref().to_owned()).collect(),
            columns: Columns::default(),
            missing: Missing::Error,
            like: None,
            most: DECODED_BYTES,
            floats: Floats::default(),
        }
    }

    /// Reads all files of a folder whose names end in `.parquet`, `.arrow` or `.feather`, in the order of
    /// their names.
    ///
    /// # Errors
    /// The folder cannot be read, or has no such file.
    pub fn folder(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let io = |cause| DataError::Io { path: path.into(), cause };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(path).map_err(io)? {
            let file = entry.map_err(io)?.path();
            let ending = file.extension().and_then(|ending| ending.to_str());
            if matches!(ending, Some("parquet" | "arrow" | "feather")) {
                paths.push(file);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(DataError::format(path, "no file ends in .parquet, .arrow or .feather"));
        }
        Ok(Self::new(paths))
    }

    /// Reads these columns of numbers, in this order: "x", f32. Booleans are 0 and 1.
    pub fn numbers<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns.numbers.extend(columns.into_iter().map(Into::into));
        self
    }

    /// Reads a column of texts or whole numbers as categories: a field of the column's name, i32, a scalar.
    /// The ids count the texts in alphabetical order from 0. A value that is missing is the category of the
    /// empty text.
    pub fn category(mut self, column: impl Into<String>) -> Self {
        self.columns.categories.push(column.into());
        self
    }

    /// Reads a column of whole numbers as they are, such as ids and times: a field of the column's name, i32,
    /// a scalar. One that is missing, or does not fit 32 bits, is an error.
    pub fn whole(mut self, column: impl Into<String>) -> Self {
        self.columns.wholes.push(column.into());
        self
    }

    /// Reads the numbers of a column as (number - offset) / scale, computed in f64 and rounded to f32 once.
    /// Times and other numbers that are large and close to each other keep their differences so. Numbers
    /// that take the place of missing ones are scaled ones. Default: offset 0 and scale 1.
    pub fn scaled(mut self, column: impl Into<String>, offset: f64, scale: f64) -> Self {
        self.floats.scaled.insert(column.into(), (offset, scale));
        self
    }

    /// Rounds numbers that f32 does not hold to the nearest one that it does, as PyTorch and Keras do.
    /// Default: such a number is an error: a whole number beyond 2^24 that f32 does not represent, and an f64
    /// beyond 2^24 or out of the range of f32.
    pub fn rounded(mut self) -> Self {
        self.floats.rounds = true;
        self
    }

    /// Reads a column of lists of numbers, all of one length: a field of the column's name, i32 where the
    /// numbers are whole, f32 where they are not. Tokens, embeddings and small images are such columns.
    pub fn list(mut self, column: impl Into<String>) -> Self {
        self.columns.lists.push(column.into());
        self
    }

    /// Reads a column of texts as ids: a field of the column's name, i32, `[longest]`. `encode` makes the ids
    /// of a text. What is beyond `longest` is cut off, and shorter texts are padded with 0.
    ///
    /// With a `Tokenizer`, pass `move |text| tokenizer.encode_within(text, 200)`: texts that are cut off then
    /// keep their special tokens.
    ///
    /// ```no_run
    /// use unisono_data::Columnar;
    ///
    /// let bytes = |text: &str| Ok(text.bytes().map(|byte| i32::from(byte) + 1).collect());
    /// let reviews = Columnar::new(["reviews.parquet"]).text("review", 200, bytes).label("stars").open()?;
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn text(
        mut self,
        column: impl Into<String>,
        longest: usize,
        encode: impl Fn(&str) -> Result<Vec<i32>, DataError> + Send + Sync + 'static,
    ) -> Self {
        self.columns.texts.push(Text { column: column.into(), longest, encode: Encode(Arc::new(encode)) });
        self
    }

    /// Reads a column of classes: "y", i32, a scalar. Whole numbers stay as they are; texts count from 0 in
    /// alphabetical order.
    pub fn label(mut self, column: impl Into<String>) -> Self {
        self.columns.label = Some(column.into());
        self
    }

    /// Reads a column of numbers to predict: "y", f32, one number.
    pub fn target(self, column: impl Into<String>) -> Self {
        self.targets([column.into()])
    }

    /// Reads several columns of numbers to predict: "y", f32, one number for each.
    pub fn targets<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns.targets.extend(columns.into_iter().map(Into::into));
        self
    }

    /// Reads a column as the samples' weights: "w", f32, a scalar.
    pub fn weight(mut self, column: impl Into<String>) -> Self {
        self.columns.weight = Some(column.into());
        self
    }

    /// Sets what becomes of numbers of "x" that are missing, which are nulls and NaN. Other values that are
    /// missing are errors, unless their rows are left out. The median takes 4 bytes for each row while the
    /// files are opened. Default: [`Missing::Error`].
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// Reads the files with the categories, classes and fills of other ones. A category that those do not
    /// have is an error, and so are their columns of numbers in another order.
    pub fn like(self, schema: &TableSchema) -> Self {
        Self { like: Some(schema.clone()), ..self }
    }

    /// Sets the most bytes that decoded rows take while they are kept, and that decoding a part may take.
    /// Default: [`DECODED_BYTES`].
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Opens the files. They are read through once where that is needed: for the texts of categories and of
    /// labels, unless [`Columnar::like`] has them, for means and medians, for rows that are left out, and for
    /// the number of rows in each part of an Arrow file.
    ///
    /// # Errors
    /// A file that cannot be read or is of another format; a column that is not there or of another type; a
    /// part of a file that takes more than [`Columnar::most_bytes`].
    pub fn open(&self) -> Result<ColumnarSource, DataError> {
        build::open(self)
    }
}
