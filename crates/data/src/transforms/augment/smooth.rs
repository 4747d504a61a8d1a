//! Resizing with antialiasing.

use super::resample::{part_of, positive};
use super::{Fields, on_images};
use crate::Transform;

/// Resizes to [height, width] bilinearly with antialiasing (torchvision's `Resize(antialias=True)`, Pillow's
/// `BILINEAR`): where the image shrinks, each pixel is the mean of all pixels that it covers, weighted by a
/// triangle. If the image grows, the result is that of [`resize`](super::resize). It draws nothing.
///
/// Weights are computed in f64, and rows and columns are summed in f32 from left to right and from top to
/// bottom. The labels of an i32 field, such as a mask, are those of the nearest pixels.
pub fn resize_smooth(fields: impl Into<Fields>, size: [usize; 2]) -> impl Transform {
    on_images(fields, move |image, _| {
        positive(size)?;
        if image.labels {
            *image = part_of(image, [0, 0], [image.height, image.width], size);
            return Ok(());
        }
        let wide = along(&image.pixels, image.height, image.width, image.channels, size[1]);
        // Columns of the result are rows of this: the same filter, with whole rows as its channels.
        let pixels = along(&wide, 1, image.height, size[1] * image.channels, size[0]);
        *image = image.with(size[0], size[1], pixels);
        Ok(())
    })
}

/// Resizes the middle axis of `[outer, from, inner]` to `to`.
fn along(values: &[f32], outer: usize, from: usize, inner: usize, to: usize) -> Vec<f32> {
    let taps: Vec<(usize, Vec<f32>)> = (0..to).map(|at| weights(at, from, to)).collect();
    let mut out = vec![0.0; outer * to * inner];
    for o in 0..outer {
        for (at, (first, weights)) in taps.iter().enumerate() {
            let sums = &mut out[(o * to + at) * inner..][..inner];
            for (k, weight) in weights.iter().enumerate() {
                let row = &values[(o * from + first + k) * inner..][..inner];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
        }
    }
    out
}

/// Returns the first of the places that one of `to` places covers of `from`, and the weight of each: a
/// triangle around its centre, as wide as the scale, whose weights sum to 1.
fn weights(at: usize, from: usize, to: usize) -> (usize, Vec<f32>) {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let centre = (at as f64 + 0.5) * scale;
    let first = (centre - support + 0.5).max(0.0) as usize;
    let end = ((centre + support + 0.5) as usize).min(from);
    let triangle = |k: usize| (1.0 - ((k as f64 + 0.5 - centre) / support).abs()).max(0.0);
    let all: Vec<f64> = (first..end).map(triangle).collect();
    let sum: f64 = all.iter().sum();
    (first, all.iter().map(|weight| (weight / sum) as f32).collect())
}

#[cfg(test)]
mod tests {
    use unisono_random::Draws;

    use super::*;
    use crate::{Field, Sample};

    fn resized(pixels: &[f32], shape: [usize; 3], size: [usize; 2]) -> Vec<f32> {
        let mut sample = Sample::new().with("x", Field::f32(shape, pixels));
        resize_smooth("x", size)(&mut sample, &mut Draws::of(0, "t", "", 0, 0)).unwrap();
        sample.field("x").unwrap().values.as_f32().unwrap().to_vec()
    }

    fn close(found: &[f32], expected: &[f32]) {
        let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && far < 1e-4, "{found:?}");
    }

    /// The numbers are those of PyTorch 2's `interpolate(mode="bilinear", antialias=True)`.
    #[test]
    fn it_is_what_pytorch_does() {
        let ramp: Vec<f32> = (0..35).map(|at| (at * at % 17) as f32).collect();
        close(&resized(&ramp, [5, 7, 1], [2, 3]), &SHRUNK);
        close(&resized(&ramp[..6], [2, 3, 1], [3, 5]), &GROWN);
    }

    #[test]
    fn channels_are_apart_and_a_constant_stays() {
        let pixels: Vec<f32> = (0..9 * 8).flat_map(|_| [3.0, -1.0, 250.0]).collect();
        let small = resized(&pixels, [9, 8, 3], [4, 3]);
        close(&small, &(0..12).flat_map(|_| [3.0, -1.0, 250.0]).collect::<Vec<f32>>());
    }

    const SHRUNK: [f32; 6] = [7.62338, 8.03209, 8.11688, 8.11688, 8.03209, 7.62338];
    const GROWN: [f32; 15] = [
        0.00000, 0.40000, 1.00000, 2.80000, 4.00000, 4.50000, 6.10000, 8.50000, 7.00000, 6.00000, 9.00000,
        11.8, 16.0, 11.2, 8.0,
    ];
}
