//! The `.npz` format: `.npy` files in a zip archive.

use std::io::{BufReader, Read};
use std::path::Path;

use zip::CompressionMethod;
use zip::result::ZipError;

use super::bytes::{DEFLATE_LIMIT, take};
use super::{Array, Bytes, npy};
use crate::DataError;
use crate::sources::budget::{Budget, open_regular};

pub(super) fn read(path: &Path, name: &str, most: u64) -> Result<Array, DataError> {
    let io = |cause| DataError::Io { path: path.into(), cause };
    let wrong = |what: String| DataError::format(path, what);
    let file = BufReader::new(open_regular(path)?);
    let size = file.get_ref().metadata().map_err(io)?.len();
    let zip = |error: ZipError| match error {
        ZipError::FileNotFound => wrong(format!("no array {name:?}")),
        error => wrong(error.to_string()),
    };
    let mut archive = zip::ZipArchive::new(file).map_err(zip)?;
    let mut member = archive.by_name(&format!("{name}.npy")).map_err(zip)?;
    let unpacked = member.size();
    if member.compression() == CompressionMethod::Stored
        && let Some(start) = member.data_start()
    {
        // An array stored without compression is left where it is. It is read to its end once, where the
        // archive's checksum is checked.
        let read = std::io::copy(&mut member, &mut std::io::sink()).map_err(io)?;
        if read != unpacked {
            return Err(wrong(format!("array {name:?} declares {unpacked} bytes, holds {read}")));
        }
        return npy::read(Bytes::open(path)?.part(start, unpacked)?);
    }
    if unpacked / DEFLATE_LIMIT > size {
        return Err(wrong(format!("array {name:?} declares {unpacked} bytes, more than it can hold")));
    }
    Budget { most, setting: "Array::npz_within" }.check(path, "the unpacked array", Some(unpacked))?;
    let mut bytes = Vec::new();
    take(path, &mut member, unpacked, &mut bytes)?;
    // One more read reaches the end, where the checksum is checked.
    let more = member.read(&mut [0]).map_err(io)?;
    if bytes.len() as u64 != unpacked || more != 0 {
        return Err(wrong(format!("array {name:?} declares {unpacked} bytes, holds others")));
    }
    npy::read(Bytes::held(path, bytes))
}
