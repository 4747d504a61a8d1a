//! Random erasing: a rectangle of a random size is overwritten.

use super::{Fields, check_probability, on_aligned};
use crate::Transform;

/// Sets a random rectangle to a value, with a probability (Zhong et al., 2020), as torchvision's
/// `RandomErasing` does.
///
/// The rectangle covers a uniform share of the area within `area` (such as 0.02 to 0.33), with a ratio of
/// height to width uniform in its logarithm within `ratio` (such as 0.3 to 3.3), at a uniform place. After
/// ten tries that do not fit, nothing is erased. It draws one word, and four a try if it erases.
/// [`cutout`](super::cutout) erases a square of one size.
#[doc(alias = "RandomErasing")]
pub fn random_erasing(
    fields: impl Into<Fields>,
    probability: f32,
    area: [f32; 2],
    ratio: [f32; 2],
    value: f32,
) -> impl Transform {
    let bounds = ratio.map(|ratio| libm::log(f64::from(ratio)) as f32);
    on_aligned(fields, move |image, draws| {
        check_probability("random_erasing", probability)?;
        let ordered = |[low, high]: [f32; 2]| 0.0 < low && low <= high;
        if !(ordered(area) && ordered(ratio) && area[1] <= 1.0 && ratio[1].is_finite()) {
            return Err(format!("areas within {area:?} and ratios within {ratio:?}").into());
        }
        let value = image.value(value)?;
        if !draws.chance(probability) {
            return Ok(());
        }
        let extents = [image.height, image.width];
        for _ in 0..10 {
            let share = f64::from(draws.range(area[0], area[1])) * (image.height * image.width) as f64;
            let aspect = libm::exp(f64::from(draws.range(bounds[0], bounds[1])));
            let cut = [(share * aspect).sqrt().round() as usize, (share / aspect).sqrt().round() as usize];
            let room = [0, 1].map(|axis| (extents[axis] + 1).saturating_sub(cut[axis]));
            let [top, left] = room.map(|room| draws.below(room as u32) as usize);
            if cut.contains(&0) || cut[0] >= extents[0] || cut[1] >= extents[1] {
                continue;
            }
            for y in top..top + cut[0] {
                let start = (y * image.width + left) * image.channels;
                image.pixels[start..start + cut[1] * image.channels].fill(value);
            }
            break;
        }
        Ok(())
    })
}
