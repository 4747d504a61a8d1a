//! The `.npy` format: a magic number, a version, a Python dictionary, the elements.

use super::{Array, Bytes, Element};
use crate::DataError;

/// The most bytes of a dictionary. Longer ones are those of structured types, which are refused anyway.
const MOST_TEXT: u64 = 1 << 16;

pub(super) fn read(bytes: Bytes) -> Result<Array, DataError> {
    let path = bytes.path().to_path_buf();
    let wrong = |what: &str| DataError::format(&path, what);
    let head = bytes.to_vec(0, bytes.len().min(12))?;
    let (data, text_len) = match head.as_slice() {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, ..] => (10, u64::from(u16::from_le_bytes([*a, *b]))),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, a, b, c, d] => {
            (12, u64::from(u32::from_le_bytes([*a, *b, *c, *d])))
        }
        _ => return Err(wrong("not a .npy file of version 1, 2 or 3")),
    };
    if text_len > MOST_TEXT {
        return Err(wrong("the header is too long"));
    }
    let text = bytes.to_vec(data, text_len)?;
    let text = std::str::from_utf8(&text).map_err(|_| wrong("the header is not text"))?;
    let (element, big_endian, shape) = parse(text).map_err(|what| wrong(&what))?;
    let start = data + text_len;
    Array::new(bytes.part(start, bytes.len() - start)?, element, big_endian, shape)
}

/// Reads a dictionary such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, with its keys in
/// any order.
fn parse(text: &str) -> Result<(Element, bool, Vec<usize>), String> {
    let value = |key: &str| {
        let quoted = [format!("'{key}'"), format!("\"{key}\"")];
        let at = quoted.iter().find_map(|quoted| Some(text.find(quoted)? + quoted.len()));
        let rest = text[at.ok_or_else(|| format!("the header has no '{key}'"))?..].trim_start();
        rest.strip_prefix(':')
            .map(str::trim_start)
            .ok_or_else(|| format!("the header has no value of '{key}'"))
    };
    let descr = value("descr")?;
    let quote = descr.chars().next().filter(|&quote| quote == '\'' || quote == '"');
    let quote = quote.ok_or("structured types are not supported")?;
    let descr = descr[1..].split(quote).next().unwrap_or_default();
    let order = value("fortran_order")?;
    let tuple = value("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (tuple, _) = tuple.ok_or("the shape is not a tuple")?;
    let extents = tuple.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    let shape: Vec<usize> = extents
        .map(|extent| extent.parse().map_err(|_| format!("{extent:?} is not an extent")))
        .collect::<Result<_, _>>()?;
    if !order.starts_with("False") && shape.len() > 1 {
        return Err("in Fortran order; save numpy.ascontiguousarray(array)".into());
    }
    let (element, big_endian) = element(descr).ok_or_else(|| format!("elements of type {descr:?}"))?;
    Ok((element, big_endian, shape))
}

fn element(descr: &str) -> Option<(Element, bool)> {
    let (order, name) = descr.split_at_checked(1)?;
    let element = match name {
        "b1" => Element::Bool,
        "u1" => Element::U8,
        "i1" => Element::I8,
        "u2" => Element::U16,
        "i2" => Element::I16,
        "u4" => Element::U32,
        "i4" => Element::I32,
        "u8" => Element::U64,
        "i8" => Element::I64,
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        _ => return None,
    };
    match order {
        "<" | "=" => Some((element, false)),
        ">" => Some((element, true)),
        "|" if element.bytes() == 1 => Some((element, false)),
        _ => None,
    }
}
