//! Reading safetensors files of any writer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tensors::bytes::FileBytes;
use crate::tensors::error::{Result, broken, io};
use crate::tensors::header::{Header, Place};
use crate::tensors::info::Info;
use crate::tensors::tensor::{Tensor, Tensors};

/// A safetensors file, memory mapped. Its header is checked in full when it is opened, and a tensor's bytes
/// are read from disk when they are first looked at. Files of any writer load, and metadata is kept as it is.
///
/// The file must not shrink while this lives: no check can help a mapping whose file is cut off under it (the
/// system then ends the process). Files that Unisono writes are replaced by renames, which a mapping does not
/// notice.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: FileBytes,
    header: Header,
}

impl TensorFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, is not a regular file, or is not valid safetensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::new(path, FileBytes::map(path).map_err(io(path, "read"))?)
    }

    /// Checks the bytes of a file. `path` is for error messages.
    ///
    /// # Errors
    /// The bytes are not valid safetensors.
    pub fn new(path: &Path, bytes: FileBytes) -> Result<Self> {
        let header = parse_header(path, &bytes)?;
        Ok(Self { path: path.to_owned(), bytes, header })
    }

    /// Returns the path that it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns names, types and shapes, in order of names.
    pub fn infos(&self) -> impl Iterator<Item = (&str, &Info)> {
        self.header.tensors.iter().map(|(name, place)| (name.as_str(), &place.info))
    }

    /// Returns a tensor's type and shape.
    pub fn info(&self, name: &str) -> Option<&Info> {
        self.header.tensors.get(name).map(|place| &place.info)
    }

    /// Returns a tensor's elements, little endian, as they lie in the file.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.bytes.get(self.header.tensors.get(name)?.bytes.clone())
    }

    /// Returns a copy of one tensor.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        copy(self.header.tensors.get(name)?, &self.bytes)
    }

    /// Returns a copy of all tensors. [`read_tensors`] gives an error where memory does not suffice.
    pub fn tensors(&self) -> Tensors {
        let tensors = self.header.tensors.iter();
        tensors.filter_map(|(name, place)| Some((name.clone(), copy(place, &self.bytes)?))).collect()
    }

    /// Returns what the writer noted beside the tensors. PyTorch's files have `format: pt`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }
}

/// Reads a whole safetensors file. Its metadata is passed over.
///
/// # Errors
/// Those of [`TensorFile::open`]; there is no memory for the tensors.
pub fn read_tensors(path: impl AsRef<Path>) -> Result<Tensors> {
    let file = TensorFile::open(path)?;
    copies(file.path(), &file.header, &file.bytes)
}

/// Reads the bytes of a safetensors file. `path` is for the error message. Checks all that
/// [`TensorFile::open`] does.
///
/// # Errors
/// The bytes are not valid safetensors, or there is no memory for the tensors.
pub fn parse_tensors(path: &Path, file: &[u8]) -> Result<Tensors> {
    copies(path, &parse_header(path, file)?, file)
}

fn parse_header(path: &Path, file: &[u8]) -> Result<Header> {
    Header::parse(file).map_err(|reason| broken(path, format!("no valid safetensors: {reason}")))
}

/// Copies all tensors. That memory does not suffice is an error: a file with holes may be longer than it.
fn copies(path: &Path, header: &Header, file: &[u8]) -> Result<Tensors> {
    let mut tensors = Tensors::new();
    for (name, Place { info, bytes }) in &header.tensors {
        let part = file.get(bytes.clone()).unwrap_or_default();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(part.len()).map_err(|error| io(path, "read")(error.into()))?;
        bytes.extend_from_slice(part);
        tensors.insert(name.clone(), Tensor::new(info.dtype, info.shape.clone(), bytes)?);
    }
    Ok(tensors)
}

/// Copies a tensor. For a checked header this is never `None`.
fn copy(place: &Place, file: &[u8]) -> Option<Tensor> {
    let bytes = file.get(place.bytes.clone())?.to_vec();
    Tensor::new(place.info.dtype, place.info.shape.clone(), bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_gives_one_tensor_or_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let (a, b) = (Tensor::f32(&[2], &[1.0, -0.0]).unwrap(), Tensor::u32(&[0, 3], &[]).unwrap());
        let tensors = Tensors::from([("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())]);
        crate::write_model(&path, &tensors).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert_eq!((file.tensor("a"), file.tensor("b"), file.tensor("c")), (Some(a.clone()), Some(b), None));
        assert_eq!(file.bytes("a"), Some(a.bytes()));
        assert_eq!(
            file.infos().map(|(name, info)| format!("{name} {info}")).collect::<Vec<_>>(),
            ["a F32[2]", "b U32[0, 3]"]
        );
        assert_eq!(file.tensors(), tensors);
    }

    #[test]
    fn what_is_no_such_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = TensorFile::open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("cannot read: a directory, and no regular file"), "{error}");
        let empty = dir.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let error = TensorFile::open(&empty).unwrap_err().to_string();
        assert!(error.ends_with("empty: no valid safetensors: it has no 8 bytes"), "{error}");
        assert!(TensorFile::open(dir.path().join("none")).unwrap_err().to_string().contains("cannot read: "));
    }
}
