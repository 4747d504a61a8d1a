//! Writing safetensors, with one byte sequence for one set of tensors.
//!
//! A file is the header's length (u64, little endian), the header (JSON, padded with spaces to a multiple of
//! 8), and the tensors' bytes without gaps, wider types first and then by name. That is what
//! `safetensors::serialize` writes without metadata (which is a map in random order), but streamed, so that a
//! save needs no second copy of the model.

use std::fmt;

use safetensors::tensor::{Metadata, TensorInfo};

use crate::tensors::error::{Error, Result};
use crate::tensors::header::{LONGEST, METADATA, WORD};
use crate::tensors::tensor::{Tensor, Tensors};

/// A safetensors file about to be written.
pub(crate) struct Encoded<'a> {
    header: Vec<u8>,
    tensors: Vec<&'a Tensor>,
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(tensors: &'a Tensors) -> Result<Self> {
        Self::with_format(tensors, None)
    }

    /// Encodes tensors as [`Encoded::new`] does, with `format` in the metadata. One entry has one order.
    pub(crate) fn with_format(tensors: &'a Tensors, format: Option<&str>) -> Result<Self> {
        if tensors.contains_key(METADATA) {
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
        let noted = format.map(|format| [("format".to_owned(), format.to_owned())].into());
        let metadata = Metadata::new(noted, infos.collect()).map_err(unstorable)?;
        let mut json = serde_json::to_vec(&metadata).map_err(unstorable)?;
        json.resize(json.len().next_multiple_of(WORD), b' ');
        if json.len() > LONGEST {
            return Err(unstorable(format!(
                "the header takes {} bytes, more than readers accept",
                json.len()
            )));
        }
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Ok(Self { header, tensors: ordered.into_iter().map(|(_, tensor)| tensor).collect() })
    }

    /// Returns the file's bytes, piece by piece.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.header.as_slice()).chain(self.tensors.iter().map(|tensor| tensor.bytes()))
    }
}

fn unstorable(reason: impl fmt::Display) -> Error {
    Error::Unstorable { reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_name_is_refused() {
        let tensors = Tensors::from([("__metadata__".to_owned(), Tensor::u32(&[], &[0]).unwrap())]);
        assert!(Encoded::new(&tensors).is_err());
    }

    #[test]
    fn a_format_is_noted() {
        let tensors = Tensors::from([("a".to_owned(), Tensor::u32(&[1], &[7]).unwrap())]);
        let file = Encoded::with_format(&tensors, Some("pt")).unwrap().parts().collect::<Vec<_>>().concat();
        assert!(String::from_utf8_lossy(&file).contains(r#""__metadata__":{"format":"pt"}"#));
        assert_eq!(crate::parse_tensors(std::path::Path::new("file"), &file).unwrap(), tensors);
    }
}
