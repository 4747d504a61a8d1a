//! The types in which weights are written, and what is lost by it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::quantized::{dequantize, dequantized, quantize, scale_name};
use crate::tensors::error::{Error, Result};
use crate::tensors::float::{f16_to_f32, f32_to_f16, to_f32};
use crate::tensors::info::TensorDType;
use crate::tensors::tensor::{Tensor, Tensors};

/// The type in which floating-point weights are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightPrecision {
    /// Writes f32: f32 values as they are, f16 and bf16 exactly widened, f64 rounded, and i8 values times
    /// their scales.
    #[default]
    F32,
    /// Writes f16: values are rounded to nearest, ties to even (f64 to f32 first). Values from 65520 on
    /// become infinite, which [`Exported::overflowed`](crate::Exported::overflowed) tells.
    F16,
    /// Writes matrices and kernels as i8 with one f32 scale for each output channel, and all other tensors as
    /// f32 (PyTorch's `quantize_per_channel` to `qint8`, of weights alone, with zero points of 0).
    ///
    /// `NAME` of shape `[out, in]` becomes `NAME`, i8 `[out, in]`, and `NAME_scale`, f32 `[out, 1]`: its
    /// largest absolute value in each channel divided by 127, at least 2^-126. An element of `NAME` is the
    /// weight divided by the scale, rounded to nearest, ties to even.
    /// [`Export::channels`](crate::Export::channels) says which tensors these are; a trainer knows it.
    I8,
}

/// Weights as they are written. [`WeightPrecision::store`] returns them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Stored {
    /// The tensors of the file.
    pub tensors: Tensors,
    /// The tensors with finite values that f16 cannot hold, each with the number of such values.
    pub overflowed: Vec<(String, usize)>,
    /// The tensors that are not stored exactly, with their largest errors.
    pub rounded: Vec<Rounded>,
}

/// A tensor that was rounded to be stored.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rounded {
    /// The name of the tensor.
    pub name: String,
    /// The type in which it is stored.
    pub dtype: TensorDType,
    /// The largest difference between a value and what is stored for it. It is infinite after an overflow.
    pub largest_error: f32,
    /// The largest absolute value of the tensor.
    pub largest: f32,
}

impl WeightPrecision {
    /// Returns tensors as they are written in this precision. `channels` has the axis of the output channels
    /// of each matrix and kernel by name, for example 0 for PyTorch's `Linear`, `[out, in]`; only
    /// [`I8`](Self::I8) uses it. Integers stay what they are.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use unisono_checkpoint::{Tensor, Tensors, TensorDType, WeightPrecision};
    /// let weight = Tensor::f32(&[2, 2], &[12.7, -6.3, 0.0, 0.254])?;
    /// let model = Tensors::from([("fc.weight".to_owned(), weight)]);
    /// let channels = BTreeMap::from([("fc.weight".to_owned(), 0)]);
    /// let stored = WeightPrecision::I8.store(&model, &channels)?;
    /// let integers = [127, -63, 0, 127].map(|integer: i8| integer as u8).to_vec();
    /// assert_eq!(stored.tensors["fc.weight"], Tensor::new(TensorDType::I8, vec![2, 2], integers)?);
    /// assert_eq!(stored.tensors["fc.weight_scale"].shape(), [2, 1]);
    /// # Ok::<(), unisono_checkpoint::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unstorable`] names the tensor for [`I8`](Self::I8): a value is not finite, or an axis is not
    /// there; another tensor has the name of the scales; there is no matrix and no kernel. [`Error::Broken`]:
    /// scales of tensors that are quantized already do not fit these.
    pub fn store(self, tensors: &Tensors, channels: &BTreeMap<String, usize>) -> Result<Stored> {
        let mut stored = Stored { tensors: Tensors::new(), overflowed: vec![], rounded: vec![] };
        if self == Self::I8 {
            stored.add_quantized(tensors, channels)?;
            return Ok(stored);
        }
        for (name, tensor) in dequantized(tensors, |_, _| false)?.iter() {
            match self {
                Self::F16 => stored.add_f16(name, tensor)?,
                Self::F32 | Self::I8 => stored.add_f32(name, tensor)?,
            }
        }
        Ok(stored)
    }
}

impl Stored {
    /// Returns the number of bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes().len() as u64).sum()
    }

    fn add_f32(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let values = to_f32(tensor.dtype(), tensor.bytes()).filter(|_| tensor.dtype() != TensorDType::F32);
        let tensor = match values {
            Some(values) => Tensor::f32(tensor.shape(), &values)?,
            None => tensor.clone(),
        };
        self.tensors.insert(name.to_owned(), tensor);
        Ok(())
    }

    fn add_f16(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let values = to_f32(tensor.dtype(), tensor.bytes()).filter(|_| tensor.dtype() != TensorDType::F16);
        let Some(values) = values else {
            self.tensors.insert(name.to_owned(), tensor.clone());
            return Ok(());
        };
        let halves: Vec<u16> = values.iter().map(|&value| f32_to_f16(value)).collect();
        let is_lost = |(value, half): &(&f32, &u16)| value.is_finite() && **half & 0x7fff == 0x7c00;
        let lost = values.iter().zip(&halves).filter(is_lost).count();
        self.overflowed.extend((lost > 0).then(|| (name.to_owned(), lost)));
        let found: Vec<f32> = halves.iter().map(|&half| f16_to_f32(half)).collect();
        self.add_error(name, TensorDType::F16, &values, &found);
        let bytes = halves.into_iter().flat_map(u16::to_le_bytes).collect();
        let half = Tensor::new(TensorDType::F16, tensor.shape().to_vec(), bytes)?;
        self.tensors.insert(name.to_owned(), half);
        Ok(())
    }

    /// Adds all tensors: matrices and kernels as i8. Those that are quantized already stay what they are.
    fn add_quantized(&mut self, tensors: &Tensors, channels: &BTreeMap<String, usize>) -> Result<()> {
        let unstorable = |reason: String| Err(Error::Unstorable { reason });
        let found = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.info(), tensor.bytes())));
        let already = dequantize(Path::new("tensors"), &found.collect(), |_, _| false)?;
        for (name, tensor) in tensors {
            let axis = channels.get(name).filter(|_| !already.contains_key(name));
            let Some((axis, values)) = axis.zip(to_f32(tensor.dtype(), tensor.bytes())) else {
                self.add_f32(name, tensor)?;
                continue;
            };
            let scale = scale_name(name);
            if tensors.contains_key(&scale) {
                return unstorable(format!(
                    "{scale} is a tensor, so the scales of {name} cannot have this name"
                ));
            }
            let [integers, scales] = quantize(name, tensor.shape(), &values, *axis)?;
            let pair = Tensors::from([(name.clone(), integers), (scale, scales)]);
            let values_of = dequantized(&pair, |_, _| false)?;
            if let Some(found) = values_of.get(name).and_then(Tensor::to_f32) {
                self.add_error(name, TensorDType::I8, &values, &found);
            }
            self.tensors.extend(pair);
        }
        if !self.tensors.values().any(|tensor| tensor.dtype() == TensorDType::I8) {
            return unstorable(
                "no tensor is a matrix or a kernel, so none would be i8 (Export::channels)".into(),
            );
        }
        Ok(())
    }

    /// Notes what a tensor lost, if it lost something. NaN lost nothing.
    fn add_error(&mut self, name: &str, dtype: TensorDType, values: &[f32], found: &[f32]) {
        let errors = values.iter().zip(found).map(|(value, found)| (value - found).abs());
        let largest_error = errors.fold(0.0, f32::max);
        if largest_error > 0.0 {
            let largest = values.iter().map(|value| value.abs()).fold(0.0, f32::max);
            self.rounded.push(Rounded { name: name.to_owned(), dtype, largest_error, largest });
        }
    }
}
