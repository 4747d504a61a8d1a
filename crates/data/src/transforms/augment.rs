//! Augmentation of pictures and sound: transforms for [`Loader::try_map`](crate::Loader::try_map), and
//! [`mixup`] and [`cutmix`] for [`Loader::map_batch`](crate::Loader::map_batch).
//!
//! Images are f32 fields of shape [height, width, channels] or [height, width], of any value range. Each
//! transform draws from its sample's own [`Draws`], always the same number of 32-bit words unless its
//! documentation says otherwise. It computes with `+ - * /`, `sqrt` and the `libm` crate alone, so its bits
//! are the same on every platform.
//!
//! A transform that moves pixels takes one field or several, such as a picture and its mask, and draws once
//! for all of them: [`flip_horizontal`]`(["x", "mask"], 0.5)`. Two stages of one field each would draw apart.
//! Fields of i32, such as masks of classes, stay integers: they are resampled by the nearest pixel.
//!
//! ```
//! use unisono_data::{Loader, Memory, Values, augment};
//!
//! let pictures = Memory::new("x", [8, 8, 3], Values::F32(vec![0.5; 4 * 8 * 8 * 3]))?;
//! let both = pictures.with("mask", [8, 8], Values::I32(vec![1; 4 * 8 * 8]))?;
//! let loader = Loader::new(both)
//!     .try_map("flip", augment::flip_horizontal(["x", "mask"], 0.5))
//!     .try_map("turn", augment::rotation(["x", "mask"], 15.0))
//!     .try_map("brightness", augment::brightness("x", 0.2));
//! assert_eq!(loader.epoch(0)?.next().unwrap()?.field("mask").unwrap().shape, [4, 8, 8]);
//! # Ok::<(), unisono_data::DataError>(())
//! ```
//!
//! Layers take [channels, height, width], so [`channels_first`](crate::channels_first) comes after all of
//! these.
//!
//! ```
//! use unisono_data::{Loader, Memory, augment, channels_first};
//!
//! let images = Memory::labelled(vec![0.5; 8 * 32 * 32 * 3], [32, 32, 3], vec![0; 8])?;
//! let loader = Loader::new(images)
//!     .shuffle(42)
//!     .try_map("crop", augment::random_crop("x", [32, 32], 4))
//!     .try_map("flip", augment::flip_horizontal("x", 0.5))
//!     .try_map("turn", augment::rotation("x", 15.0))
//!     .try_map("brightness", augment::brightness("x", 0.2))
//!     .try_map("cutout", augment::cutout("x", 8, 0.0))
//!     .try_map("channels_first", channels_first("x"));
//! assert_eq!(loader.epoch(0)?.next().unwrap()?.field("x").unwrap().shape, [8, 3, 32, 32]);
//! # Ok::<(), unisono_data::DataError>(())
//! ```

mod affine;
mod audio;
mod colour;
mod cutmix;
mod erasing;
mod geometry;
mod jitter;
mod mixup;
mod rand_augment;
mod resample;
mod smooth;

pub use affine::{Affine, Fill, rotation, shear, shift, zoom};
pub use audio::{gain, noise, spec_augment, time_shift};
pub use colour::{brightness, clamp, contrast, saturation};
pub use cutmix::cutmix;
pub use erasing::random_erasing;
pub use geometry::{center_crop, cutout, flip_horizontal, flip_vertical, random_crop};
pub use jitter::ColorJitter;
pub use mixup::mixup;
pub use rand_augment::RandAugment;
pub use resample::{resize, resized_crop};
pub use smooth::resize_smooth;

#[cfg(feature = "pictures")]
pub(crate) use resample::resize_pixels;

use unisono_random::Draws;

use crate::sample::effects::{Effect, say};
use crate::transforms::standard::check_channels_last;
use crate::{BoxError, DataError, Sample, Transform, Values};

/// An image being changed. Its `pixels` always fill its extents.
struct Image {
    height: usize,
    width: usize,
    channels: usize,
    /// The values. Those of labels are the bits of their i32.
    pixels: Vec<f32>,
    /// Whether the values are labels, which are moved and never mixed.
    labels: bool,
}

impl Image {
    /// Returns the channels of a pixel.
    fn at(&self, y: usize, x: usize) -> &[f32] {
        let start = (y * self.width + x) * self.channels;
        &self.pixels[start..start + self.channels]
    }

    /// Returns the rectangle of a size whose first pixel is at (`top`, `left`). It must lie within the image.
    fn cut(&self, [top, left]: [usize; 2], [height, width]: [usize; 2]) -> Image {
        let mut pixels = Vec::with_capacity(height * width * self.channels);
        for y in top..top + height {
            let start = (y * self.width + left) * self.channels;
            pixels.extend_from_slice(&self.pixels[start..start + width * self.channels]);
        }
        self.with(height, width, pixels)
    }

    /// Returns an image of the same kind with these pixels.
    fn with(&self, height: usize, width: usize, pixels: Vec<f32>) -> Image {
        Image { height, width, channels: self.channels, pixels, labels: self.labels }
    }

    /// Returns a value as the pixels hold it.
    fn value(&self, value: f32) -> Result<f32, BoxError> {
        if !self.labels {
            return Ok(value);
        }
        let label = value as i32;
        let is_label = label as f32 == value;
        is_label.then(|| f32::from_bits(label as u32)).ok_or_else(|| format!("{value} is no label").into())
    }

    /// Takes the pixels of a field, which are put back by [`Image::give`].
    fn take(sample: &mut Sample, name: &str) -> Result<Image, DataError> {
        let (height, width, channels) = extents(sample, name)?;
        let field = sample.field_mut(name).ok_or_else(|| DataError::field(name, "no such field"))?;
        let (pixels, labels) = match &mut field.values {
            Values::F32(values) => (std::mem::take(values), false),
            Values::I32(values) => (values.iter().map(|&label| f32::from_bits(label as u32)).collect(), true),
        };
        Ok(Image { height, width, channels, pixels, labels })
    }

    /// Puts the pixels into their field.
    fn give(self, sample: &mut Sample, name: &str) {
        let Some(field) = sample.field_mut(name) else { return };
        (field.shape[0], field.shape[1]) = (self.height, self.width);
        field.values = if self.labels {
            Values::I32(self.pixels.iter().map(|label| label.to_bits() as i32).collect())
        } else {
            Values::F32(self.pixels)
        };
    }
}

/// Returns height, width and channels of a field that is an image.
fn extents(sample: &mut Sample, name: &str) -> Result<(usize, usize, usize), DataError> {
    let wrong = |what: String| DataError::field(name, what);
    let field = sample.field_mut(name).ok_or_else(|| wrong("no such field".into()))?;
    field.check_length(name)?;
    if field.values.is_empty() {
        return Err(wrong(format!("shape {:?} is empty", field.shape)));
    }
    match *field.shape.as_slice() {
        [height, width] => Ok((height, width, 1)),
        [height, width, channels] => Ok((height, width, channels)),
        _ => Err(wrong(format!("shape {:?} is not an image's", field.shape))),
    }
}

/// The names of the fields that a transform changes alike: one name, or an array, a slice or a list of
/// several.
#[derive(Clone, Debug)]
pub struct Fields(Vec<String>);

macro_rules! one_field {
    ($($name:ty),*) => {$(
        impl From<$name> for Fields {
            fn from(name: $name) -> Self {
                Self(vec![name.into()])
            }
        }
    )*};
}

one_field!(&str, &String, String);

impl<S: Into<String>, const N: usize> From<[S; N]> for Fields {
    fn from(names: [S; N]) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String>> From<Vec<S>> for Fields {
    fn from(names: Vec<S>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl<S: Clone + Into<String>> From<&[S]> for Fields {
    fn from(names: &[S]) -> Self {
        Self(names.iter().cloned().map(Into::into).collect())
    }
}

/// Returns a transform that moves the pixels of these fields, and says so.
fn moving(names: Vec<String>, transform: impl Transform) -> impl Transform {
    move |sample: &mut Sample, draws: &mut Draws| {
        say(|| Effect::Moves(names.clone()));
        transform(sample, draws)
    }
}

/// Returns a transform of pictures as [`on_images`] does, which moves their pixels.
fn moved_images(
    fields: impl Into<Fields>,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let fields = fields.into();
    moving(fields.0.clone(), on_images(fields, change))
}

/// Returns a transform of pictures of one size as [`on_aligned`] does, which moves their pixels.
fn moved_aligned(
    fields: impl Into<Fields>,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let fields = fields.into();
    moving(fields.0.clone(), on_aligned(fields, change))
}

/// Checks a probability that a transform was given.
fn check_probability(of: &str, probability: f32) -> Result<(), BoxError> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(());
    }
    Err(format!("{of} with a probability of {probability}: it has to be from 0 to 1").into())
}

/// Checks the bounds of a number that a transform draws.
fn check_bounds(of: &str, low: f32, high: f32) -> Result<(), BoxError> {
    if low <= high && low.is_finite() && high.is_finite() {
        return Ok(());
    }
    Err(format!("{of} from {low} to {high}: the lower bound comes first").into())
}

/// Checks that a draw from -`most` to `most` can be made.
fn check_most(of: &str, most: f32) -> Result<(), BoxError> {
    if most >= 0.0 && most.is_finite() {
        return Ok(());
    }
    Err(format!("{of} by {most}: the largest change must be finite and at least 0").into())
}

/// Checks that all fields have their channels last. A field with rows of 2 to 5 numbers, next to a wider
/// picture, is taken for boxes or keypoints and refused: it would be moved as if it were pixels.
fn check_pictures(sample: &mut Sample, names: &[String]) -> Result<(), DataError> {
    let extents = names.iter().map(|name| extents(sample, name)).collect::<Result<Vec<_>, _>>()?;
    for (name, &(height, width, channels)) in names.iter().zip(&extents) {
        check_channels_last(name, &[height, width, channels])?;
    }
    let Some(wide) = extents.iter().position(|&(_, width, _)| width > 5) else { return Ok(()) };
    for (name, &(rows, width, _)) in names.iter().zip(&extents) {
        let is_list = sample.field(name).is_some_and(|field| field.shape.len() == 2);
        if is_list && (2..=5).contains(&width) {
            let what = format!(
                "shape [{rows}, {width}] is no picture like field '{}': boxes and keypoints need a transform \
                 of your own (Loader::map) that moves their numbers",
                names[wide]
            );
            return Err(DataError::field(name, what));
        }
    }
    Ok(())
}

/// Returns a transform of several image fields. Each of them gets the same draws.
fn on_images(
    fields: impl Into<Fields>,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let fields = fields.into();
    let names = fields.0.clone();
    let transform = on_each(fields, change);
    move |sample: &mut Sample, draws: &mut Draws| {
        check_pictures(sample, &names)?;
        transform(sample, draws)
    }
}

/// Returns a transform of fields of any layout. Each of them gets the same draws.
fn on_each(
    Fields(names): Fields,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    move |sample: &mut Sample, draws: &mut Draws| {
        let before = draws.clone();
        for name in &names {
            *draws = before.clone();
            let mut image = Image::take(sample, name)?;
            change(&mut image, draws)?;
            image.give(sample, name);
        }
        Ok(())
    }
}

/// Returns a transform of several image fields as [`on_images`] does, for one that depends on the number of
/// pixels, which has to be the same for all fields.
fn on_aligned(
    fields: impl Into<Fields>,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let fields = fields.into();
    let names = fields.0.clone();
    let transform = on_images(fields, change);
    move |sample: &mut Sample, draws: &mut Draws| {
        if let [first, others @ ..] = &names[..] {
            let (height, width, _) = extents(sample, first)?;
            for name in others {
                let (own, wide, _) = extents(sample, name)?;
                if [own, wide] != [height, width] {
                    let what = format!("{own} x {wide} pixels, and field '{first}' has {height} x {width}");
                    return Err(DataError::field(name, what).into());
                }
            }
        }
        transform(sample, draws)
    }
}

/// Returns a transform of one image field of colours. Where the transform does not treat all values alike, it
/// checks the layout itself.
fn on_image(
    field: &str,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let name = field.to_owned();
    let transform = on_each(field.into(), change);
    move |sample: &mut Sample, draws: &mut Draws| {
        if sample.field(&name).is_some_and(|field| field.values.as_i32().is_some()) {
            return Err(DataError::field(&name, "dtype i32, expected f32").into());
        }
        transform(sample, draws)
    }
}

#[cfg(test)]
mod tests;
