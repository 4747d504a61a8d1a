//! Tensors as they lie on disk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::tensors::error::{Error, Result};
use crate::tensors::float::each_f64;
use crate::tensors::info::{Info, TensorDType};

/// Tensors by name. All that is derived from them has the order of their names.
pub type Tensors = BTreeMap<String, Tensor>;

/// A dense tensor: row-major, little endian, with as many bytes as its shape takes. Clones share their bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    info: Info,
    bytes: Arc<Vec<u8>>,
}

impl Tensor {
    /// Makes a tensor from its bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more or fewer bytes than the shape takes.
    pub fn new(dtype: TensorDType, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        let info = Info { dtype, shape };
        if info.bytes() != Some(bytes.len()) {
            return Err(Error::Shape { dtype, shape: info.shape, bytes: bytes.len() });
        }
        Ok(Self { info, bytes: Arc::new(bytes) })
    }

    /// Makes a tensor of f32 values.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more or fewer values than the shape takes.
    pub fn f32(shape: &[usize], values: &[f32]) -> Result<Self> {
        Self::new(TensorDType::F32, shape.to_vec(), stored(values, |v| v.to_le_bytes()))
    }

    /// Makes a tensor of i32 values.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more or fewer values than the shape takes.
    pub fn i32(shape: &[usize], values: &[i32]) -> Result<Self> {
        Self::new(TensorDType::I32, shape.to_vec(), stored(values, |v| v.to_le_bytes()))
    }

    /// Makes a tensor of u32 values.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more or fewer values than the shape takes.
    pub fn u32(shape: &[usize], values: &[u32]) -> Result<Self> {
        Self::new(TensorDType::U32, shape.to_vec(), stored(values, |v| v.to_le_bytes()))
    }

    /// Returns the number of values that are NaN or infinite.
    pub(crate) fn not_finite(&self) -> usize {
        each_f64(self.dtype(), self.bytes()).filter(|value| !value.is_finite()).count()
    }

    /// Returns the type and shape.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the element type.
    pub fn dtype(&self) -> TensorDType {
        self.info.dtype
    }

    /// Returns the sizes of the axes, outermost first. A scalar has none.
    pub fn shape(&self) -> &[usize] {
        &self.info.shape
    }

    /// Returns the elements, little endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements, little endian, without a copy unless a clone of the tensor is still there.
    pub fn into_bytes(self) -> Vec<u8> {
        Arc::unwrap_or_clone(self.bytes)
    }

    /// Returns the elements as f32 values, or `None` if they are of another type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        self.words(TensorDType::F32, f32::from_le_bytes)
    }

    /// Returns the elements as f32 values if they are floats of any size, or `None`. The values are exact,
    /// except that f64 is rounded to nearest.
    pub fn floats(&self) -> Option<Vec<f32>> {
        super::float::to_f32(self.dtype(), self.bytes())
    }

    /// Returns the elements as i32 values, or `None` if they are of another type.
    pub fn to_i32(&self) -> Option<Vec<i32>> {
        self.words(TensorDType::I32, i32::from_le_bytes)
    }

    /// Returns the elements as u32 values, or `None` if they are of another type.
    pub fn to_u32(&self) -> Option<Vec<u32>> {
        self.words(TensorDType::U32, u32::from_le_bytes)
    }

    fn words<T>(&self, dtype: TensorDType, value: fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let (words, _) = self.bytes.as_chunks();
        (self.dtype() == dtype).then(|| words.iter().map(|&word| value(word)).collect())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.info, f)
    }
}

/// Returns the values' bytes one after the other. The training thread waits for this, so it is a loop that
/// becomes a plain copy.
fn stored<T: Copy>(values: &[T], bytes: fn(T) -> [u8; 4]) -> Vec<u8> {
    let mut all = vec![0; 4 * values.len()];
    for (place, &value) in all.as_chunks_mut().0.iter_mut().zip(values) {
        *place = bytes(value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_an_error() {
        let error = Tensor::f32(&[2, 3], &[0.0; 5]).unwrap_err().to_string();
        assert_eq!(error, "shape [2, 3] of F32 does not take 20 bytes");
        assert!(Tensor::new(TensorDType::U8, vec![usize::MAX, 2], vec![]).is_err(), "overflow");
        assert!(Tensor::new(TensorDType::F32, vec![usize::MAX, 0], vec![]).is_ok(), "no elements");
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
