//! Tensors in safetensors files, which are read by position.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use ::safetensors::Dtype as Stored;
use ::safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Array, Bytes, Element};
use crate::DataError;

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
    serde_json::from_slice::<UniqueNames>(&text).map_err(unparsed)?;
    let header: Metadata = serde_json::from_slice(&text).map_err(unparsed)?;
    let data = bytes.part(8 + length, bytes.len() - 8 - length)?;
    let tensor = header.info(name).ok_or_else(|| wrong(format!("no tensor {name:?}")))?;
    let element = match tensor.dtype {
        Stored::BOOL => Element::Bool,
        Stored::U8 => Element::U8,
        Stored::I8 => Element::I8,
        Stored::U16 => Element::U16,
        Stored::I16 => Element::I16,
        Stored::U32 => Element::U32,
        Stored::I32 => Element::I32,
        Stored::U64 => Element::U64,
        Stored::I64 => Element::I64,
        Stored::F16 => Element::F16,
        Stored::BF16 => Element::BF16,
        Stored::F32 => Element::F32,
        Stored::F64 => Element::F64,
        other => return Err(wrong(format!("elements of type {other:?}"))),
    };
    let (start, end) = tensor.data_offsets;
    let len =
        end.checked_sub(start).ok_or_else(|| wrong(format!("tensor {name:?} ends before it starts")))?;
    Array::new(data.part(start as u64, len as u64)?, element, false, tensor.shape.clone())
}

/// A header no two of whose tensors have one name. [`Metadata`] would keep the last of them in silence.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNames)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format_args!("the name {name:?} occurs twice")));
            }
            names.insert(name);
        }
        Ok(self)
    }
}
