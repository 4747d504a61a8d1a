//! The header of a safetensors file, checked in full before a byte of the file is used.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::tensors::foreign;
use crate::tensors::info::{Info, TensorDType};

/// The most bytes of a header. Readers refuse longer ones.
pub(crate) const LONGEST: usize = 100_000_000;
/// The number of bytes of the length field, and the alignment of what follows the header.
pub(crate) const WORD: usize = 8;
/// The only name in a header that is no tensor's.
pub(crate) const METADATA: &str = "__metadata__";

/// The tensors of a file, each with its place in it.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: BTreeMap<String, Place>,
    pub(crate) metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) info: Info,
    /// Its range in the file.
    pub(crate) bytes: Range<usize>,
}

impl Header {
    /// Parses a file's header and checks what hostile files get wrong: the header's length against the
    /// file's; offsets, which must follow one another without gap or overlap from the header's end to the
    /// file's; shapes against offsets; names that occur twice; types that are unknown or take no whole bytes.
    /// The error says what is wrong.
    ///
    /// It allocates in proportion to the header, which the file backs. It reads the header from a copy, so
    /// that a mapped file that changes meanwhile cannot pass a check with one text and be used with another.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, String> {
        let (length, rest) = file.split_first_chunk::<WORD>().ok_or("it has no 8 bytes")?;
        let length = u64::from_le_bytes(*length);
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= LONGEST && length <= rest.len())
            .ok_or_else(|| match foreign::name(file) {
                Some(kind) => format!("it is {kind}"),
                None => format!("a header of {length} bytes in a file of {}", file.len()),
            })?;
        let text = rest[..length].to_vec();
        let Raw { entries, metadata } =
            serde_json::from_slice(&text).map_err(|e| format!("its header: {e}"))?;
        Ok(Self { tensors: places(entries, WORD + length, file.len())?, metadata })
    }
}

/// Returns each tensor's range in the file, whose data begin at `start` and end at `end`.
fn places(
    entries: BTreeMap<String, Entry>,
    start: usize,
    end: usize,
) -> Result<BTreeMap<String, Place>, String> {
    let mut ordered: Vec<(String, Entry)> = entries.into_iter().collect();
    ordered.sort_by_key(|(_, entry)| entry.data_offsets);
    let data = end - start;
    let mut at = 0;
    let mut tensors = BTreeMap::new();
    for (name, Entry { dtype, shape, data_offsets: (from, to) }) in ordered {
        let wrong = |problem: String| Err(format!("tensor {name}: {problem}"));
        let Some(dtype) = TensorDType::from_name(&dtype) else {
            return wrong(format!("type {dtype} is not supported"));
        };
        if from < at {
            return wrong(format!("its bytes {from}..{to} overlap those before it, which end at {at}"));
        }
        if from > at {
            return wrong(format!(
                "its bytes {from}..{to} leave a gap after those before it, which end at {at}"
            ));
        }
        if to < from || to > data {
            return wrong(format!("its bytes {from}..{to} are not in the file's {data}"));
        }
        let info = Info { dtype, shape };
        if info.bytes() != Some(to - from) {
            return wrong(format!("{info} does not take {} bytes", to - from));
        }
        at = to;
        tensors.insert(name, Place { info, bytes: start + from..start + to });
    }
    if at == data { Ok(tensors) } else { Err(format!("{} bytes belong to no tensor", data - at)) }
}

/// A header as it is written in the file.
struct Raw {
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    /// Reads the map by hand: in a derived one the second of two equal names would win in silence.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = BTreeMap::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA && metadata.is_none() {
                metadata = Some(map.next_value::<Option<_>>()?.unwrap_or_default());
            } else if name == METADATA || entries.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the name {name} occurs twice")));
            } else {
                entries.insert(name, map.next_value()?);
            }
        }
        Ok(Raw { entries, metadata: metadata.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str, data: usize) -> Result<Header, String> {
        Header::parse(&[&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![7; data]].concat())
    }

    fn u8s(list: &[(&str, usize, usize, usize)]) -> String {
        let entry = |(name, size, from, to): &(&str, usize, usize, usize)| {
            format!(r#""{name}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{from},{to}]}}"#)
        };
        format!("{{{}}}", list.iter().map(entry).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_header_in_any_order_is_read() {
        let header = parse(&u8s(&[("b", 2, 1, 3), ("a", 1, 0, 1), ("c", 0, 3, 3)]), 3).unwrap();
        let start = WORD + u8s(&[("b", 2, 1, 3), ("a", 1, 0, 1), ("c", 0, 3, 3)]).len();
        assert_eq!(header.tensors["b"].bytes, start + 1..start + 3);
        let header = parse(r#"{"__metadata__":{"format":"pt"}}"#, 0).unwrap();
        assert_eq!(header.metadata["format"], "pt");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (header, data, expected) in [
            (u8s(&[("w", 1, 0, 1), ("w", 1, 0, 1)]), 1, "its header: the name w occurs twice at line 1"),
            (
                u8s(&[("w", 2, 0, 2), ("v", 2, 1, 3)]),
                3,
                "tensor v: its bytes 1..3 overlap those before it, which end at 2",
            ),
            (
                u8s(&[("w", 1, 0, 1), ("v", 1, 2, 3)]),
                3,
                "tensor v: its bytes 2..3 leave a gap after those before it",
            ),
            (u8s(&[("w", 1, 1, 2)]), 2, "tensor w: its bytes 1..2 leave a gap"),
            (u8s(&[("w", 2, 0, 1)]), 1, "tensor w: U8[2] does not take 1 bytes"),
            (u8s(&[("w", 1, 0, 1)]), 3, "2 bytes belong to no tensor"),
            (u8s(&[("w", 1, 0, 1)]), 0, "tensor w: its bytes 0..1 are not in the file's 0"),
            (
                u8s(&[("w", 1, 0, usize::MAX)]),
                1,
                "tensor w: its bytes 0..18446744073709551615 are not in the file's 1",
            ),
            (
                r#"{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#.into(),
                1,
                "tensor w: type F4 is not supported",
            ),
            (
                r#"{"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(),
                0,
                "tensor w: U8[",
            ),
            (
                r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}}"#.into(),
                0,
                "its header: invalid value",
            ),
            (
                r#"{"__metadata__":{},"__metadata__":{}}"#.into(),
                0,
                "its header: the name __metadata__ occurs twice",
            ),
            ("[]".into(), 0, "its header: invalid type: sequence, expected an object"),
            ("{} {}".into(), 0, "its header: trailing characters"),
            ("[".repeat(10_000), 0, "its header: "),
        ] {
            let error = parse(&header, data).unwrap_err();
            assert!(error.starts_with(expected), "{error} is not {expected}");
        }
        assert_eq!(Header::parse(&[0; 7]).unwrap_err(), "it has no 8 bytes");
        let huge = u64::MAX.to_le_bytes();
        assert_eq!(
            Header::parse(&huge).unwrap_err(),
            format!("a header of {} bytes in a file of 8", u64::MAX)
        );
    }
}
