//! Initial weights. Element i of the tensor `name` is a function of (seed, name, i) alone.

use crate::{Stream, normal, stream, truncated_normal, uniform};

/// Fills `out` with uniform values in [lo, hi).
pub fn fill_uniform(seed: u64, name: &str, lo: f32, hi: f32, out: &mut [f32]) {
    fill(seed, name, out, |word| uniform(word, lo, hi));
}

/// Fills `out` with normal values of a mean and a standard deviation.
pub fn fill_normal(seed: u64, name: &str, mean: f32, deviation: f32, out: &mut [f32]) {
    fill(seed, name, out, |word| scaled(normal(word), mean, deviation));
}

/// Fills `out` with normal values cut off at two standard deviations on either side.
///
/// `deviation` is the standard deviation before the cut. The values that are left have 0.8796 of it.
pub fn fill_truncated_normal(seed: u64, name: &str, mean: f32, deviation: f32, out: &mut [f32]) {
    fill(seed, name, out, |word| scaled(truncated_normal(word), mean, deviation));
}

/// Scales and shifts a standard normal value in f64, and rounds it once.
fn scaled(x: f32, mean: f32, deviation: f32) -> f32 {
    (f64::from(mean) + f64::from(deviation) * f64::from(x)) as f32
}

/// Fills `out` with values from the words of stream `("init", name)`, at epoch and position zero, one word an
/// element.
fn fill(seed: u64, name: &str, out: &mut [f32], value: impl Fn(u32) -> f32) {
    let stream = Stream::new(seed, stream("init", name));
    for (block, out) in out.chunks_mut(4).enumerate() {
        let words = stream.block(0, 0, block as u32);
        for (out, word) in out.iter_mut().zip(words) {
            *out = value(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_deviation(values: &[f32]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn moments_are_right() {
        let mut values = vec![0.0; 200_000];
        fill_uniform(1, "w", -3.0, 1.0, &mut values);
        let (mean, deviation) = mean_and_deviation(&values);
        assert!((mean + 1.0).abs() < 0.01 && (deviation - 4.0 / 12f64.sqrt()).abs() < 0.01);
        assert!(values.iter().all(|x| (-3.0..1.0).contains(x)));

        fill_normal(1, "w", 0.5, 2.0, &mut values);
        let (mean, deviation) = mean_and_deviation(&values);
        assert!((mean - 0.5).abs() < 0.02 && (deviation - 2.0).abs() < 0.02);

        fill_truncated_normal(1, "w", 0.0, 1.0, &mut values);
        let (mean, deviation) = mean_and_deviation(&values);
        assert!(mean.abs() < 0.01 && (deviation - 0.8796).abs() < 0.005);
        assert!(values.iter().all(|x| (-2.0..=2.0).contains(x)));
    }

    #[test]
    fn an_element_does_not_depend_on_the_length() {
        let (mut long, mut short) = ([0.0; 23], [0.0; 6]);
        fill_normal(9, "dense.weight", 0.0, 1.0, &mut long);
        fill_normal(9, "dense.weight", 0.0, 1.0, &mut short);
        assert_eq!(long[..6], short);
        fill_normal(9, "dense.bias", 0.0, 1.0, &mut short);
        assert_ne!(long[..6], short);
        fill_uniform(9, "x", 0.0, 1.0, &mut []);
    }

    /// Pins the bits on every platform.
    #[test]
    fn golden_bits() {
        let mut values = [0.0; 5];
        fill_normal(42, "0.dense.weight", 0.0, 1.0, &mut values);
        let bits = values.map(f32::to_bits);
        assert_eq!(bits, GOLDEN, "{values:?} {bits:#010x?}");
    }

    const GOLDEN: [u32; 5] = [0x3ded69ba, 0xbd5920e7, 0x3fbb3810, 0xbe2072a2, 0x3e3cc617];
}
