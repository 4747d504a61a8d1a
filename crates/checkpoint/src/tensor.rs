//! A named block of numbers, as it lies on disk.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype as Stored;

use crate::error::{Error, Result};

/// Tensors by name. The order of names is the order of everything derived from them.
pub type Tensors = BTreeMap<String, Tensor>;

/// The element type of a [`Tensor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the field's own")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

/// Each type with its name and its twin in the safetensors crate.
const TYPES: [(Dtype, &str, Stored); 13] = [
    (Dtype::Bool, "BOOL", Stored::BOOL),
    (Dtype::U8, "U8", Stored::U8),
    (Dtype::I8, "I8", Stored::I8),
    (Dtype::U16, "U16", Stored::U16),
    (Dtype::I16, "I16", Stored::I16),
    (Dtype::F16, "F16", Stored::F16),
    (Dtype::Bf16, "BF16", Stored::BF16),
    (Dtype::U32, "U32", Stored::U32),
    (Dtype::I32, "I32", Stored::I32),
    (Dtype::F32, "F32", Stored::F32),
    (Dtype::U64, "U64", Stored::U64),
    (Dtype::I64, "I64", Stored::I64),
    (Dtype::F64, "F64", Stored::F64),
];

impl Dtype {
    /// Bytes an element.
    pub fn size(self) -> usize {
        self.stored().bitsize() / 8
    }

    /// The name safetensors headers use: `F32`, `BF16`, ...
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    pub(crate) fn stored(self) -> Stored {
        TYPES[self as usize].2
    }

    pub(crate) fn from_stored(stored: Stored) -> Option<Self> {
        TYPES.iter().find(|row| row.2 == stored).map(|row| row.0)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dense tensor: row-major, little endian, as many bytes as its shape takes.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor from its bytes; an error when there are too many or too few of them.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        let elements = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        if elements.and_then(|n| n.checked_mul(dtype.size())) != Some(bytes.len()) {
            return Err(Error::Shape { dtype, shape, bytes: bytes.len() });
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// A tensor of f32 values.
    pub fn f32(shape: &[usize], values: &[f32]) -> Result<Self> {
        Self::new(Dtype::F32, shape.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A tensor of i32 values.
    pub fn i32(shape: &[usize], values: &[i32]) -> Result<Self> {
        Self::new(Dtype::I32, shape.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A tensor of u32 values.
    pub fn u32(shape: &[usize], values: &[u32]) -> Result<Self> {
        Self::new(Dtype::U32, shape.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The sizes of the axes, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, little endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements, little endian, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The elements as f32 values; `None` when they are of another type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        self.words(Dtype::F32, f32::from_le_bytes)
    }

    /// The elements as i32 values; `None` when they are of another type.
    pub fn to_i32(&self) -> Option<Vec<i32>> {
        self.words(Dtype::I32, i32::from_le_bytes)
    }

    /// The elements as u32 values; `None` when they are of another type.
    pub fn to_u32(&self) -> Option<Vec<u32>> {
        self.words(Dtype::U32, u32::from_le_bytes)
    }

    fn words<T>(&self, dtype: Dtype, value: fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let (words, _) = self.bytes.as_chunks();
        (self.dtype == dtype).then(|| words.iter().map(|&word| value(word)).collect())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_types_is_in_the_order_of_the_enum() {
        for (i, (dtype, name, stored)) in TYPES.into_iter().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(stored.to_string(), name);
            assert_eq!(Dtype::from_stored(dtype.stored()), Some(dtype));
        }
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_an_error() {
        let error = Tensor::f32(&[2, 3], &[0.0; 5]).unwrap_err().to_string();
        assert_eq!(error, "shape [2, 3] of F32 does not take 20 bytes");
        assert!(Tensor::new(Dtype::U8, vec![usize::MAX, 2], vec![]).is_err(), "overflow");
        assert!(Tensor::new(Dtype::F32, vec![usize::MAX, 0], vec![]).is_ok(), "no elements");
        assert!(Tensor::f32(&[], &[1.0]).is_ok(), "a scalar");
    }

    #[test]
    fn values_come_back() {
        let tensor = Tensor::f32(&[2], &[-0.0, f32::NAN]).unwrap();
        let bits: Vec<u32> = tensor.to_f32().unwrap().into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, [0x8000_0000, f32::NAN.to_bits()]);
        assert_eq!(tensor.to_i32(), None);
        assert_eq!(Tensor::i32(&[1], &[-7]).unwrap().to_i32(), Some(vec![-7]));
    }
}
