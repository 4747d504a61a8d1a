//! The source: rows by their numbers, out of parts that are decoded when they are asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Floats;
use super::chunk::{Chunk, Make};
use super::file::{File, Part};
use crate::sources::budget::Budget;
use crate::{Coverage, DataError, FieldSpec, Fingerprint, Sample, Source, TableSchema};

/// Rows of Parquet or Arrow files, which [`Columnar::open`](crate::Columnar::open) opens.
pub struct ColumnarSource {
    pub(super) files: Vec<File>,
    /// The parts of all files, each with the number of its file and that of its first row in the table.
    pub(super) parts: Vec<(usize, Part, u64)>,
    /// The number of rows of the table, those that are left out included.
    pub(super) rows: u64,
    /// The numbers of the rows that are left out, in ascending order.
    pub(super) left_out: Vec<u64>,
    pub(super) columns: Vec<String>,
    pub(super) makes: Vec<Make>,
    pub(super) floats: Floats,
    pub(super) specs: Vec<FieldSpec>,
    pub(super) schema: TableSchema,
    pub(super) budget: Budget,
    pub(super) fingerprint: u64,
    pub(super) kept: Mutex<Kept>,
}

/// The decoded parts that are kept, by their numbers.
#[derive(Default)]
pub(super) struct Kept {
    /// Each part with the time of its last use.
    chunks: BTreeMap<usize, (Arc<Chunk>, u64)>,
    bytes: u64,
    now: u64,
}

impl Kept {
    fn get(&mut self, part: usize) -> Option<Arc<Chunk>> {
        self.now += 1;
        let (chunk, used) = self.chunks.get_mut(&part)?;
        *used = self.now;
        Some(Arc::clone(chunk))
    }

    /// Keeps a part, in the place of those whose last use is the longest ago, as far as all fit.
    fn keep(&mut self, part: usize, chunk: &Arc<Chunk>, most: u64) {
        if chunk.bytes() > most || self.chunks.contains_key(&part) {
            return;
        }
        self.bytes += chunk.bytes();
        self.chunks.insert(part, (Arc::clone(chunk), self.now));
        while self.bytes > most {
            let oldest = self.chunks.iter().filter(|(at, _)| **at != part).min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(at, _)| *at) else { return };
            self.bytes -= self.chunks.remove(&oldest).map_or(0, |(chunk, _)| chunk.bytes());
        }
    }
}

impl ColumnarSource {
    /// Returns what the columns were read with, for reading other files the same way.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// Returns the number in the table of a row that is not left out.
    fn row(&self, index: u64) -> u64 {
        // The number of rows left out before a row is the least that leaves enough others.
        let (mut low, mut high) = (0, self.left_out.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.left_out[middle] - middle as u64 <= index { low = middle + 1 } else { high = middle }
        }
        index + low as u64
    }

    /// Returns the number of the part that has a row, and the row's number in it.
    fn place(&self, row: u64) -> (usize, u64) {
        let part = self.parts.partition_point(|(_, _, first)| *first <= row).saturating_sub(1);
        (part, row - self.parts.get(part).map_or(0, |(_, _, first)| *first))
    }

    /// Returns a decoded part.
    fn chunk(&self, at: usize) -> Result<Arc<Chunk>, DataError> {
        if let Some(chunk) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(at) {
            return Ok(chunk);
        }
        let (file, part, _) = self.parts[at];
        let file = &self.files[file];
        let batches = file.decode(part, &self.columns, self.budget)?;
        let chunk = Chunk::of(&self.makes, &self.floats, &batches);
        let chunk = chunk.map_err(|problem| DataError::format(file.path(), problem))?;
        let chunk = Arc::new(chunk);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).keep(at, &chunk, self.budget.most);
        Ok(chunk)
    }
}

/// Returns the number, in its file, of the first row of a part.
pub(super) fn row_in_file(file: &File, part: Part) -> u64 {
    file.groups[..part.group].iter().sum::<u64>() + part.first
}

impl Source for ColumnarSource {
    fn len(&self) -> u64 {
        self.rows - self.left_out.len() as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let (part, row) = self.place(self.row(index));
        let chunk = self.chunk(part)?;
        if let Some(problem) = chunk.problem(row as usize) {
            let (file, part, _) = self.parts[part];
            let file = &self.files[file];
            return Err(DataError::format(
                file.path(),
                format!("row {}: {problem}", row_in_file(file, part) + row),
            ));
        }
        let fields = chunk.row(row as usize, &self.specs);
        Ok(fields.fold(Sample::new(), |sample, (name, field)| sample.with(name, field)))
    }

    fn describe(&self, index: u64) -> String {
        if index >= self.len() {
            return format!("sample {index}");
        }
        let (at, row) = self.place(self.row(index));
        let (file, part, _) = self.parts[at];
        format!("{}: row {}", self.files[file].path().display(), row_in_file(&self.files[file], part) + row)
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        match field {
            "y" => Some(self.schema.classes.as_slice()).filter(|classes| !classes.is_empty()),
            _ => self.schema.categories.get(field).map(Vec::as_slice),
        }
    }

    /// Says how many rows were left out.
    fn notes(&self) -> Vec<String> {
        let count = self.left_out.len();
        let path = self.files.first().map(|file| file.path().display().to_string()).unwrap_or_default();
        let note = (count > 0).then(|| format!("{path}: rows left out because a value is missing: {count}"));
        note.into_iter().collect()
    }

    fn fingerprint(&self) -> u64 {
        Fingerprint::new().word(self.fingerprint).source(self.len(), &self.specs).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
}
