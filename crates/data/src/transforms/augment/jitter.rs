//! Colour jitter as torchvision has it, and the changes of colours that it is made of.

use unisono_random::Draws;

use super::colour::grey;
use super::{Image, on_image};
use crate::{BoxError, Transform};

/// Random changes of brightness, contrast, saturation and hue, in a random order: torchvision's
/// `ColorJitter`. It draws seven words.
///
/// Pictures have values from 0 to 1, as after [`preprocess`](crate::preprocess) with
/// [`Pretrained::Unit`](crate::Pretrained::Unit), or up to [`values_to`](Self::values_to). Values that a
/// change takes beyond these bounds are cut off. Pictures with one channel have neither saturation nor hue.
///
/// ```
/// use unisono_data::{Loader, Memory, augment::ColorJitter};
///
/// let pictures = Memory::labelled(vec![0.5; 4 * 8 * 8 * 3], [8, 8, 3], vec![0; 4])?;
/// let jitter = ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1);
/// let loader = Loader::new(pictures).shuffle(1).try_map("jitter", jitter.transform("x"));
/// # loader.epoch(0)?.next().unwrap()?;
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    brightness: f32,
    contrast: f32,
    saturation: f32,
    hue: f32,
    most: f32,
}

impl Default for ColorJitter {
    fn default() -> Self {
        Self::new()
    }
}

impl ColorJitter {
    /// Returns a jitter that changes nothing.
    pub fn new() -> Self {
        Self { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.0, most: 1.0 }
    }

    /// Multiplies all values by a factor from 1 - `by`, but at least 0, to 1 + `by`. Default: 0.
    pub fn brightness(self, by: f32) -> Self {
        Self { brightness: by, ..self }
    }

    /// Multiplies the distance of all values from the picture's mean luminance by a factor from 1 - `by`, but
    /// at least 0, to 1 + `by`. Default: 0.
    pub fn contrast(self, by: f32) -> Self {
        Self { contrast: by, ..self }
    }

    /// Multiplies the distance of each pixel's values from the pixel's luminance by a factor from 1 - `by`,
    /// but at least 0, to 1 + `by`. Default: 0.
    pub fn saturation(self, by: f32) -> Self {
        Self { saturation: by, ..self }
    }

    /// Turns the hue by up to this share of the circle of colours, at most 0.5. Default: 0.
    pub fn hue(self, by: f32) -> Self {
        Self { hue: by, ..self }
    }

    /// Sets the value of white: 255 for pictures as `ImageFolder` reads them. Default: 1. A picture with a
    /// value of more than twice as much, or of less than minus half of it, is an error.
    pub fn values_to(self, most: f32) -> Self {
        Self { most, ..self }
    }

    /// Returns the transform of a field [height, width, channels] of one or three channels.
    pub fn transform(self, field: &str) -> impl Transform {
        on_image(field, move |image, draws| self.change(image, draws))
    }

    fn change(&self, image: &mut Image, draws: &mut Draws) -> Result<(), BoxError> {
        let by = [self.brightness, self.contrast, self.saturation, self.hue];
        let sound = by.iter().all(|by| *by >= 0.0 && by.is_finite()) && self.hue <= 0.5 && self.most > 0.0;
        if !sound {
            return Err(format!("{self:?} is no jitter").into());
        }
        has_colours(image)?;
        if by.iter().any(|by| *by > 0.0) {
            has_white("ColorJitter", image, self.most)?;
        }
        let mut order = [0, 1, 2, 3];
        for at in (1..4).rev() {
            order.swap(at, draws.below(at as u32 + 1) as usize);
        }
        let factor = |by: f32, draws: &mut Draws| draws.range((1.0 - by).max(0.0), 1.0 + by);
        let [brighter, contrast, saturation] = [0, 1, 2].map(|at| factor(by[at], draws));
        let turn = draws.range(-self.hue, self.hue);
        for change in order {
            match change {
                0 if self.brightness > 0.0 => brighten(image, brighter, self.most),
                1 if self.contrast > 0.0 => spread(image, contrast, self.most),
                2 if self.saturation > 0.0 => saturate(image, saturation, self.most),
                3 if self.hue > 0.0 => turn_hue(image, turn, self.most),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Checks that an image has one or three channels.
pub(super) fn has_colours(image: &Image) -> Result<(), BoxError> {
    match image.channels {
        1 | 3 => Ok(()),
        channels => Err(format!("colours need 1 or 3 channels, not {channels}").into()),
    }
}

/// Checks that an image's values do not lie far beyond black and white, where all of them would be cut off.
pub(super) fn has_white(what: &str, image: &Image, most: f32) -> Result<(), BoxError> {
    let values = || image.pixels.iter().copied();
    let (low, high) = (values().fold(0.0, f32::min), values().fold(0.0, f32::max));
    if low >= -most / 2.0 && high <= 2.0 * most {
        return Ok(());
    }
    let advice = "set white with values_to, and change colours before pictures are normalised";
    let range = format!("the picture has values from {low} to {high}, but black is 0 and white is {most}");
    Err(format!("{what}: {range}: {advice}").into())
}

/// Multiplies all values by a factor.
pub(super) fn brighten(image: &mut Image, factor: f32, most: f32) {
    image.pixels.iter_mut().for_each(|value| *value = (*value * factor).clamp(0.0, most));
}

/// Multiplies the distance of all values from the mean luminance by a factor.
pub(super) fn spread(image: &mut Image, factor: f32, most: f32) {
    let sum: f64 = image.pixels.chunks_exact(image.channels).map(|pixel| f64::from(grey(pixel))).sum();
    let mean = (sum / (image.height * image.width) as f64) as f32;
    image.pixels.iter_mut().for_each(|value| *value = (mean + (*value - mean) * factor).clamp(0.0, most));
}

/// Multiplies the distance of all values from their pixel's luminance by a factor.
pub(super) fn saturate(image: &mut Image, factor: f32, most: f32) {
    if image.channels != 3 {
        return;
    }
    for pixel in image.pixels.chunks_exact_mut(3) {
        let grey = grey(pixel);
        pixel.iter_mut().for_each(|value| *value = (grey + (*value - grey) * factor).clamp(0.0, most));
    }
}

/// Turns the hue of all pixels by a share of the circle of colours.
pub(super) fn turn_hue(image: &mut Image, turn: f32, most: f32) {
    if image.channels != 3 {
        return;
    }
    for pixel in image.pixels.as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = hsv(pixel.map(|value| (value / most).clamp(0.0, 1.0)));
        let turned = hue + turn;
        *pixel = rgb([turned - turned.floor(), saturation, value]).map(|value| value * most);
    }
}

/// Returns hue, saturation and value of red, green and blue, all from 0 to 1.
fn hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let (high, low) = (red.max(green).max(blue), red.min(green).min(blue));
    let range = high - low;
    if range <= 0.0 {
        return [0.0, 0.0, high];
    }
    let sixths = if high == red {
        (green - blue) / range
    } else if high == green {
        2.0 + (blue - red) / range
    } else {
        4.0 + (red - green) / range
    };
    let hue = sixths / 6.0 + 1.0;
    [hue - hue.floor(), range / high, high]
}

/// Returns red, green and blue of hue, saturation and value.
fn rgb([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let sixths = hue * 6.0;
    let along = sixths - sixths.floor();
    let low = value * (1.0 - saturation);
    let falling = value * (1.0 - saturation * along);
    let rising = value * (1.0 - saturation * (1.0 - along));
    match sixths.floor() as usize % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}
