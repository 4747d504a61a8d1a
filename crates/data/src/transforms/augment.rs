//! Image augmentation: transforms for [`Loader::try_map`](crate::Loader::try_map), and [`mixup`] for
//! [`Loader::map_batch`](crate::Loader::map_batch).
//!
//! Images are f32 fields of shape [height, width, channels] or [height, width], of any value range. Each
//! transform draws from its sample's own [`Draws`], always the same number of 32-bit words unless its
//! documentation says otherwise. It computes with `+ - * /`, `sqrt` and the `libm` crate alone, so its bits
//! are the same on every platform.
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

/// An image being changed. Its `pixels` always fill its extents.
struct Image {
    height: usize,
    width: usize,
    channels: usize,
    pixels: Vec<f32>,
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
        Image { height, width, channels: self.channels, pixels }
    }
}

/// Returns a transform of one image field.
fn on_image(
    field: &str,
    change: impl Fn(&mut Image, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, draws: &mut Draws| {
        let wrong = |what: String| DataError::field(&name, what);
        let field = sample.field_mut(&name).ok_or_else(|| wrong("no such field".into()))?;
        field.check_length(&name)?;
        let (height, width, channels) = match *field.shape.as_slice() {
            [height, width] => (height, width, 1),
            [height, width, channels] => (height, width, channels),
            _ => return Err(wrong(format!("shape {:?} is not an image's", field.shape)).into()),
        };
        let Values::F32(values) = &mut field.values else {
            return Err(wrong("dtype i32, expected f32".into()).into());
        };
        if values.is_empty() {
            return Err(wrong(format!("shape {:?} is empty", field.shape)).into());
        }
        let mut image = Image { height, width, channels, pixels: std::mem::take(values) };
        change(&mut image, draws)?;
        *values = image.pixels;
        field.shape[0] = image.height;
        field.shape[1] = image.width;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
