//! Reading files whose size and SHA-256 were written down.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::disk::Disk;
use crate::tensors::bytes::FileBytes;
use crate::tensors::digest::hex;
use crate::tensors::error::{Result, broken, io};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Opens a file after comparing it with its entry. The size comes first: it is cheap, and bounds what is
/// read. Then the hash is computed from plain reads, because where the disk fails they give an error, and a
/// mapping would end the process.
pub(crate) fn open_as_listed(disk: &dyn Disk, path: &Path, entry: &Entry) -> Result<FileBytes> {
    size_as_listed(disk, path, entry)?;
    let mut hash = Sha256::new();
    disk.stream(path, &mut |piece| hash.update(piece)).map_err(io(path, "read"))?;
    same_hash(path, entry, hash)?;
    disk.open(path).map_err(io(path, "read"))
}

/// Reads a text as it is listed, of at most so many bytes. What is returned is what was hashed.
pub(crate) fn read_as_listed(disk: &dyn Disk, path: &Path, entry: &Entry, limit: u64) -> Result<Vec<u8>> {
    size_as_listed(disk, path, entry)?;
    let bytes = disk.read_at_most(path, limit).map_err(io(path, "read"))?;
    same_hash(path, entry, Sha256::new_with_prefix(&bytes))?;
    Ok(bytes)
}

fn same_hash(path: &Path, entry: &Entry, hash: Sha256) -> Result<()> {
    if hex(&hash.finalize()) == entry.sha256 {
        return Ok(());
    }
    Err(broken(path, "its SHA-256 is not the one in the manifest"))
}

pub(crate) fn size_as_listed(disk: &dyn Disk, path: &Path, entry: &Entry) -> Result<()> {
    match disk.size(path).map_err(io(path, "read"))? {
        bytes if bytes == entry.bytes => Ok(()),
        bytes => Err(broken(path, format!("has {bytes} bytes, {} in the manifest", entry.bytes))),
    }
}
