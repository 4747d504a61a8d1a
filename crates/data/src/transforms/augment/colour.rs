//! Brightness, contrast and saturation. They do not clamp values, whose range is the caller's: see [`clamp`].

use super::{check_bounds, check_most, on_image};
use crate::Transform;
use crate::transforms::standard::check_channels_last;

/// Luminance of linear red, green and blue (Rec. 601).
const LUMA: [f32; 3] = [0.299, 0.587, 0.114];

/// Returns the luminance of a pixel.
pub(super) fn grey(pixel: &[f32]) -> f32 {
    match *pixel {
        [red, green, blue, ..] => red * LUMA[0] + green * LUMA[1] + blue * LUMA[2],
        [grey, ..] => grey,
        [] => 0.0,
    }
}

/// Adds a value from -`most` to `most` to all pixels. It draws one word.
pub fn brightness(field: &str, most: f32) -> impl Transform {
    on_image(field, move |image, draws| {
        check_most("brightness", most)?;
        let add = draws.range(-most, most);
        image.pixels.iter_mut().for_each(|value| *value += add);
        Ok(())
    })
}

/// Multiplies each channel's distance from its mean over the image by a factor from `low` to `high`. It draws
/// one word.
pub fn contrast(field: &str, low: f32, high: f32) -> impl Transform {
    let name = field.to_owned();
    on_image(field, move |image, draws| {
        check_channels_last(&name, &[image.height, image.width, image.channels])?;
        check_bounds("contrast", low, high)?;
        let factor = draws.range(low, high);
        let channels = image.channels;
        for channel in 0..channels {
            let values = image.pixels.iter().skip(channel).step_by(channels);
            let mean =
                values.map(|&value| f64::from(value)).sum::<f64>() / (image.height * image.width) as f64;
            let mean = mean as f32;
            for value in image.pixels.iter_mut().skip(channel).step_by(channels) {
                *value = mean + (*value - mean) * factor;
            }
        }
        Ok(())
    })
}

/// Multiplies each pixel's distance from its luminance by a factor from `low` to `high`. The image must have
/// three channels. It draws one word.
pub fn saturation(field: &str, low: f32, high: f32) -> impl Transform {
    on_image(field, move |image, draws| {
        if image.channels != 3 {
            return Err(format!("saturation needs 3 channels, not {}", image.channels).into());
        }
        check_bounds("saturation", low, high)?;
        let factor = draws.range(low, high);
        for pixel in image.pixels.chunks_exact_mut(3) {
            let grey = grey(pixel);
            pixel.iter_mut().for_each(|value| *value = grey + (*value - grey) * factor);
        }
        Ok(())
    })
}

/// Sets values below `low` to `low`, and those above `high` to `high`. It draws nothing.
pub fn clamp(field: &str, low: f32, high: f32) -> impl Transform {
    on_image(field, move |image, _| {
        if low.partial_cmp(&high).is_none_or(std::cmp::Ordering::is_gt) {
            return Err(format!("no value lies within {low} and {high}").into());
        }
        image.pixels.iter_mut().for_each(|value| *value = value.clamp(low, high));
        Ok(())
    })
}
