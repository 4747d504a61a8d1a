//! Weights as 8-bit integers with one scale for each output channel.
//!
//! A tensor `NAME` of floats becomes two tensors: `NAME`, i8, and `NAME_scale`, f32. The scale has as many
//! axes as `NAME`: the number of channels on one axis, and 1 on the others, so that a weight is `NAME *
//! NAME_scale` by broadcasting. The library compressed-tensors, by which vLLM reads models, gives
//! weights of int8 the same names and shapes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use crate::tensors::error::{Error, Result, broken, io};
use crate::tensors::info::{Info, TensorDType};
use crate::tensors::tensor::{Tensor, Tensors};

/// The largest integer of a channel.
const LARGEST: f32 = 127.0;

/// Tensors by name, each with its elements.
type Found<'a> = BTreeMap<&'a str, (&'a Info, &'a [u8])>;

/// Returns the name of the scales of a tensor that is quantized: `NAME_scale`.
pub fn scale_name(name: &str) -> String {
    format!("{name}_scale")
}

/// Returns a tensor as i8 values, and its scales: symmetric, by channels (PyTorch's `quantize_per_channel` to
/// `qint8` with zero points of 0).
///
/// A channel's scale is its largest absolute value divided by 127, but not less than 2^-126, the smallest
/// normal f32, which is therefore the scale of a channel of zeros. A value is divided by it and rounded to
/// the nearest integer, ties to even.
///
/// # Errors
/// [`Error::Unstorable`]: the shape has no such axis; a value is not finite; there is no memory for the
/// scales of a tensor without elements.
pub(super) fn quantize(name: &str, shape: &[usize], values: &[f32], axis: usize) -> Result<[Tensor; 2]> {
    let unstorable = |reason: String| Error::Unstorable { reason };
    let Some(&channels) = shape.get(axis) else {
        return Err(unstorable(format!("{name} {shape:?} has no axis {axis} of output channels")));
    };
    let mut scales = Vec::new();
    let reserved = scales.try_reserve_exact(channels);
    reserved.map_err(|_| unstorable(format!("{name} {shape:?}: no memory for a scale of each channel")))?;
    scales.resize(channels, 0.0f32);
    for (channel, run) in runs(values, shape, axis) {
        for value in run {
            if !value.is_finite() {
                let problem =
                    format!("{name}: channel {channel} has the value {value}, which i8 cannot hold");
                return Err(unstorable(problem));
            }
            scales[channel] = scales[channel].max(value.abs());
        }
    }
    for scale in &mut scales {
        *scale = (*scale / LARGEST).max(f32::MIN_POSITIVE);
        if (*scale * LARGEST).is_infinite() {
            // The quotient of the largest numbers was rounded up.
            *scale = scale.next_down();
        }
    }
    let mut integers = Vec::with_capacity(values.len());
    for (channel, run) in runs(values, shape, axis) {
        let integer = |value: &f32| {
            let rounded = (value / scales[channel]).round_ties_even();
            rounded.clamp(-LARGEST, LARGEST) as i8 as u8
        };
        integers.extend(run.iter().map(integer));
    }
    let mut shape_of_scales = vec![1; shape.len()];
    shape_of_scales[axis] = channels;
    let quantized = Tensor::new(TensorDType::I8, shape.to_vec(), integers)?;
    Ok([quantized, Tensor::f32(&shape_of_scales, &scales)?])
}

/// Returns the f32 values of the tensors of i8 that have scales, by name. A value is the integer times the
/// scale, rounded once. `skips` says which of these tensors are left as they are.
///
/// # Errors
/// [`Error::Broken`] names the tensor: its scales are no f32, or have other axes; a scale is not positive; a
/// value is not finite. [`Error::Io`]: there is no memory for the values.
pub(super) fn dequantize(
    path: &Path,
    found: &Found<'_>,
    skips: impl Fn(&str, &str) -> bool,
) -> Result<Tensors> {
    let mut tensors = Tensors::new();
    for (&name, &(info, integers)) in found {
        let named = scale_name(name);
        let Some(&(scale_info, scales)) = found.get(&*named) else { continue };
        if info.dtype != TensorDType::I8 || skips(name, &named) {
            continue;
        }
        let Some(axis) = axis_of(&info.shape, scale_info) else {
            let problem = format!(
                "{named} is {scale_info}, and the scales of {name} {info} must be F32, with the length of {name} \
                 on one axis and 1 on the others"
            );
            return Err(broken(path, problem));
        };
        let (scales, _) = scales.as_chunks();
        let scales: Vec<f32> = scales.iter().map(|word| f32::from_le_bytes(*word)).collect();
        if let Some(channel) = scales.iter().position(|scale| !(scale.is_finite() && *scale > 0.0)) {
            let problem = format!("{named}: channel {channel} has the scale {}", scales[channel]);
            return Err(broken(path, format!("{problem}, which is not a positive number")));
        }
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(integers.len().saturating_mul(4));
        reserved.map_err(|error| io(path, "read")(error.into()))?;
        for (channel, run) in runs(integers, &info.shape, axis) {
            let scale = if let [one] = scales[..] { one } else { scales[channel] };
            for &integer in run {
                let value = f32::from(integer as i8) * scale;
                if !value.is_finite() {
                    let problem = format!("{name}: a value of channel {channel} times its scale is {value}");
                    return Err(broken(path, problem));
                }
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        tensors.insert(name.to_owned(), Tensor::new(TensorDType::F32, info.shape.clone(), bytes)?);
    }
    Ok(tensors)
}

/// Returns tensors in memory with the values of those that are quantized in place of their integers and
/// scales. `skips` is that of [`dequantize`].
///
/// # Errors
/// As of [`dequantize`].
pub(super) fn dequantized(tensors: &Tensors, skips: impl Fn(&str, &str) -> bool) -> Result<Cow<'_, Tensors>> {
    let found = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.info(), tensor.bytes())));
    let values = dequantize(Path::new("tensors"), &found.collect(), skips)?;
    if values.is_empty() {
        return Ok(Cow::Borrowed(tensors));
    }
    let mut all = tensors.clone();
    for (name, tensor) in values {
        all.remove(&scale_name(&name));
        all.insert(name, tensor);
    }
    Ok(Cow::Owned(all))
}

/// Returns the axis of channels of the shape of scales: the only one that is not 1, or the first one if all
/// are. `None`: they are no scales of this shape.
fn axis_of(shape: &[usize], scales: &Info) -> Option<usize> {
    if scales.dtype != TensorDType::F32 || scales.shape.len() != shape.len() || shape.is_empty() {
        return None;
    }
    let mut axes = (0..shape.len()).filter(|&axis| scales.shape[axis] != 1);
    let axis = axes.next().unwrap_or(0);
    let fits = axes.next().is_none() && [1, shape[axis]].contains(&scales.shape[axis]);
    fits.then_some(axis)
}

/// Iterates over elements in row-major order, as runs of those that are next to each other in one channel,
/// each with the index of the channel.
fn runs<'a, T>(elements: &'a [T], shape: &[usize], axis: usize) -> impl Iterator<Item = (usize, &'a [T])> {
    // Beside an axis of length 0, others may be of any length.
    let inner: usize = if elements.is_empty() { 1 } else { shape[axis + 1..].iter().product() };
    let channels = shape[axis];
    elements.chunks(inner.max(1)).enumerate().map(move |(run, elements)| (run % channels, elements))
}
