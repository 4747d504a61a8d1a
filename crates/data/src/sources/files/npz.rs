//! The `.npz` format: `.npy` files in a zip archive.

use std::io::{BufReader, Read, Seek};
use std::path::Path;

use zip::read::{Config, ZipFileEntry};
use zip::result::ZipError;
use zip::unstable::read::{ZipIterable, ZipIterableFiles};
use zip::{CompressionMethod, ZipReadOptions};

use super::bytes::{DEFLATE_LIMIT, take};
use super::{Array, Bytes, npy};
use crate::DataError;
use crate::sample::regular::open_regular;
use crate::sources::budget::Budget;

pub(super) fn read(path: &Path, name: &str, most: u64) -> Result<Array, DataError> {
    let io = |cause| DataError::Io { path: path.into(), cause };
    let wrong = |what: String| DataError::format(path, what);
    let file = BufReader::new(open_regular(path)?);
    let size = file.get_ref().metadata().map_err(io)?.len();
    let zip = |error: ZipError| wrong(error.to_string());
    // Members are looked at one by one: a list of them all may take many times the file.
    let mut archive = ZipIterable::try_new(file, Config::default()).map_err(zip)?;
    let members = archive.files().map_err(zip)?;
    let entry = find(members, &format!("{name}.npy"), &zip, &wrong)?;
    let entry = entry.ok_or_else(|| wrong(format!("no array {name:?}")))?;
    let mut member = entry.with_reader(members.reader_mut(), ZipReadOptions::default()).map_err(zip)?;
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

/// Returns the member of a name. Two of one name are an error, since readers differ in which they take.
fn find<R: Read + Seek>(
    members: &mut ZipIterableFiles<R>,
    name: &str,
    zip: &impl Fn(ZipError) -> DataError,
    wrong: &impl Fn(String) -> DataError,
) -> Result<Option<ZipFileEntry<'static>>, DataError> {
    let mut found = None;
    for member in members {
        let member = member.map_err(zip)?;
        if member.name_raw() != name.as_bytes() {
            continue;
        }
        if found.replace(member).is_some() {
            return Err(wrong(format!("the name {name:?} occurs twice")));
        }
    }
    Ok(found)
}
