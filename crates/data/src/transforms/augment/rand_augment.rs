//! RandAugment: some of fourteen changes of a picture, drawn at random, all of one strength.

use super::affine::{Fill, nearest};
use super::jitter::{brighten, has_colours, has_white, saturate, spread};
use super::{Fields, Image, moved_aligned};
use crate::{BoxError, Transform};

/// The magnitudes that there are, as torchvision counts them.
const MAGNITUDES: f64 = 30.0;

/// Some of fourteen changes, drawn at random one after another: torchvision's `RandAugment` (Cubuk et al.,
/// 2020). It draws two words a layer.
///
/// The changes are torchvision's, with its bounds: none, shear and shift along each axis, rotation,
/// brightness, colour, contrast, sharpness, posterize, solarize, automatic contrast, equalize. Pictures have
/// values from 0 to 1, or up to [`values_to`](Self::values_to). Masks of i32 are moved alike, and their
/// labels stay.
///
/// ```
/// use unisono_data::{Loader, Memory, augment::RandAugment};
///
/// let pictures = Memory::labelled(vec![0.5; 4 * 8 * 8 * 3], [8, 8, 3], vec![0; 4])?;
/// let loader = Loader::new(pictures).shuffle(1).try_map("augment", RandAugment::new().transform("x"));
/// # loader.epoch(0)?.next().unwrap()?;
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandAugment {
    layers: usize,
    magnitude: f32,
    most: f32,
    fill: f32,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self::new()
    }
}

impl RandAugment {
    /// Returns two changes of magnitude 9.
    pub fn new() -> Self {
        Self { layers: 2, magnitude: 9.0, most: 1.0, fill: 0.0 }
    }

    /// Sets how many changes a picture gets. Default: 2.
    #[doc(alias = "num_ops")]
    pub fn layers(self, layers: usize) -> Self {
        Self { layers, ..self }
    }

    /// Sets the strength of all changes, from 0 to 30. Default: 9.
    pub fn magnitude(self, magnitude: f32) -> Self {
        Self { magnitude, ..self }
    }

    /// Sets the value of white: 255 for pictures as `ImageFolder` reads them. Default: 1. A picture with a
    /// value of more than twice as much, or of less than minus half of it, is an error.
    pub fn values_to(self, most: f32) -> Self {
        Self { most, ..self }
    }

    /// Sets the value of what comes in from beyond the edge. Default: 0.
    pub fn fill(self, value: f32) -> Self {
        Self { fill: value, ..self }
    }

    /// Returns the transform of a field [height, width, channels] of one or three channels, or of several
    /// alike.
    pub fn transform(self, fields: impl Into<Fields>) -> impl Transform {
        moved_aligned(fields, move |image, draws| {
            if !(0.0..=MAGNITUDES as f32).contains(&self.magnitude) || self.most <= 0.0 {
                return Err(
                    format!("a magnitude of {} in 0..=30, white {}", self.magnitude, self.most).into()
                );
            }
            if !image.labels {
                has_colours(image)?;
                has_white("RandAugment", image, self.most)?;
            }
            for _ in 0..self.layers {
                let change = Change::ALL[draws.below(Change::ALL.len() as u32) as usize];
                let sign = if draws.chance(0.5) { -1.0 } else { 1.0 };
                self.apply(image, change, sign)?;
            }
            Ok(())
        })
    }

    fn apply(&self, image: &mut Image, change: Change, sign: f64) -> Result<(), BoxError> {
        let share = f64::from(self.magnitude) / MAGNITUDES;
        if let Some(map) = change.map(image, share * sign) {
            let fill = Fill::Value(image.value(self.fill)?);
            image.pixels = nearest(image, map, fill);
            return Ok(());
        }
        if image.labels {
            return Ok(());
        }
        let (most, factor) = (self.most, (1.0 + 0.9 * share * sign) as f32);
        match change {
            Change::Brightness => brighten(image, factor, most),
            Change::Color => saturate(image, factor, most),
            Change::Contrast => spread(image, factor, most),
            Change::Sharpness => sharpen(image, factor, most),
            Change::Posterize => posterize(image, 8 - (4.0 * share).round() as u32, most),
            Change::Solarize => solarize(image, most * (1.0 - share) as f32, most),
            Change::AutoContrast => of_channels(image, |values| stretch(values, most)),
            Change::Equalize => of_channels(image, |values| equalize(values, most)),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

impl Change {
    const ALL: [Change; 14] = [
        Change::Identity,
        Change::ShearX,
        Change::ShearY,
        Change::TranslateX,
        Change::TranslateY,
        Change::Rotate,
        Change::Brightness,
        Change::Color,
        Change::Contrast,
        Change::Sharpness,
        Change::Posterize,
        Change::Solarize,
        Change::AutoContrast,
        Change::Equalize,
    ];

    /// Returns the map of a change that moves pixels, from a place of the result to that of the image: a
    /// row-major 2 x 3 matrix over (y, x, 1).
    fn map(self, image: &Image, share: f64) -> Option<[f64; 6]> {
        let [height, width] = [image.height as f64, image.width as f64];
        let slide = 0.3 * share;
        let shift = |extent: f64| (150.0 / 331.0 * extent * share).trunc();
        Some(match self {
            Change::ShearX => [1.0, 0.0, 0.0, slide, 1.0, 0.0],
            Change::ShearY => [1.0, slide, 0.0, 0.0, 1.0, 0.0],
            Change::TranslateX => [1.0, 0.0, 0.0, 0.0, 1.0, -shift(width)],
            Change::TranslateY => [1.0, 0.0, -shift(height), 0.0, 1.0, 0.0],
            Change::Rotate => {
                let angle = (30.0 * share).to_radians();
                let (sine, cosine) = (libm::sin(angle), libm::cos(angle));
                let [y, x] = [(height - 1.0) / 2.0, (width - 1.0) / 2.0];
                [cosine, sine, y - cosine * y - sine * x, -sine, cosine, x + sine * y - cosine * x]
            }
            _ => return None,
        })
    }
}

/// Multiplies the distance from the smoothed picture by a factor. The pixels of the edge stay.
fn sharpen(image: &mut Image, factor: f32, most: f32) {
    let before = image.with(image.height, image.width, image.pixels.clone());
    let channels = image.channels;
    for y in 1..image.height.saturating_sub(1) {
        for x in 1..image.width.saturating_sub(1) {
            for c in 0..channels {
                let own = before.at(y, x)[c];
                let around = (0..9).map(|at| before.at(y + at / 3 - 1, x + at % 3 - 1)[c]).sum::<f32>();
                let smooth = (around + 4.0 * own) / 13.0;
                let value = (smooth + (own - smooth) * factor).clamp(0.0, most);
                image.pixels[(y * image.width + x) * channels + c] = value;
            }
        }
    }
}

/// Returns a value as a byte.
fn byte(value: f32, most: f32) -> u8 {
    (value / most * 255.0).round() as u8
}

/// Keeps the highest bits of each value as a byte.
fn posterize(image: &mut Image, bits: u32, most: f32) {
    if bits >= 8 {
        return;
    }
    let mask = !0_u8 << (8 - bits);
    image.pixels.iter_mut().for_each(|value| *value = f32::from(byte(*value, most) & mask) / 255.0 * most);
}

/// Inverts the values that are at least the threshold.
fn solarize(image: &mut Image, threshold: f32, most: f32) {
    image.pixels.iter_mut().filter(|value| **value >= threshold).for_each(|value| *value = most - *value);
}

/// Changes the values of each channel by themselves.
fn of_channels(image: &mut Image, change: impl Fn(&mut [f32])) {
    for channel in 0..image.channels {
        let places = || (channel..image.pixels.len()).step_by(image.channels);
        let mut values: Vec<f32> = places().map(|at| image.pixels[at]).collect();
        change(&mut values);
        let places = (channel..image.pixels.len()).step_by(image.channels);
        places.zip(values).for_each(|(at, value)| image.pixels[at] = value);
    }
}

/// Stretches values so that the least is black and the largest white.
fn stretch(values: &mut [f32], most: f32) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if low < high {
        values.iter_mut().for_each(|value| *value = (*value - low) / (high - low) * most);
    }
}

/// Spreads values as bytes so that all are about equally frequent.
fn equalize(values: &mut [f32], most: f32) {
    let mut counts = [0_usize; 256];
    values.iter().for_each(|value| counts[usize::from(byte(*value, most))] += 1);
    let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let step = counts[..last].iter().sum::<usize>() / 255;
    if step == 0 {
        return;
    }
    let mut below = 0;
    let table = counts.map(|count| {
        let level = ((below + step / 2) / step).min(255);
        below += count;
        level as f32 / 255.0 * most
    });
    values.iter_mut().for_each(|value| *value = table[usize::from(byte(*value, most))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pixels: &[f32]) -> Image {
        Image { height: 1, width: pixels.len(), channels: 1, pixels: pixels.to_vec(), labels: false }
    }

    /// The numbers are worked out by Pillow's rules for bytes.
    #[test]
    fn colours_change_as_pillow_has_them() {
        let mut image = row(&[200.0, 15.0, 16.0, 255.0]);
        posterize(&mut image, 4, 255.0);
        assert_eq!(image.pixels, [192.0, 0.0, 16.0, 240.0]);
        let mut image = row(&[0.25, 0.5, 0.75]);
        solarize(&mut image, 0.5, 1.0);
        assert_eq!(image.pixels, [0.25, 0.5, 0.25]);
        let mut image = row(&[0.25, 0.5, 0.75]);
        of_channels(&mut image, |values| stretch(values, 1.0));
        assert_eq!(image.pixels, [0.0, 0.5, 1.0]);
        // Three levels, 300 pixels of each: steps of 600 / 255 = 2 pixels, so that 20 becomes 301 / 2.
        let levels = |levels: [f32; 3]| levels.iter().flat_map(|&level| [level; 300]).collect::<Vec<f32>>();
        let mut image = row(&levels([10.0, 20.0, 30.0]));
        of_channels(&mut image, |values| equalize(values, 255.0));
        assert_eq!(image.pixels, levels([0.0, 150.0, 255.0]));
        // The kernel of smoothing is 1 around and 5 in the middle, over 13.
        let mut image =
            Image { height: 3, width: 3, ..row(&[0.0, 0.0, 0.0, 0.0, 130.0, 0.0, 0.0, 0.0, 26.0]) };
        sharpen(&mut image, 0.0, 255.0);
        assert_eq!(image.pixels, [0.0, 0.0, 0.0, 0.0, 52.0, 0.0, 0.0, 0.0, 26.0]);
    }

    #[test]
    fn pixels_move_by_the_bounds_of_torchvision() {
        let moved = |change, extents: [usize; 2], sign| {
            let count = extents[0] * extents[1];
            let pixels: Vec<f32> = (1..=count).map(|i| i as f32 / 255.0).collect();
            let mut image = Image { height: extents[0], width: extents[1], ..row(&pixels) };
            RandAugment::new().magnitude(30.0).apply(&mut image, change, sign).unwrap();
            image.pixels.iter().map(|value| (value * 255.0).round() as i32).collect::<Vec<i32>>()
        };
        // 150 / 331 of 5 pixels is 2.27, of which 2 count.
        assert_eq!(moved(Change::TranslateX, [1, 5], 1.0), [0, 0, 1, 2, 3]);
        assert_eq!(moved(Change::TranslateX, [1, 5], -1.0), [3, 4, 5, 0, 0]);
        assert_eq!(moved(Change::TranslateY, [5, 1], 1.0), [0, 0, 1, 2, 3]);
        // Row 2 slides by 0.6 of a pixel, which is next to 1.
        assert_eq!(moved(Change::ShearX, [3, 3], 1.0), [1, 2, 3, 4, 5, 6, 8, 9, 0]);
        assert_eq!(moved(Change::ShearY, [3, 3], 1.0), [1, 2, 6, 4, 5, 9, 7, 8, 0]);
        assert_eq!(moved(Change::Rotate, [3, 3], 1.0)[4], 5);
        assert_ne!(moved(Change::Rotate, [3, 3], 1.0), moved(Change::Rotate, [3, 3], -1.0));
        assert_eq!(moved(Change::Identity, [1, 5], 1.0), [1, 2, 3, 4, 5]);
    }
}
