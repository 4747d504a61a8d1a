//! The bytes of a file, mapped or read.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use crate::tensors::regular::open_regular;

/// The bytes of a file: mapped into memory, or read.
pub struct FileBytes(Inner);

enum Inner {
    Read(Vec<u8>),
    Mapped(memmap2::Mmap),
}

impl FileBytes {
    /// Maps a regular file, which must not shrink while it is mapped.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        Self::map_file(&open_regular(path)?)
    }

    /// Maps an open regular file, which must not shrink while it is mapped.
    #[expect(unsafe_code, reason = "mapping a file is unsafe: other processes may change it")]
    pub(crate) fn map_file(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        // SAFETY: the mapping is read-only and is only ever handed out as `&[u8]`. A writer that changes the
        // file meanwhile is outside of what can be checked; headers are therefore parsed from a copy, and no
        // value of the mapped bytes is invalid as `u8`.
        unsafe { memmap2::Mmap::map(file) }.map(|mapped| Self(Inner::Mapped(mapped)))
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Inner::Read(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Read(bytes) => bytes,
            Inner::Mapped(bytes) => bytes,
        }
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
