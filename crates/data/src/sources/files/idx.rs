//! The IDX format: two zero bytes, the element type, the rank, the extents as big-endian u32, the elements in
//! big-endian order.

use std::path::Path;

use super::{Array, Bytes, Element};
use crate::DataError;
use crate::sources::budget::Budget;

/// The bytes of the longest header: four, and 255 extents.
const HEAD: usize = 4 + 4 * 255;

pub(super) fn read(path: &Path, most: u64) -> Result<Array, DataError> {
    let budget = Budget { most, setting: "Array::idx_within" };
    let mut header = None;
    let bytes = Bytes::open_declared(path, HEAD, budget, |head| {
        let parsed = parse(head).map_err(|what| DataError::format(path, what))?;
        let total = parsed.total;
        header = Some(parsed);
        Ok(total)
    })?;
    match header {
        Some(Header { element, shape, data, total }) => {
            Array::new(bytes.part(data, total - data)?, element, true, shape)
        }
        None => Err(DataError::format(path, "not an IDX file")),
    }
}

struct Header {
    element: Element,
    shape: Vec<usize>,
    /// The offset at which the elements start.
    data: u64,
    /// The offset at which they end, which is the length of the file.
    total: u64,
}

fn parse(head: &[u8]) -> Result<Header, String> {
    let &[0, 0, kind, rank, ref extents @ ..] = head else {
        return Err("not an IDX file: it does not start with two zero bytes, a type and a rank".into());
    };
    let element = match kind {
        0x08 => Element::U8,
        0x09 => Element::I8,
        0x0b => Element::I16,
        0x0c => Element::I32,
        0x0d => Element::F32,
        0x0e => Element::F64,
        other => return Err(format!("not an IDX file: {other:#04x} is no element type")),
    };
    let rank = usize::from(rank);
    let extents = extents.as_chunks::<4>().0.get(..rank).ok_or("cut off within the header")?;
    let shape: Vec<_> = extents.iter().map(|&extent| u32::from_be_bytes(extent) as usize).collect();
    let data = 4 + 4 * rank as u64;
    let size = shape.iter().try_fold(element.bytes() as u64, |size, &extent| size.checked_mul(extent as u64));
    let total = size
        .and_then(|size| size.checked_add(data))
        .ok_or_else(|| format!("shape {shape:?} is too large"))?;
    Ok(Header { element, shape, data, total })
}
