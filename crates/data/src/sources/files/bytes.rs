//! The bytes of an array: in a file that is read by position, or unpacked in memory.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::DataError;
use crate::sample::regular::open_regular;
use crate::sources::budget::{Budget, reserve};
use crate::sources::gzip::{is_gzipped, unpacked};

/// The most bytes that deflate can make of one byte (a 258-byte match in two bits, give or take a header).
pub(crate) const DEFLATE_LIMIT: u64 = 1032;

/// The bytes of a packed file that are read at once.
const PACKED: usize = 32 << 10;

/// Bytes that any thread may read at any position.
///
/// Files are read by position, not mapped: if a file is cut short while it is in use, that is then an error,
/// not a signal that ends the process, and what was read does not count as this process's memory.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    path: PathBuf,
    place: Place,
    start: u64,
    len: u64,
}

#[derive(Clone, Debug)]
enum Place {
    Disk(Arc<File>),
    Memory(Arc<Vec<u8>>),
}

impl Bytes {
    /// Opens the bytes of a file, as they are.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = open_regular(path)?;
        let len = file.metadata().map_err(|cause| DataError::Io { path: path.into(), cause })?.len();
        Ok(Self { path: path.into(), place: Place::Disk(Arc::new(file)), start: 0, len })
    }

    /// Takes bytes in memory that came from a file.
    pub fn held(path: &Path, bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { path: path.into(), place: Place::Memory(Arc::new(bytes)), start: 0, len }
    }

    /// Opens a file's bytes, and unpacks them into memory if they are gzipped.
    ///
    /// `declared` reads the total number of bytes from the first `head` bytes, or from all if there are
    /// fewer. A file that holds fewer or more is an error, and so is a gzipped file that declares more than
    /// the budget. No more than is declared is ever unpacked.
    pub fn open_declared(
        path: &Path,
        head: usize,
        budget: Budget,
        declared: impl FnOnce(&[u8]) -> Result<u64, DataError>,
    ) -> Result<Self, DataError> {
        let file = Self::open(path)?;
        let first = file.to_vec(0, file.len.min(head as u64))?;
        if !is_gzipped(&first) {
            let declared = declared(&first)?;
            return if declared == file.len { Ok(file) } else { Err(size(path, declared, file.len)) };
        }
        let Place::Disk(mut packed) = file.place.clone() else { return Ok(file) };
        packed.seek(SeekFrom::Start(0)).map_err(|cause| DataError::Io { path: path.into(), cause })?;
        let mut unpacked = unpacked(path, BufReader::with_capacity(PACKED, packed))?;
        let mut bytes = Vec::new();
        take(path, &mut unpacked, head as u64, &mut bytes)?;
        let declared = declared(&bytes)?;
        if declared / DEFLATE_LIMIT > file.len {
            return Err(DataError::format(path, format!("declares {declared} bytes, more than it can hold")));
        }
        budget.check(path, "the unpacked array", Some(declared))?;
        take(path, &mut unpacked, declared.saturating_add(1).saturating_sub(bytes.len() as u64), &mut bytes)?;
        match bytes.len() as u64 {
            len if len == declared => Ok(Self::held(path, bytes)),
            len => Err(size(path, declared, len)),
        }
    }

    /// Returns the file that the bytes came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns a part of the bytes.
    pub fn part(&self, start: u64, len: u64) -> Result<Self, DataError> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { start: self.start + start, len, ..self.clone() }),
            _ => Err(DataError::format(
                &self.path,
                format!("needs {len} bytes at {start}, holds {}", self.len),
            )),
        }
    }

    /// Returns a copy of a part of the bytes.
    pub fn to_vec(&self, start: u64, len: u64) -> Result<Vec<u8>, DataError> {
        let part = self.part(start, len)?;
        let no_room = || DataError::format(&self.path, format!("no memory for {len} bytes"));
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(len).map_err(|_| no_room())?).map_err(|_| no_room())?;
        bytes.resize(len as usize, 0);
        match &self.place {
            Place::Memory(all) => {
                bytes.copy_from_slice(&all[part.start as usize..(part.start + len) as usize])
            }
            Place::Disk(file) => read_at(file, part.start, &mut bytes)
                .map_err(|cause| DataError::Io { path: self.path.clone(), cause })?,
        }
        Ok(bytes)
    }
}

/// Reads up to `limit` more bytes. Memory grows with the bytes that are read, not with a declared size.
pub(crate) fn take(
    path: &Path,
    from: &mut impl Read,
    limit: u64,
    bytes: &mut Vec<u8>,
) -> Result<(), DataError> {
    let mut left = limit;
    while left > 0 {
        // Memory doubles, and never exceeds the limit.
        let part = left.min((bytes.len() as u64).max(1 << 12));
        reserve(path, bytes, part as usize, usize::MAX)?;
        let read = from.by_ref().take(part).read_to_end(bytes);
        let read = read.map_err(|cause| DataError::Io { path: path.into(), cause })? as u64;
        left -= read;
        if read < part {
            break;
        }
    }
    Ok(())
}

fn size(path: &Path, declared: u64, found: u64) -> DataError {
    DataError::format(path, format!("declares {declared} bytes, holds {found}"))
}

#[cfg(unix)]
fn read_at(file: &File, start: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, start)
}

#[cfg(windows)]
fn read_at(file: &File, mut start: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, start)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                start += read as u64;
            }
        }
    }
    Ok(())
}

impl Bytes {
    /// Adds a part of the bytes to a hash of the content, all of them.
    pub fn hash(&self, start: u64, len: u64, hash: &mut crate::ContentHash) -> Result<(), DataError> {
        const AT_ONCE: u64 = 1 << 20;
        hash.word(len);
        let mut done = 0;
        while done < len {
            let bytes = self.to_vec(start.saturating_add(done), AT_ONCE.min(len - done))?;
            hash.bytes(&bytes);
            done += bytes.len() as u64;
        }
        Ok(())
    }

    /// Adds the bytes to a hash: all of them up to 64 MiB, beyond that 1,024 evenly spaced blocks of 64 KiB.
    pub fn fingerprint(&self, hash: crate::Fingerprint) -> Result<crate::Fingerprint, DataError> {
        const BLOCK: u64 = 1 << 16;
        let blocks = self.len.div_ceil(BLOCK);
        let read = blocks.min(1024);
        (0..read).try_fold(hash.word(self.len), |hash, i| {
            let start = (u128::from(i) * u128::from(blocks) / u128::from(read)) as u64 * BLOCK;
            let block = self.to_vec(start, BLOCK.min(self.len - start))?;
            Ok(block.chunks(8).fold(hash, |hash, bytes| {
                hash.word(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
            }))
        })
    }
}
