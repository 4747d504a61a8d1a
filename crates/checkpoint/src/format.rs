//! Safetensors, with one byte sequence for one set of tensors.
//!
//! A file is the header's length (u64, little endian), the header (JSON, padded with spaces to a multiple of 8), and the
//! tensors' bytes without gaps, wider types first and then by name: what `safetensors::serialize` writes without
//! metadata (a map in random order), but streamed, so that a save needs no second copy of the model.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::{Error, Result, broken, io};
use crate::tensor::{Dtype, Tensor, Tensors};

/// Readers refuse longer headers.
const LONGEST_HEADER: usize = 100_000_000;
/// Length field and alignment.
const WORD: usize = 8;

/// A safetensors file about to be written.
pub(crate) struct Encoded<'a> {
    header: Vec<u8>,
    tensors: Vec<&'a Tensor>,
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(tensors: &'a Tensors) -> Result<Self> {
        if tensors.contains_key("__metadata__") {
            return Err(unstorable("a tensor is named __metadata__, which the format keeps for itself"));
        }
        let mut ordered: Vec<(&String, &Tensor)> = tensors.iter().collect();
        ordered.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().stored()), *name));
        let mut offset = 0;
        let infos = ordered.iter().map(|(name, tensor)| {
            let start = offset;
            offset += tensor.bytes().len();
            let (dtype, shape) = (tensor.dtype().stored(), tensor.shape().to_vec());
            ((*name).clone(), TensorInfo { dtype, shape, data_offsets: (start, offset) })
        });
        let metadata = Metadata::new(None, infos.collect()).map_err(unstorable)?;
        let mut json = serde_json::to_vec(&metadata).map_err(unstorable)?;
        json.resize(json.len().next_multiple_of(WORD), b' ');
        if json.len() > LONGEST_HEADER {
            return Err(unstorable(format!(
                "the header takes {} bytes, more than readers accept",
                json.len()
            )));
        }
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Ok(Self { header, tensors: ordered.into_iter().map(|(_, tensor)| tensor).collect() })
    }

    /// The file's bytes, piece by piece.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.header.as_slice()).chain(self.tensors.iter().map(|tensor| tensor.bytes()))
    }
}

fn unstorable(reason: impl fmt::Display) -> Error {
    Error::Unstorable { reason: reason.to_string() }
}

/// Reads a safetensors file, whoever wrote it. Metadata is passed over.
pub fn read_tensors(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    parse_tensors(path, &std::fs::read(path).map_err(io(path, "read"))?)
}

/// Reads the bytes of a safetensors file; `path` is for the error message.
///
/// Checks what hostile files get wrong: the header's length against the file's, offsets (no gap, no overlap, no byte
/// left over), shapes against offsets, names that occur twice, types that are unknown or have no whole bytes. Allocates
/// no more than the file has bytes.
pub fn parse_tensors(path: &Path, file: &[u8]) -> Result<Tensors> {
    let invalid = |reason: String| broken(path, format!("no valid safetensors: {reason}"));
    let views = SafeTensors::deserialize(file).map_err(|error| invalid(error.to_string()))?;
    // The library reads the header into a map, in which the second of two equal names silently wins.
    if let Some((length, rest)) = file.split_first_chunk::<WORD>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let header = rest.get(..length).unwrap_or(rest);
        serde_json::from_slice::<DistinctNames>(header).map_err(|error| invalid(error.to_string()))?;
    }
    let mut tensors = Tensors::new();
    for (name, view) in views.iter() {
        let dtype = Dtype::from_stored(view.dtype())
            .ok_or_else(|| invalid(format!("tensor {name}: type {} is not supported", view.dtype())))?;
        let tensor = Tensor::new(dtype, view.shape().to_vec(), view.data().to_vec())
            .map_err(|error| invalid(format!("tensor {name}: {error}")))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Reads as any JSON object in which no name occurs twice.
struct DistinctNames;

impl<'de> Deserialize<'de> for DistinctNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for DistinctNames {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format_args!("the name {name} occurs twice")));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn error(header: &str, data: &[u8]) -> String {
        parse_tensors(Path::new("x"), &file(header, data)).unwrap_err().to_string()
    }

    #[test]
    fn a_name_that_occurs_twice_is_an_error() {
        let entry = r#""w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        assert!(parse_tensors(Path::new("x"), &file(&format!("{{{entry}}}"), &[7])).is_ok());
        let twice = error(&format!("{{{entry},{entry}}}"), &[7]);
        assert!(twice.starts_with("x: no valid safetensors: the name w occurs twice"), "{twice}");
    }

    #[test]
    fn headers_that_lie_are_errors() {
        for (header, data) in [
            (r#"{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}"#, &[7][..]),
            (r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#, &[7, 7]),
            (r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, &[7, 7]),
            (r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, &[]),
            (r#"{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#, &[7]),
            (r#"{"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, &[]),
            (r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}}"#, &[]),
            ("[]", &[]),
        ] {
            assert!(error(header, data).starts_with("x: no valid safetensors: "), "{header}");
        }
        let huge = u64::MAX.to_le_bytes();
        assert!(parse_tensors(Path::new("x"), &huge).is_err());
        assert!(parse_tensors(Path::new("x"), &[]).is_err());
    }

    #[test]
    fn the_reserved_name_is_refused() {
        let tensors = Tensors::from([("__metadata__".to_owned(), Tensor::u32(&[], &[0]).unwrap())]);
        assert!(Encoded::new(&tensors).is_err());
    }
}
