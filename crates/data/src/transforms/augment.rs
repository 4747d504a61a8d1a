//! Image augmentation: transforms for [`Loader::try_map`](crate::Loader::try_map), and [`mixup`] for
//! [`Loader::map_batch`](crate::Loader::map_batch).
//!
//! Images are f32 fields of shape [height, width, channels] or [height, width], of any value range. Each
//! transform draws from its sample's own [`Draws`], always the same number of 32-bit words unless its
//! documentation says otherwise. It computes with `+ - * /`, `sqrt` and the `libm` crate alone, so its bits
//! are the same on every platform.
//!
//! A transform that moves pixels takes one field or several: `flip_horizontal(["x", "mask"], 0.5)` draws once
//! and does the same to all of them, which must be of one height and width. Fields of i32 are labels of pixels:
//! they stay whole numbers, and where pixels are resampled they take the nearest one.
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
mod colour;
mod geometry;
mod mixup;
mod resample;
mod smooth;

pub use affine::{Affine, Fill, rotation, shear, shift, zoom};
pub use colour::{brightness, clamp, contrast, saturation};
pub use geometry::{center_crop, cutout, flip_horizontal, flip_vertical, random_crop};
pub use mixup::mixup;
pub use resample::{resize, resized_crop};
pub use smooth::resize_smooth;

#[cfg(feature = "pictures")]
pub(crate) use resample::resize_pixels;

use unisono_random::Draws;

use crate::{BoxError, DataError, Sample, Transform, Values};

/// The names of the fields that a transform changes alike: `"x"`, or `["x", "mask"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields(Vec<String>);

impl From<&str> for Fields {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

impl From<&String> for Fields {
    fn from(name: &String) -> Self {
        Self(vec![name.clone()])
    }
}

impl<const N: usize> From<[&str; N]> for Fields {
    fn from(names: [&str; N]) -> Self {
        Self(names.map(str::to_owned).to_vec())
    }
}

impl From<&[&str]> for Fields {
    fn from(names: &[&str]) -> Self {
        Self(names.iter().map(|&name| name.to_owned()).collect())
    }
}

impl From<Vec<String>> for Fields {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

/// An image being changed. Its `pixels` always fill its extents.
struct Image {
    height: usize,
    width: usize,
    channels: usize,
    pixels: Vec<f32>,
    /// Whether the pixels are labels, between which nothing lies.
    labels: bool,
}

impl Image {
    /// Returns an image without pixels of as many channels, of the same kind.
    fn like(&self) -> Image {
        Image { height: 0, width: 0, channels: self.channels, pixels: Vec::new(), labels: self.labels }
    }

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
        Image { height, width, pixels, ..self.like() }
    }
}

/// Returns a transform of the values of one image field.
fn on_image(
    field: &str,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, draws: &mut Draws| changed(sample, &name, draws, false, &change)
}

/// Returns a transform of the places of pixels, which does the same to several fields.
fn on_images(
    fields: impl Into<Fields>,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let Fields(names) = fields.into();
    move |sample: &mut Sample, draws: &mut Draws| {
        let Some((first, others)) = names.split_first() else { return Err("it names no field".into()) };
        let size =
            |name: &String| sample.field(name).map(|field| field.shape.get(..2).unwrap_or_default().to_vec());
        if let Some(other) = others.iter().find(|other| size(other) != size(first)) {
            let what = format!("height and width {:?}, but '{first}' has {:?}", size(other), size(first));
            return Err(DataError::field(other, what).into());
        }
        let before = draws.clone();
        changed(sample, first, draws, true, &change)?;
        others.iter().try_for_each(|other| changed(sample, other, &mut before.clone(), true, &change))
    }
}

/// Changes a field of a sample. `labels`: whether it may be one of labels.
fn changed(
    sample: &mut Sample,
    name: &str,
    draws: &mut Draws,
    labels: bool,
    change: &dyn Fn(&mut Image, &mut Draws) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let wrong = |what: String| DataError::field(name, what);
    let field = sample.field_mut(name).ok_or_else(|| wrong("no such field".into()))?;
    field.check_length(name)?;
    let (height, width, channels) = match *field.shape.as_slice() {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => return Err(wrong(format!("shape {:?} is not an image's", field.shape)).into()),
    };
    let pixels = match &mut field.values {
        Values::F32(values) => std::mem::take(values),
        Values::I32(values) if labels => {
            let large = values.iter().find(|label| label.unsigned_abs() > 1 << 24);
            if let Some(large) = large {
                return Err(wrong(format!("the label {large} is beyond 2^24")).into());
            }
            values.iter().map(|&label| label as f32).collect()
        }
        Values::I32(_) => return Err(wrong("dtype i32, expected f32".into()).into()),
    };
    if pixels.is_empty() {
        return Err(wrong(format!("shape {:?} is empty", field.shape)).into());
    }
    let labels = matches!(field.values, Values::I32(_));
    let mut image = Image { height, width, channels, pixels, labels };
    change(&mut image, draws)?;
    match &mut field.values {
        Values::F32(values) => *values = image.pixels,
        Values::I32(values) => *values = image.pixels.into_iter().map(|label| label.round() as i32).collect(),
    }
    field.shape[0] = image.height;
    field.shape[1] = image.width;
    Ok(())
}

#[cfg(test)]
mod tests;
