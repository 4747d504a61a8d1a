//! Augmentation of sound: waveforms [time] or [time, channels], and spectrograms [time, bands].

use unisono_random::Draws;

use super::check_bounds;
use crate::{BoxError, DataError, Sample, Transform};

/// Shifts a field along its first axis, time, by up to `most` places either way. What leaves at one end comes
/// in at the other. It draws one word.
#[doc(alias = "roll")]
pub fn time_shift(field: &str, most: usize) -> impl Transform {
    on_rows(field, move |values, [times, size], draws| {
        let most = i64::try_from(most).ok().filter(|most| *most < i64::from(u32::MAX / 2));
        let most = most.ok_or("a shift of more than 2^31 places")?;
        let shift = i64::from(draws.below(2 * most as u32 + 1)) - most;
        values.rotate_right(shift.rem_euclid(times as i64) as usize * size);
        Ok(())
    })
}

/// Multiplies a field by a factor from `low` to `high`, such as the loudness of a waveform. It draws one
/// word.
pub fn gain(field: &str, low: f32, high: f32) -> impl Transform {
    on_rows(field, move |values, _, draws| {
        check_bounds("gain", low, high)?;
        let factor = draws.range(low, high);
        values.iter_mut().for_each(|value| *value *= factor);
        Ok(())
    })
}

/// Adds normal noise of a deviation to a field of any shape. It draws one word a value.
#[doc(alias("GaussianNoise", "white_noise"))]
pub fn noise(field: &str, deviation: f32) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, draws: &mut Draws| {
        let values = sample.f32_mut(&name).ok_or_else(|| DataError::field(&name, "no such f32 field"))?;
        values.iter_mut().for_each(|value| *value += deviation * draws.normal());
        Ok(())
    }
}

/// Masks stretches of time and bands of frequency of a spectrogram [time, bands]: SpecAugment (Park et al.,
/// 2019), torchaudio's `TimeMasking` and `FrequencyMasking`.
///
/// `times` and `bands` are each the number of masks, and the most rows or columns of one. Each width is
/// uniform from 0 to the most, and each place uniform. Masked values become `value`: 0 for a spectrogram
/// that was normalised, whose mean that is. It draws two words a mask.
#[doc(alias("SpecAugment", "TimeMasking", "FrequencyMasking"))]
pub fn spec_augment(field: &str, times: [usize; 2], bands: [usize; 2], value: f32) -> impl Transform {
    on_rows(field, move |values, [rows, columns], draws| {
        for _ in 0..times[0] {
            let masked = stretch(rows, times[1], draws);
            values[masked.start * columns..masked.end * columns].fill(value);
        }
        for _ in 0..bands[0] {
            let masked = stretch(columns, bands[1], draws);
            values.chunks_exact_mut(columns).for_each(|row| row[masked.clone()].fill(value));
        }
        Ok(())
    })
}

/// Draws a part of an axis, of a uniform width of at most `most` at a uniform place.
fn stretch(extent: usize, most: usize, draws: &mut Draws) -> std::ops::Range<usize> {
    let below =
        |count: usize, draws: &mut Draws| draws.below(u32::try_from(count).unwrap_or(u32::MAX)) as usize;
    let width = below(most.min(extent) + 1, draws);
    let start = below(extent - width + 1, draws);
    start..start + width
}

/// Returns a transform of an f32 field, given as its values and the extents of its first axis and of the
/// rest.
fn on_rows(
    field: &str,
    change: impl Fn(&mut [f32], [usize; 2], &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, draws: &mut Draws| {
        let wrong = |what: String| DataError::field(&name, what);
        let field = sample.field_mut(&name).ok_or_else(|| wrong("no such field".into()))?;
        field.check_length(&name)?;
        let times = field.shape.first().copied().filter(|_| !field.values.is_empty());
        let times = times.ok_or_else(|| wrong(format!("shape {:?} has no time", field.shape)))?;
        let values = field.values.as_f32_mut().ok_or_else(|| wrong("dtype i32, expected f32".into()))?;
        let size = values.len() / times;
        change(values, [times, size], draws)
    }
}
