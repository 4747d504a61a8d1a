//! CSV files: tables of numbers in text, gzipped or not.

mod advice;
pub(crate) mod columns;
pub(crate) mod number;
pub(crate) mod schema;
mod texts;

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use self::columns::{Chosen, ChosenTable};
use self::number::{Reading, whole};
use crate::sample::regular::open_regular;
use crate::sources::budget::{Budget, DECODED_BYTES, reserve};
use crate::sources::files::element::check_scale;
use crate::sources::gzip::{is_gzipped, unpacked};
use crate::{DataError, Memory, Values};

/// Reads a CSV file into a [`Memory`] (pandas's `read_csv`). The field "x" has the f32 features. If you name
/// a label or a target, there is also a field "y". Needs the feature `csv`.
///
/// The file may be gzipped; its first bytes tell. Lines end with a line feed, a carriage return, or both.
/// Blank lines are skipped. Every line must have as many columns as the first, and every value must be a
/// finite number that f32 can store. f32 cannot store all whole numbers beyond 2^24: an id or a time such as
/// 1700000001 is an error. Use [`scaled`](Self::scaled), [`whole`](Self::whole), [`category`](Self::category)
/// or [`rounded`](Self::rounded) for such columns. Errors name the file, the line and the column.
#[doc(alias = "read_csv")]
#[derive(Clone, Debug)]
pub struct Csv {
    path: PathBuf,
    header: bool,
    delimiter: u8,
    answer: Answer,
    shape: Option<Vec<usize>>,
    most: u64,
    /// The columns that are read, if they were chosen.
    chosen: Option<Chosen>,
    /// The columns whose numbers are scaled: what is subtracted, and what they are divided by.
    scaled: Vec<(Column, (f64, f64))>,
    rounds: bool,
}

/// A column of a table, by name or by position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Column {
    /// The first column.
    First,
    /// The last column.
    Last,
    /// The column at an index, from 0.
    Index(usize),
    /// The column of this name in the header.
    Name(String),
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<usize> for Column {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// Takes a record, with the names of the columns, if the file has them, and its line.
type EachRecord<'a> = dyn FnMut(&[String], &::csv::StringRecord, u64) -> Result<(), DataError> + 'a;

/// The kind of the field "y".
#[derive(Clone, Debug)]
enum Answer {
    None,
    /// A class label: i32, a scalar.
    Label(Column),
    /// A number to predict: f32, of shape `[1]`.
    Target(Column),
}

impl Csv {
    /// Describes a file without a header, a label or a target.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_path_buf();
        let (answer, most) = (Answer::None, DECODED_BYTES);
        Self {
            path,
            header: false,
            delimiter: b',',
            answer,
            shape: None,
            most,
            chosen: None,
            scaled: vec![],
            rounds: false,
        }
    }

    /// Sets whether the first line has the names of the columns. Default: false.
    pub fn header(self, header: bool) -> Self {
        Self { header, ..self }
    }

    /// Sets the character between columns. Default: a comma.
    pub fn delimiter(self, delimiter: u8) -> Self {
        Self { delimiter, ..self }
    }

    /// Sets the column of class labels, which becomes "y": i32, a scalar. Default: none.
    pub fn label(mut self, column: impl Into<Column>) -> Self {
        let column = column.into();
        self.header |= matches!(column, Column::Name(_));
        self.answer = Answer::Label(column);
        self
    }

    /// Sets the column of numbers to predict, which becomes "y": f32, of shape `[1]`. Default: none.
    pub fn target(mut self, column: impl Into<Column>) -> Self {
        let column = column.into();
        self.header |= matches!(column, Column::Name(_));
        self.answer = Answer::Target(column);
        self
    }

    /// Reads the numbers of a column as (number - offset) / scale. This is computed in f64 and rounded to f32
    /// once, so large numbers that are close to each other, such as times, keep their differences. Default:
    /// offset 0 and scale 1.
    ///
    /// ```
    /// use unisono_data::Csv;
    ///
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("visits.csv");
    /// # std::fs::write(&path, "time,sold\n1700000001,1\n1700000050,0\n").unwrap();
    /// let visits = Csv::new(&path).scaled("time", 1_700_000_000.0, 10.0).label("sold").read()?;
    /// assert_eq!(visits.array("x").unwrap().as_f32(), Some(&[0.1, 5.0][..]));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn scaled(mut self, column: impl Into<Column>, offset: f64, scale: f64) -> Self {
        let column = column.into();
        self.header |= matches!(column, Column::Name(_));
        self.scaled.push((column, (offset, scale)));
        self
    }

    /// Rounds numbers that f32 cannot store to the nearest f32, as PyTorch and Keras do. Default: such a
    /// number is an error.
    pub fn rounded(self) -> Self {
        Self { rounds: true, ..self }
    }

    /// Returns how the numbers of a column are read.
    fn reading(&self, at: usize, width: usize, names: &[String]) -> Reading {
        let is_it = |column: &Column| self.index_of(column, width, names).is_ok_and(|own| own == at);
        let scale = self.scaled.iter().rev().find(|(column, _)| is_it(column)).map(|(_, scale)| *scale);
        Reading { scale, rounds: self.rounds }
    }

    /// Refuses an offset or a scale with which the numbers of a column cannot be read.
    fn check_scale(&self, at: usize, names: &[String], scale: (f64, f64)) -> Result<(), DataError> {
        let column = names.get(at).map_or_else(|| format!("{}", at + 1), |name| format!("{name:?}"));
        check_scale(scale).map_err(|problem| self.table_error(format!("column {column}: {problem}")))
    }

    /// Sets the shape of a sample's features. Default: `[columns]`.
    pub fn shape(self, shape: impl Into<Vec<usize>>) -> Self {
        Self { shape: Some(shape.into()), ..self }
    }

    /// Sets the maximum number of bytes for the table's values, four bytes each. Default: [`DECODED_BYTES`].
    /// The text of one line may take a 64th of it, because its columns take many times the memory of their
    /// text.
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, has no samples, or lacks a column. A line has another number of columns. A
    /// value is not a finite number, or is missing without a replacement ([`Csv::missing`]). Settings exclude
    /// each other, such as a label and targets. All columns are features, and the first one is the index of a
    /// pandas table. The table takes more than [`Csv::most_bytes`]. Errors of a
    /// value name its line and its column.
    pub fn read(&self) -> Result<Memory, DataError> {
        if let Some(chosen) = &self.chosen {
            return Ok(ChosenTable::read(self, chosen)?.0);
        }
        let mut table: Option<Table> = None;
        self.for_each_record(&mut |names, record, line| match &mut table {
            Some(table) => table.push(self, record, line),
            None => {
                let width = if names.is_empty() { record.len() } else { names.len() };
                table.insert(Table::new(self, width, names)?).push(self, record, line)
            }
        })?;
        table.ok_or_else(|| self.table_error("no samples"))?.finish(self)
    }

    /// Reads the records one by one, each with the names of the columns, if the file has them, and its line.
    fn for_each_record(&self, each: &mut EachRecord<'_>) -> Result<(), DataError> {
        let line_bytes = Rc::new(Cell::new(0));
        let mut reader = ::csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(self.delimiter)
            .trim(::csv::Trim::All)
            .terminator(::csv::Terminator::Any(b'\n'))
            // With this, every record ends with a line feed, so the reader's line is always the one after the
            // record.
            .from_reader(self.open(&line_bytes)?.chain(&b"\n"[..]));
        let mut record = ::csv::StringRecord::new();
        let mut names: Option<Vec<String>> = None;
        loop {
            let read = reader.read_record(&mut record);
            let line = reader.position().line();
            // The reader is at most one buffer ahead of the record.
            line_bytes.set(0);
            match read {
                Err(error) => return Err(self.broken(line, &error)),
                Ok(false) => return Ok(()),
                Ok(true) if record.len() == 1 && record[0].is_empty() => {}
                Ok(true) if self.header && names.is_none() => {
                    names = Some(record.iter().map(str::to_owned).collect::<Vec<_>>());
                }
                Ok(true) if names.as_ref().is_some_and(|names| is_header(&record, names)) => {
                    let cause = "the header comes again; a table has it once".to_owned();
                    return Err(DataError::CsvBroken { path: self.path.clone(), line: line - 1, cause });
                }
                Ok(true) => each(names.as_deref().unwrap_or(&[]), &record, line - 1)?,
            }
        }
    }

    /// Returns the index of a column.
    fn index_of(&self, column: &Column, width: usize, names: &[String]) -> Result<usize, DataError> {
        match column {
            Column::First => Ok(0),
            Column::Last => Ok(width - 1),
            Column::Index(index) if *index < width => Ok(*index),
            Column::Index(index) => Err(self.table_error(format!("no column {index}: there are {width}"))),
            Column::Name(name) => {
                let mut places = (0..names.len()).filter(|&at| names[at] == *name);
                match (places.next(), places.next()) {
                    (Some(at), None) => Ok(at),
                    (Some(_), Some(_)) => {
                        Err(self.table_error(format!("several columns are named {name:?}: choose by index")))
                    }
                    _ => {
                        let other =
                            names.iter().find_map(|name| name.chars().find(|c| [';', '\t', '|'].contains(c)));
                        let hint = other.map(|c| format!(" (Csv::delimiter(b{c:?}) is for such a file)"));
                        let hint = hint.filter(|_| names.len() == 1).unwrap_or_default();
                        Err(self.table_error(format!("no column named {name:?} in {names:?}{hint}")))
                    }
                }
            }
        }
    }

    fn open(&self, line_bytes: &Rc<Cell<u64>>) -> Result<Box<dyn Read>, DataError> {
        let io = |cause| DataError::Io { path: self.path.clone(), cause };
        let mut file = BufReader::new(open_regular(&self.path)?);
        let gzipped = is_gzipped(file.fill_buf().map_err(io)?);
        let inner: Box<dyn Read> =
            if gzipped { Box::new(unpacked(&self.path, file)?) } else { Box::new(file) };
        let inner = Box::new(LineEnds(BufReader::new(inner)));
        Ok(Box::new(LimitedLines { inner, most: self.line_budget().most, read: line_bytes.clone() }))
    }

    fn line_budget(&self) -> Budget {
        Budget { most: (self.most / 64).max(LEAST_LINE), setting: "Csv::most_bytes" }
    }

    /// Returns the error of a file that cannot be read on. `line` is the one that the reader is at.
    fn broken(&self, line: u64, error: &::csv::Error) -> DataError {
        let (line, cause) = match error.kind() {
            ::csv::ErrorKind::Io(cause) if cause.get_ref().is_some_and(|cause| cause.is::<LineTooLong>()) => {
                let Budget { most, setting } = self.line_budget();
                let what = format!("the text of line {line}, which may take a 64th of the budget,");
                let needs = Some(most.saturating_add(1));
                return DataError::Budget { path: self.path.clone(), what, needs, most, setting };
            }
            ::csv::ErrorKind::Utf8 { .. } => (line - 1, "not UTF-8".to_owned()),
            ::csv::ErrorKind::Io(cause) => (line, cause.to_string()),
            _ => (line, error.to_string()),
        };
        DataError::CsvBroken { path: self.path.clone(), line, cause }
    }

    /// Returns the error of a column that is scaled and is something else than numbers.
    fn not_numbers(&self, column: &str) -> DataError {
        self.table_error(format!("column {column:?} is scaled and not read as numbers"))
    }

    fn table_error(&self, what: impl Into<String>) -> DataError {
        DataError::CsvTable { path: self.path.clone(), what: what.into() }
    }
}

/// Whether a record is the header once more, as where files were joined.
fn is_header(record: &::csv::StringRecord, names: &[String]) -> bool {
    let own = record.iter().map(|text| text.trim_start_matches('\u{feff}'));
    own.eq(names.iter().map(|name| name.trim_start_matches('\u{feff}')))
}

/// A reader that ends lines with a line feed where a carriage return alone ends them.
struct LineEnds(BufReader<Box<dyn Read>>);

impl Read for LineEnds {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(buffer)?;
        let Some(bytes) = buffer.get_mut(..read) else { return Ok(read) };
        for at in 0..read {
            if bytes[at] != b'\r' {
                continue;
            }
            let next = match bytes.get(at + 1) {
                Some(next) => Some(*next),
                None => self.0.fill_buf()?.first().copied(),
            };
            if next != Some(b'\n') {
                bytes[at] = b'\n';
            }
        }
        Ok(read)
    }
}

/// The least limit of a line's text: less than the readers' buffers hold cannot be told apart.
const LEAST_LINE: u64 = 1 << 16;

/// A reader that fails in a line that is too long, before more of it is held than the limit.
struct LimitedLines {
    inner: Box<dyn Read>,
    most: u64,
    /// The bytes read since the last line ended, which whoever parses the lines sets back.
    read: Rc<Cell<u64>>,
}

impl Read for LimitedLines {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.set(self.read.get().saturating_add(read as u64));
        if self.read.get() > self.most { Err(std::io::Error::other(LineTooLong)) } else { Ok(read) }
    }
}

/// The error of a line that is too long, which [`Csv::read`] turns into one that names file and limit.
#[derive(Debug, thiserror::Error)]
#[error("the line is too long")]
struct LineTooLong;

/// The values read so far.
struct Table {
    width: usize,
    /// The index of the label's or target's column.
    answer_at: Option<usize>,
    /// How the numbers of each column are read.
    readings: Vec<Reading>,
    names: Vec<String>,
    features: Vec<f32>,
    labels: Vec<i32>,
    targets: Vec<f32>,
}

impl Table {
    fn new(csv: &Csv, width: usize, names: &[String]) -> Result<Self, DataError> {
        let answer_at = match &csv.answer {
            Answer::None => None,
            Answer::Label(column) | Answer::Target(column) => Some(csv.index_of(column, width, names)?),
        };
        if width == usize::from(answer_at.is_some()) {
            let what =
                "no columns of features: a line has one column, and Csv::delimiter says what separates them";
            return Err(csv.table_error(what));
        }
        if let Some(what) =
            names.first().filter(|_| answer_at != Some(0)).and_then(|name| advice::of_an_index(name))
        {
            return Err(csv.table_error(what));
        }
        for (column, scale) in &csv.scaled {
            let place = csv.index_of(column, width, names)?;
            csv.check_scale(place, names, *scale)?;
            if matches!(csv.answer, Answer::Label(_)) && answer_at == Some(place) {
                return Err(csv.not_numbers(names.get(place).map_or("the label", String::as_str)));
            }
        }
        let readings = (0..width).map(|at| csv.reading(at, width, names)).collect();
        let (features, labels, targets) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { width, answer_at, readings, names: names.to_vec(), features, labels, targets })
    }

    fn push(&mut self, csv: &Csv, record: &::csv::StringRecord, line: u64) -> Result<(), DataError> {
        if record.len() != self.width {
            let (found, expected) = (record.len(), self.width);
            return Err(DataError::CsvWidth { path: csv.path.clone(), line, found, expected });
        }
        let held = self.features.len() + self.labels.len() + self.targets.len();
        let budget = Budget { most: csv.most, setting: "Csv::most_bytes" };
        let needs = held.checked_add(self.width).and_then(|values| (values as u64).checked_mul(4));
        budget.check(&csv.path, &format!("the table up to line {line}"), needs)?;
        let most = usize::try_from(csv.most / 4).unwrap_or(usize::MAX);
        reserve(&csv.path, &mut self.features, self.width, most)?;
        reserve(&csv.path, &mut self.labels, 1, most)?;
        reserve(&csv.path, &mut self.targets, 1, most)?;
        for (column, value) in record.iter().enumerate() {
            let wrong = |expected| DataError::CsvValue {
                path: csv.path.clone(),
                line,
                column: column + 1,
                name: self.names.get(column).cloned(),
                value: value.chars().take(40).collect(),
                expected,
            };
            let number = || {
                self.readings[column]
                    .number(value)
                    .map_err(|expected| wrong(advice::advised(expected, value)))
            };
            match &csv.answer {
                Answer::Label(_) if Some(column) == self.answer_at => {
                    self.labels.push(whole(value).ok_or_else(|| wrong(advice::LABEL))?);
                }
                Answer::Target(_) if Some(column) == self.answer_at => self.targets.push(number()?),
                _ => self.features.push(number()?),
            }
        }
        Ok(())
    }

    fn finish(self, csv: &Csv) -> Result<Memory, DataError> {
        let columns = self.width - usize::from(self.answer_at.is_some());
        let shape = csv.shape.clone().unwrap_or_else(|| vec![columns]);
        if crate::sample::field::elements(&shape) != Some(columns) {
            return Err(csv.table_error(format!("{columns} columns of features do not fill shape {shape:?}")));
        }
        let memory = Memory::new("x", shape, Values::F32(self.features))?;
        match csv.answer {
            Answer::None => Ok(memory),
            Answer::Label(_) => memory.with("y", [], Values::I32(self.labels)),
            Answer::Target(_) => memory.with("y", [1], Values::F32(self.targets)),
        }
    }
}
