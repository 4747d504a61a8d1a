//! Resizing: bilinear interpolation, of a whole image or of a random crop.

use super::{Fields, Image, moved_aligned, on_images};
use crate::{DataError, Transform};

/// Resizes to [height, width], bilinearly between pixels' centres, without smoothing when it shrinks. It
/// draws nothing. The labels of an i32 field, such as a mask, are those of the nearest pixels.
pub fn resize(fields: impl Into<Fields>, size: [usize; 2]) -> impl Transform {
    on_images(fields, move |image, _| {
        positive(size)?;
        *image = part_of(image, [0, 0], [image.height, image.width], size);
        Ok(())
    })
}

/// Resizes a random part of the image to [height, width]: the usual training crop of image classifiers.
///
/// The part covers a uniform share of the area within `area` (such as 0.08 to 1.0), with a ratio of width to
/// height uniform in its logarithm within `ratio` (such as 0.75 to 4/3), at a uniform place. After ten tries
/// that do not fit it is the largest part in the middle with a ratio within the bounds. It draws four words a
/// try. The labels of an i32 field, such as a mask, are those of the nearest pixels.
#[doc(alias = "RandomResizedCrop")]
pub fn resized_crop(
    fields: impl Into<Fields>,
    size: [usize; 2],
    area: [f32; 2],
    ratio: [f32; 2],
) -> impl Transform {
    let bounds = ratio.map(|ratio| libm::log(f64::from(ratio)) as f32);
    moved_aligned(fields, move |image, draws| {
        positive(size)?;
        let ordered = |[low, high]: [f32; 2]| 0.0 < low && low <= high;
        if !(ordered(area) && ordered(ratio) && area[1] <= 1.0) {
            let what = "an area is a share from 0 to 1, and the lower bound comes first";
            return Err(
                format!("resized_crop of areas within {area:?} and ratios within {ratio:?}: {what}").into()
            );
        }
        let (height, width) = (image.height as f64, image.width as f64);
        let mut part = None;
        for _ in 0..10 {
            let share = f64::from(draws.range(area[0], area[1])) * height * width;
            let aspect = libm::exp(f64::from(draws.range(bounds[0], bounds[1])));
            let cut = [(share / aspect).sqrt().round() as usize, (share * aspect).sqrt().round() as usize];
            let places = [image.height + 1, image.width + 1].map(|extent| extent as u32);
            let place =
                [0, 1].map(|axis| draws.below(places[axis].saturating_sub(cut[axis] as u32)) as usize);
            if cut.iter().all(|&extent| extent > 0) && cut[0] <= image.height && cut[1] <= image.width {
                part = Some((place, cut));
                break;
            }
        }
        let (place, cut) = part.unwrap_or_else(|| {
            let aspect = (width / height).clamp(f64::from(ratio[0]), f64::from(ratio[1]));
            let cut = if width / height > aspect {
                [image.height, ((height * aspect).round() as usize).clamp(1, image.width)]
            } else {
                [((width / aspect).round() as usize).clamp(1, image.height), image.width]
            };
            ([(image.height - cut[0]) / 2, (image.width - cut[1]) / 2], cut)
        });
        *image = part_of(image, place, cut, size);
        Ok(())
    })
}

pub(super) fn positive(size: [usize; 2]) -> Result<(), DataError> {
    if size.contains(&0) { Err(DataError::other(format!("a size of {size:?}"))) } else { Ok(()) }
}

/// Resizes the part of `cut` pixels at `place`: colours bilinearly, labels by the nearest pixel.
pub(super) fn part_of(image: &Image, place: [usize; 2], cut: [usize; 2], size: [usize; 2]) -> Image {
    if !image.labels {
        let pixels = resize_part(&image.pixels, [image.width, image.channels], place, cut, size);
        return image.with(size[0], size[1], pixels);
    }
    let [rows, columns] = [0, 1].map(|axis| {
        let scale = cut[axis] as f64 / size[axis] as f64;
        let nearest = move |at: usize| (((at as f64 + 0.5) * scale) as usize).min(cut[axis] - 1);
        (0..size[axis]).map(nearest).map(|at| place[axis] + at).collect::<Vec<usize>>()
    });
    let pixel = |&y: &usize| columns.iter().flat_map(move |&x| image.at(y, x).iter().copied());
    let pixels = rows.iter().flat_map(pixel).collect();
    image.with(size[0], size[1], pixels)
}

/// Returns pixels of `[height, width, channels]` resized to another height and width.
#[cfg(feature = "pictures")]
pub(crate) fn resize_pixels(
    pixels: &[f32],
    [height, width, channels]: [usize; 3],
    size: [usize; 2],
) -> Vec<f32> {
    resize_part(pixels, [width, channels], [0, 0], [height, width], size)
}

/// Resizes the part of `cut` pixels at `place`.
fn resize_part(
    pixels: &[f32],
    [width, channels]: [usize; 2],
    place: [usize; 2],
    cut: [usize; 2],
    size: [usize; 2],
) -> Vec<f32> {
    let [rows, columns] = [0, 1].map(|axis| taps(place[axis], cut[axis], size[axis]));
    let row = |y: usize| &pixels[y * width * channels..(y + 1) * width * channels];
    let mut out = Vec::with_capacity(size[0] * size[1] * channels);
    for &(y0, y1, v) in &rows {
        match channels {
            1 => mix_row::<1>(row(y0), row(y1), v, &columns, &mut out),
            3 => mix_row::<3>(row(y0), row(y1), v, &columns, &mut out),
            _ => {
                let value = |x: usize, c: usize| mix(row(y0)[x * channels + c], row(y1)[x * channels + c], v);
                for &(x0, x1, u) in &columns {
                    out.extend((0..channels).map(|c| mix(value(x0, c), value(x1, c), u)));
                }
            }
        }
    }
    out
}

/// Appends one row of the result. The number of channels is known to the compiler.
fn mix_row<const C: usize>(above: &[f32], below: &[f32], v: f32, columns: &[Tap], out: &mut Vec<f32>) {
    let (above, below) = (above.as_chunks::<C>().0, below.as_chunks::<C>().0);
    for &(x0, x1, u) in columns {
        let (a0, b0, a1, b1) = (&above[x0], &below[x0], &above[x1], &below[x1]);
        let pixel: [f32; C] = std::array::from_fn(|c| mix(mix(a0[c], b0[c], v), mix(a1[c], b1[c], v), u));
        out.extend_from_slice(&pixel);
    }
}

/// Returns a + (b - a) t.
pub(super) fn mix(a: f32, b: f32, t: f32) -> f32 {
    a + (b - a) * t
}

/// Two places between which another lies, and how far it is from the first to the second, from 0 to 1.
type Tap = (usize, usize, f32);

/// Returns, for each of `to` places, the two of the `from` places from `first` on between which it lies, and
/// how far along.
fn taps(first: usize, from: usize, to: usize) -> Vec<Tap> {
    let scale = from as f64 / to as f64;
    let tap = |i: usize| {
        let place = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
        let low = place as usize;
        (first + low, first + (low + 1).min(from - 1), (place - low as f64) as f32)
    };
    (0..to).map(tap).collect()
}
