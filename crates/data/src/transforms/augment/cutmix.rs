//! CutMix: rectangles of one picture of a batch pasted into another.

use std::ops::Range;

use unisono_random::Draws;

use super::Fields;
use super::mixup::{beta, blend, check_targets, partners, positive_alpha, samples};
use crate::{DataError, Sample, Transform, Values};

/// Pastes into each picture of a batch a rectangle of another one, and blends their targets by the area: a
/// picture that shows 30 % of another has 70 % of its own target (Yun et al., 2019).
///
/// Give it to [`Loader::map_batch`](crate::Loader::map_batch). `pictures` are the stacked fields
/// [samples, channels, height, width], after [`channels_first`](crate::channels_first), or [samples, height,
/// width]; those of one size, such as pictures and masks of i32, get the same rectangles. `targets` are f32,
/// so make labels [`one_hot`](crate::one_hot) first, and use the loss's `probabilities()`. The share of the
/// area that stays is drawn from the symmetric beta distribution of `alpha` for every sample, and the
/// rectangle is cut off at the edges. As with [`mixup`](super::mixup), a sample's bits depend on its batch,
/// and a field "y" has to be among the targets or the pictures. It draws as many words as it needs.
#[doc(alias = "CutMix")]
pub fn cutmix(pictures: impl Into<Fields>, targets: impl Into<Fields>, alpha: f32) -> impl Transform {
    let (Fields(pictures), Fields(targets)) = (pictures.into(), targets.into());
    move |batch: &mut Sample, draws: &mut Draws| {
        positive_alpha("cutmix", alpha)?;
        samples("cutmix", batch)?;
        let Some(first) = pictures.first() else { return Err("cutmix needs a field of pictures".into()) };
        let [count, _, height, width] = extents(batch, first)?;
        let partner = partners(count, draws);
        let mut boxes = Vec::with_capacity(count);
        let mut shares = Vec::with_capacity(count);
        for _ in 0..count {
            let side = f64::from(1.0 - beta(f64::from(alpha), draws)).sqrt();
            let rectangle = [height, width].map(|extent| cut(extent, side, draws));
            let area = rectangle.iter().map(Range::len).product::<usize>();
            shares.push((1.0 - area as f64 / (height * width) as f64) as f32);
            boxes.push(rectangle);
        }
        for name in &pictures {
            let found = extents(batch, name)?;
            if [found[0], found[2], found[3]] != [count, height, width] {
                let what = format!("{found:?}, and field '{first}' has {height} x {width} pixels");
                return Err(DataError::field(name, what).into());
            }
            match batch.field_mut(name).map(|field| &mut field.values) {
                Some(Values::F32(values)) => paste(values, found, &partner, &boxes),
                Some(Values::I32(values)) => paste(values, found, &partner, &boxes),
                None => {}
            }
        }
        targets.iter().try_for_each(|name| blend(batch, name, &partner, &shares))?;
        check_targets("cutmix", batch, &[&pictures[..], &targets[..]].concat())
    }
}

/// Draws the part of an axis that a rectangle covers, around a uniform pixel.
fn cut(extent: usize, share: f64, draws: &mut Draws) -> Range<usize> {
    let side = (extent as f64 * share) as usize;
    let centre = draws.below(u32::try_from(extent).unwrap_or(u32::MAX)) as usize;
    let start = centre as isize - (side / 2) as isize;
    start.max(0) as usize..((start + side as isize).max(0) as usize).min(extent)
}

/// Returns samples, channels, height and width of stacked pictures.
fn extents(batch: &Sample, name: &str) -> Result<[usize; 4], DataError> {
    let field = batch.field(name).ok_or_else(|| DataError::field(name, "no such field"))?;
    field.check_length(name)?;
    match *field.shape.as_slice() {
        _ if field.values.is_empty() => Err(DataError::field(name, "it is empty")),
        [samples, channels, height, width] => Ok([samples, channels, height, width]),
        [samples, height, width] => Ok([samples, 1, height, width]),
        ref shape => {
            let what = format!("shape {shape:?} is not [samples, channels, height, width]");
            Err(DataError::field(name, what))
        }
    }
}

fn paste<T: Copy>(
    values: &mut [T],
    [_, channels, height, width]: [usize; 4],
    partner: &[usize],
    boxes: &[[Range<usize>; 2]],
) {
    let before = values.to_vec();
    let size = channels * height * width;
    for (sample, picture) in values.chunks_exact_mut(size).enumerate() {
        let other = &before[partner[sample] * size..][..size];
        let [rows, columns] = &boxes[sample];
        for channel in 0..channels {
            for row in rows.clone() {
                let start = (channel * height + row) * width;
                let row = start + columns.start..start + columns.end;
                picture[row.clone()].copy_from_slice(&other[row]);
            }
        }
    }
}
