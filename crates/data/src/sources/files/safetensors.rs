//! Tensors in safetensors files, which are read by position.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use ::safetensors::Dtype;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::{Array, Bytes, Element};
use crate::DataError;
use crate::sample::field::elements;

/// The most bytes of a header that the format allows.
const MOST_HEADER: u64 = 100_000_000;

pub(super) fn read(path: &Path, name: &str) -> Result<Array, DataError> {
    let wrong = |what: String| DataError::format(path, what);
    let bytes = Bytes::open(path)?;
    let length = bytes.to_vec(0, bytes.len().min(8))?;
    let length = length.try_into().map_err(|_| wrong("not a safetensors file: too short".into()))?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER || length > bytes.len() - 8 {
        return Err(wrong(format!("a header of {length} bytes in a file of {}", bytes.len())));
    }
    let text = bytes.to_vec(8, length)?;
    let unparsed = |error| wrong(format!("the header does not parse: {error}"));
    let mut deserializer = serde_json::Deserializer::from_slice(&text);
    let header = Names { wanted: name }.deserialize(&mut deserializer).map_err(unparsed)?;
    deserializer.end().map_err(unparsed)?;
    let data = bytes.part(8 + length, bytes.len() - 8 - length)?;
    header.check_places(data.len()).map_err(wrong)?;
    let Tensor { dtype, shape, data_offsets: (start, end) } =
        header.found.ok_or_else(|| wrong(format!("no tensor {name:?}")))?;
    let element = element(dtype).ok_or_else(|| wrong(format!("elements of type {dtype:?}")))?;
    Array::new(data.part(start, end - start)?, element, false, shape)
}

fn element(stored: Dtype) -> Option<Element> {
    Some(match stored {
        Dtype::BOOL => Element::Bool,
        Dtype::U8 => Element::U8,
        Dtype::I8 => Element::I8,
        Dtype::U16 => Element::U16,
        Dtype::I16 => Element::I16,
        Dtype::U32 => Element::U32,
        Dtype::I32 => Element::I32,
        Dtype::U64 => Element::U64,
        Dtype::I64 => Element::I64,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::BF16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        _ => return None,
    })
}

/// A tensor as the header has it.
#[derive(Deserialize)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl Tensor {
    /// Whether the shape takes the bytes between the offsets.
    fn fits(&self) -> bool {
        let bits = elements(&self.shape).and_then(|count| count.checked_mul(self.dtype.bitsize()));
        let bytes = self.data_offsets.1.checked_sub(self.data_offsets.0);
        bits.is_some() && bits.map(|bits| bits as u64) == bytes.and_then(|bytes| bytes.checked_mul(8))
    }
}

/// What is kept of a header: the tensor that is wanted, and the places of all. A header of many tensors then
/// takes little more than its text.
struct Header {
    found: Option<Tensor>,
    places: Vec<(u64, u64)>,
}

impl Header {
    /// Checks that the tensors' bytes follow one another without gap or overlap, to the file's end.
    fn check_places(&self, bytes: u64) -> Result<(), String> {
        let mut places = self.places.clone();
        places.sort_unstable();
        let mut at = 0;
        for (start, end) in places {
            if start != at {
                return Err(format!(
                    "the bytes of a tensor begin at {start}, where those before it end at {at}"
                ));
            }
            at = end;
        }
        if at == bytes { Ok(()) } else { Err(format!("the tensors take {at} bytes, the file holds {bytes}")) }
    }
}

/// Reads a header, no two of whose tensors have one name.
struct Names<'a> {
    wanted: &'a str,
}

impl<'de> DeserializeSeed<'de> for Names<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// What writers note beside the tensors: texts by name. They are checked and passed over.
struct Notes;

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(Self)
    }
}

impl<'de> Visitor<'de> for Notes {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of texts")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_none<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(self)
    }
}

impl<'de> Visitor<'de> for Names<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut names = BTreeSet::new();
        let mut header = Header { found: None, places: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format_args!("the name {name:?} occurs twice")));
            }
            if name == "__metadata__" {
                map.next_value::<Notes>()?;
            } else {
                let tensor: Tensor = map.next_value()?;
                if !tensor.fits() {
                    let problem =
                        format_args!("tensor {name:?}: its shape does not take the bytes at its offsets");
                    return Err(A::Error::custom(problem));
                }
                header.places.push(tensor.data_offsets);
                if name == self.wanted {
                    header.found = Some(tensor);
                }
            }
            names.insert(name);
        }
        Ok(header)
    }
}
