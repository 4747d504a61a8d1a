//! One file: which parts it has, and the rows of a part.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, read_footer_length};
use arrow_schema::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::reader::{ChunkReader, Length};

use super::thrift::{self, Page, Wrong};
use crate::DataError;
use crate::sources::budget::Budget;
use crate::sources::files::Bytes;

/// The most rows of a part that are decoded at once.
pub(super) const ROWS: u64 = 8192;

/// A file and its parts.
#[derive(Clone)]
pub(super) struct File {
    bytes: Bytes,
    format: Format,
    pub schema: SchemaRef,
    /// The number of rows of each row group or record batch.
    pub groups: Vec<u64>,
    /// The columns of Parquet row groups whose pages have been looked at: the group and the leaf of each.
    checked: Arc<Mutex<BTreeSet<(usize, usize)>>>,
}

#[derive(Clone)]
enum Format {
    Parquet(ArrowReaderMetadata),
    Arrow,
}

/// Some rows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub group: usize,
    pub first: u64,
    pub rows: u64,
}

impl File {
    /// Opens a file and reads what its end says of it; of an Arrow file all, because it does not say how
    /// long its record batches are.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = Bytes::open(path)?;
        let magic = bytes.to_vec(0, bytes.len().min(6))?;
        if magic.starts_with(b"PAR1") {
            return guarded(path, || Self::parquet(&bytes));
        }
        if magic == *b"ARROW1" {
            return guarded(path, || Self::arrow(&bytes));
        }
        Err(DataError::format(path, "neither a Parquet nor an Arrow file"))
    }

    fn parquet(bytes: &Bytes) -> Result<Self, Problem> {
        check_end(bytes)?;
        let plain = ArrowReaderMetadata::load(bytes, ArrowReaderOptions::new())?;
        plain.metadata().row_groups().iter().flat_map(|group| group.columns()).try_for_each(|column| {
            let Some((at, length)) = column.offset_index_offset().zip(column.offset_index_length()) else {
                return Ok(());
            };
            let index = bytes.to_vec(at.try_into()?, length.try_into()?)?;
            thrift::check_index(&index)
                .map_err(|wrong| Problem::from(format!("the places of pages: {wrong}")))
        })?;
        // The places of pages serve to begin in the middle of a group; their least and greatest values serve
        // nothing here.
        let options = ArrowReaderOptions::new().with_offset_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(bytes, options)?;
        let groups = metadata.metadata().row_groups().iter();
        let groups = groups.map(|group| u64::try_from(group.num_rows())).collect::<Result<_, _>>()?;
        let schema = Arc::clone(metadata.schema());
        let checked = Arc::default();
        Ok(Self { bytes: bytes.clone(), format: Format::Parquet(metadata), schema, groups, checked })
    }

    fn arrow(bytes: &Bytes) -> Result<Self, Problem> {
        check_footer(bytes)?;
        let reader = FileReader::try_new(BufReader::new(At::start(bytes)), None)?;
        let schema = reader.schema();
        let groups = reader.map(|batch| Ok(batch?.num_rows() as u64)).collect::<Result<_, Problem>>()?;
        let checked = Arc::default();
        Ok(Self { bytes: bytes.clone(), format: Format::Arrow, schema, groups, checked })
    }

    pub fn path(&self) -> &Path {
        self.bytes.path()
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the parts in which the rows are decoded. A record batch of an Arrow file is one part.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let whole = matches!(self.format, Format::Arrow);
        self.groups.iter().enumerate().flat_map(move |(group, &rows)| {
            let at_once = if whole { rows.max(1) } else { ROWS };
            (0..rows.div_ceil(at_once)).map(move |part| {
                let first = part * at_once;
                Part { group, first, rows: at_once.min(rows - first) }
            })
        })
    }

    /// Decodes columns of a part, and hands over the record batches that it consists of.
    pub fn decode(
        &self,
        part: Part,
        columns: &[String],
        budget: Budget,
    ) -> Result<Vec<RecordBatch>, DataError> {
        let indices: Vec<usize> = columns.iter().filter_map(|name| self.schema.index_of(name).ok()).collect();
        self.check_size(part, &indices, budget)?;
        let batches = guarded(self.path(), || match &self.format {
            Format::Parquet(metadata) => self.decode_parquet(metadata, part, &indices),
            Format::Arrow => {
                let input = BufReader::new(At::start(&self.bytes));
                let mut reader = FileReader::try_new(input, Some(indices))?;
                reader.set_index(part.group)?;
                Ok(vec![reader.next().ok_or("a record batch is missing")??])
            }
        })?;
        let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        if rows != part.rows {
            let what = format!("part {} has {rows} rows, and {} are declared", part.group, part.rows);
            return Err(DataError::format(self.path(), what));
        }
        Ok(batches)
    }

    fn decode_parquet(
        &self,
        metadata: &ArrowReaderMetadata,
        part: Part,
        indices: &[usize],
    ) -> Result<Vec<RecordBatch>, Problem> {
        let builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(self.bytes.clone(), metadata.clone());
        let mask = ProjectionMask::roots(builder.parquet_schema(), indices.iter().copied());
        let leaves = metadata.metadata().row_group(part.group).columns().iter().enumerate();
        for (at, leaf) in leaves.filter(|&(at, _)| mask.leaf_included(at)) {
            let key = (part.group, at);
            let checked = || self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            let is_checked = checked().contains(&key);
            if !is_checked {
                let (start, length) = leaf.byte_range();
                check_pages(&self.bytes, start, length, leaf.uncompressed_size().try_into()?)?;
                checked().insert(key);
            }
        }
        let (first, rows) = (usize::try_from(part.first)?, usize::try_from(part.rows)?);
        let builder = builder.with_row_groups(vec![part.group]).with_projection(mask);
        let reader = builder.with_offset(first).with_limit(rows).with_batch_size(rows).build()?;
        reader.map(|batch| Ok(batch?)).collect()
    }

    /// Checks what the file says of the bytes that decoding a part takes: those of the columns in its row
    /// group, or in the whole Arrow file for a record batch.
    fn check_size(&self, part: Part, indices: &[usize], budget: Budget) -> Result<(), DataError> {
        let needs = match &self.format {
            Format::Arrow => Some(self.bytes.len()),
            Format::Parquet(metadata) => {
                let group = metadata.metadata().row_groups().get(part.group);
                let leaves = group.map_or(&[][..], |group| group.columns());
                let name = |leaf: &parquet::file::metadata::ColumnChunkMetaData| {
                    leaf.column_path().parts().first().cloned().unwrap_or_default()
                };
                let is_read = |leaf: &&parquet::file::metadata::ColumnChunkMetaData| {
                    indices.iter().any(|&index| *self.schema.field(index).name() == name(leaf))
                };
                let mut sizes =
                    leaves.iter().filter(is_read).map(|leaf| u64::try_from(leaf.uncompressed_size()).ok());
                // A page of a part may be as large as the group.
                sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?))
            }
        };
        budget.check(self.path(), "a part of it", needs)
    }
}

/// Checks what a Parquet file says at its end of all that is in it. Behind that are its length, in four
/// bytes, and four letters.
fn check_end(bytes: &Bytes) -> Result<(), Problem> {
    let tail = bytes.len().checked_sub(8).ok_or("the file ends early")?;
    let length = u32::from_le_bytes(bytes.to_vec(tail, 4)?.as_slice().try_into()?);
    let start = tail.checked_sub(length.into()).ok_or("the file ends early")?;
    let end = bytes.to_vec(start, length.into())?;
    thrift::check_end(&end).map_err(|wrong| format!("the end of the file: {wrong}").into())
}

/// The bytes that are read at once to look at the headers of pages.
const WINDOW: u64 = 1 << 16;

/// Checks the headers of a column's pages, which lie one behind the other, and that no page takes more than
/// the file says of all. What is no header ends the column: whether a page is missing then, the crate finds.
fn check_pages(bytes: &Bytes, start: u64, length: u64, most: u64) -> Result<(), Problem> {
    let end = start.checked_add(length).filter(|&end| end <= bytes.len()).ok_or("a column ends early")?;
    let (mut at, mut size) = (start, WINDOW);
    let (mut first, mut window) = (start, Vec::new());
    while at < end {
        let rest = usize::try_from(at - first).ok().and_then(|from| window.get(from..)).unwrap_or_default();
        match thrift::page(rest) {
            Ok(Page { unpacked, .. }) if unpacked > most => {
                return Err(format!("a page of {unpacked} bytes in a column of {most}").into());
            }
            Ok(Page { header, packed, .. }) => {
                at = at
                    .checked_add(header)
                    .and_then(|at| at.checked_add(packed))
                    .ok_or("a page ends early")?;
                size = WINDOW;
            }
            Err(Wrong::Ends) if first + (window.len() as u64) < end => {
                // A header that is longer than the window.
                size = if rest.len() as u64 == size { size * 8 } else { size };
                (first, window) = (at, bytes.to_vec(at, size.min(end - at))?);
            }
            Err(Wrong::Ends) => return Ok(()),
            Err(wrong) => return Err(format!("the header of a page: {wrong}").into()),
        }
    }
    Ok(())
}

/// Checks that an Arrow file has as many bytes as it says of its footer. The crate asks for memory for them,
/// in a way that cannot fail, before it reads them.
fn check_footer(bytes: &Bytes) -> Result<(), Problem> {
    let tail = bytes.len().checked_sub(10).ok_or("the file ends early")?;
    let length = read_footer_length(bytes.to_vec(tail, 10)?.as_slice().try_into()?)?;
    if length as u64 > tail {
        return Err(format!("a footer of {length} bytes, where the file has {tail}").into());
    }
    Ok(())
}

/// What may be wrong with a file.
pub(super) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Runs a reader of another crate. What it finds wrong, by an error or a panic, is the file's format.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, Problem>) -> Result<T, DataError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|problem| DataError::format(path, problem.to_string())),
        Err(_) => Err(DataError::format(path, "the reader panicked, so that the file is damaged")),
    }
}

/// A position in bytes, from which any number of readers read at the same time.
pub struct At {
    bytes: Bytes,
    at: u64,
}

impl At {
    fn start(bytes: &Bytes) -> Self {
        Self { bytes: bytes.clone(), at: 0 }
    }
}

impl Read for At {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = (into.len() as u64).min(self.bytes.len().saturating_sub(self.at));
        let read = self.bytes.to_vec(self.at, len).map_err(std::io::Error::other)?;
        into[..read.len()].copy_from_slice(&read);
        self.at += len;
        Ok(read.len())
    }
}

impl Seek for At {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| std::io::Error::other("a position before the start"))?;
        Ok(self.at)
    }
}

impl Length for Bytes {
    fn len(&self) -> u64 {
        Bytes::len(self)
    }
}

impl ChunkReader for Bytes {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(At { bytes: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        let read = self.to_vec(start, length as u64);
        read.map(Into::into).map_err(|error| parquet::errors::ParquetError::External(error.into()))
    }
}
