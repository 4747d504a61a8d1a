//! Mel bands and the cosine transform.

use std::f64::consts::PI;

/// Returns the mel value of a frequency in hertz, by HTK's formula.
fn mel(hertz: f64) -> f64 {
    2595.0 * libm::log10(1.0 + hertz / 700.0)
}

/// Returns the frequency of a mel value.
fn hertz(mel: f64) -> f64 {
    700.0 * (libm::pow(10.0, mel / 2595.0) - 1.0)
}

/// Returns the triangle of each band over `bins` bins from 0 to `half` hertz: its first bin, and the weights
/// from there on.
pub(super) fn filters(bins: usize, half: f64, bands: usize, [low, high]: [f64; 2]) -> Vec<(usize, Vec<f64>)> {
    let (first, last) = (mel(low), mel(high));
    let corner = |at: usize| hertz(first + (last - first) * at as f64 / (bands + 1) as f64);
    let corners: Vec<f64> = (0..bands + 2).map(corner).collect();
    let frequency = |bin: usize| half * bin as f64 / (bins.max(2) - 1) as f64;
    let band = |corners: &[f64]| {
        let [from, middle, to] = [corners[0], corners[1], corners[2]];
        let weight = |bin: usize| {
            let at = frequency(bin);
            ((at - from) / (middle - from)).min((to - at) / (to - middle)).max(0.0)
        };
        let all: Vec<f64> = (0..bins).map(weight).collect();
        let start = all.iter().position(|&weight| weight > 0.0).unwrap_or(0);
        let end = all.iter().rposition(|&weight| weight > 0.0).map_or(start, |last| last + 1);
        (start, all[start..end].to_vec())
    };
    corners.windows(3).map(band).collect()
}

/// Returns the rows of the orthonormal cosine transform DCT-II of `bands` values.
pub(super) fn cosines(coefficients: usize, bands: usize) -> Vec<Vec<f64>> {
    let row = |k: usize| {
        let scale = if k == 0 { 1.0 } else { 2.0 } / bands as f64;
        let value = |at: usize| scale.sqrt() * libm::cos(PI / bands as f64 * (at as f64 + 0.5) * k as f64);
        (0..bands).map(value).collect()
    };
    (0..coefficients).map(row).collect()
}
