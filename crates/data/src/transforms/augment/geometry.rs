//! Transforms that move whole pixels: crops, flips, cutout.

use super::{Fields, check_probability, moved_aligned, moved_images, on_aligned};
use crate::{DataError, Transform};

/// Crops to [height, width] at a uniform place of the image with `padding` zeros on every side. It draws two
/// words.
pub fn random_crop(fields: impl Into<Fields>, size: [usize; 2], padding: usize) -> impl Transform {
    moved_aligned(fields, move |image, draws| {
        let room = [image.height + 2 * padding, image.width + 2 * padding];
        let [top, left] = [0, 1].map(|axis| {
            let places = room[axis].checked_sub(size[axis]).map_or(0, |room| room + 1);
            draws.below(u32::try_from(places).unwrap_or(u32::MAX)) as usize
        });
        fits(size, room)?;
        let mut pixels = vec![0.0; size[0] * size[1] * image.channels];
        let channels = image.channels;
        // The columns of the crop that show the image.
        let (first, end) = shown(left, size[1], padding, image.width);
        for y in 0..size[0] {
            let Some(from) = (top + y).checked_sub(padding).filter(|&from| from < image.height) else {
                continue;
            };
            if first < end {
                let to = (y * size[1] + first) * channels;
                let from = (from * image.width + left + first - padding) * channels;
                let count = (end - first) * channels;
                pixels[to..to + count].copy_from_slice(&image.pixels[from..from + count]);
            }
        }
        *image = image.with(size[0], size[1], pixels);
        Ok(())
    })
}

/// Returns, of a crop's columns from `left` of the padded image, the first that shows the image and the first
/// after those that do.
fn shown(left: usize, size: usize, padding: usize, width: usize) -> (usize, usize) {
    (padding.saturating_sub(left), (padding + width).saturating_sub(left).min(size))
}

/// Crops to [height, width] in the middle. It draws nothing.
#[doc(alias = "CenterCrop")]
pub fn center_crop(fields: impl Into<Fields>, size: [usize; 2]) -> impl Transform {
    on_aligned(fields, move |image, _| {
        fits(size, [image.height, image.width])?;
        *image = image.cut([(image.height - size[0]) / 2, (image.width - size[1]) / 2], size);
        Ok(())
    })
}

fn fits(size: [usize; 2], room: [usize; 2]) -> Result<(), DataError> {
    if size[0] == 0 || size[1] == 0 || size[0] > room[0] || size[1] > room[1] {
        return Err(DataError::other(format!("a crop of {size:?} from {room:?}")));
    }
    Ok(())
}

/// Exchanges left and right with a probability. It draws one word.
#[doc(alias = "RandomHorizontalFlip")]
pub fn flip_horizontal(fields: impl Into<Fields>, probability: f32) -> impl Transform {
    moved_images(fields, move |image, draws| {
        check_probability("flip_horizontal", probability)?;
        if draws.chance(probability) {
            for row in image.pixels.chunks_exact_mut(image.width * image.channels) {
                match image.channels {
                    1 => row.reverse(),
                    3 => row.as_chunks_mut::<3>().0.reverse(),
                    channels => {
                        // The whole row is reversed, and then each pixel's channels back again.
                        row.reverse();
                        row.chunks_exact_mut(channels).for_each(<[f32]>::reverse);
                    }
                }
            }
        }
        Ok(())
    })
}

/// Exchanges top and bottom with a probability. It draws one word.
#[doc(alias = "RandomVerticalFlip")]
pub fn flip_vertical(fields: impl Into<Fields>, probability: f32) -> impl Transform {
    moved_images(fields, move |image, draws| {
        check_probability("flip_vertical", probability)?;
        if draws.chance(probability) {
            let row = image.width * image.channels;
            for y in 0..image.height / 2 {
                let (top, bottom) = image.pixels.split_at_mut((image.height - 1 - y) * row);
                top[y * row..][..row].swap_with_slice(&mut bottom[..row]);
            }
        }
        Ok(())
    })
}

/// Sets a square of `side` pixels around a uniform pixel to a value. What reaches beyond the image is cut
/// off. It draws two words.
#[doc(alias = "RandomErasing")]
pub fn cutout(fields: impl Into<Fields>, side: usize, value: f32) -> impl Transform {
    on_aligned(fields, move |image, draws| {
        let value = image.value(value)?;
        let range = |centre: u32, extent: usize| {
            let start = (centre as usize).saturating_sub(side / 2);
            // A square of an odd side reaches one further to the end.
            start..(centre as usize + side.div_ceil(2)).min(extent)
        };
        let rows = range(draws.below(image.height as u32), image.height);
        let columns = range(draws.below(image.width as u32), image.width);
        for y in rows {
            let row = y * image.width;
            image.pixels[(row + columns.start) * image.channels..(row + columns.end) * image.channels]
                .fill(value);
        }
        Ok(())
    })
}
