//! Transforms that most pipelines need, as closures for [`Loader::try_map`](crate::Loader::try_map).

use unisono_random::Draws;

use crate::sample::effects::{Effect, say};
use crate::sample::narrow::kept;
use crate::{BoxError, DataError, Field, FieldDType, Fingerprint, Sample, Statistics, Values};

/// The closures that [`Loader::try_map`](crate::Loader::try_map) takes, over a sample and its draws.
///
/// Every such closure is a `Transform`; there is nothing to implement.
pub trait Transform: Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static {}

impl<F: Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static> Transform for F {}

/// Converts a field to elements of another type.
///
/// To f32, a whole number that f32 does not represent exactly, which are some beyond 2^24, is an error. To
/// i32, values are cut towards zero; one that is not a number or does not fit is an error.
pub fn cast(field: &str, to: FieldDType) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let field = sample.field_mut(&name).ok_or_else(|| DataError::field(&name, "no such field"))?;
        let cut = |&value: &f32| match value {
            value if value > -2_147_483_904.0 && value < 2_147_483_648.0 => Ok(value as i32),
            value => Err(DataError::field(&name, format!("{value} does not fit an i32"))),
        };
        match (&field.values, to) {
            (Values::I32(values), FieldDType::F32) => {
                let kept = |&value: &i32| {
                    let lost = || DataError::field(&name, format!("{value} is not held by f32"));
                    kept(f64::from(value)).ok_or_else(lost)
                };
                field.values = Values::F32(values.iter().map(kept).collect::<Result<_, _>>()?);
            }
            (Values::F32(values), FieldDType::I32) => {
                field.values = Values::I32(values.iter().map(cut).collect::<Result<_, _>>()?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Computes x * factor + offset over an f32 field: with a factor of 1/255 from 0..255 to 0..1.
#[doc(alias = "Rescaling")]
pub fn rescale(field: &str, factor: f32, offset: f32) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let values = sample.f32_mut(&name).ok_or_else(|| DataError::field(&name, "no such f32 field"))?;
        values.iter_mut().for_each(|value| *value = *value * factor + offset);
        say(|| scales(&name, "rescale", [factor, offset].map(f64::from)));
        Ok(())
    }
}

/// Computes (x - mean) / deviation over an f32 field, in f64 and rounded once.
///
/// Where the deviation is zero (such as a pixel that is always black) it divides by one. The groups have to
/// be the elements of the field's last axes together: one group for all, one for each place on the last axis,
/// and so on up to one for each element. So it comes before [`channels_first`].
pub fn normalize(
    field: &str,
    statistics: &Statistics,
) -> impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static {
    let name = field.to_owned();
    let Statistics { count, mean, deviation } = statistics.clone();
    let divisors: Vec<f64> = deviation.iter().map(|&value| if value == 0.0 { 1.0 } else { value }).collect();
    move |sample, _| {
        let groups = mean.len();
        let missing = || DataError::field(&name, "no such f32 field");
        let Field { shape, values } = sample.field_mut(&name).ok_or_else(missing)?;
        let values = values.as_f32_mut().ok_or_else(missing)?;
        if groups == 0 || deviation.len() != groups || !values.len().is_multiple_of(groups) {
            let what = format!("{} values cannot use statistics of {groups} groups", values.len());
            return Err(DataError::field(&name, what).into());
        }
        if !are_last_axes(groups, shape) {
            let what = format!(
                "statistics of {groups} groups fit none of the last axes of shape {shape:?}: normalize takes \
                 the statistics of the same field, and comes before channels_first"
            );
            return Err(DataError::field(&name, what).into());
        }
        for row in values.chunks_exact_mut(groups) {
            for ((value, mean), divisor) in row.iter_mut().zip(&mean).zip(&divisors) {
                *value = ((f64::from(*value) - mean) / divisor) as f32;
            }
        }
        say(|| {
            let settings = settings_of("normalize", mean.iter().chain(&divisors).copied());
            let samples = Some(count / (values.len() / groups).max(1) as u64);
            Effect::Scales { field: name.clone(), settings, samples }
        });
        Ok(())
    }
}

/// Returns the effect of a transform that brings a field to another scale by some numbers.
pub(crate) fn scales(field: &str, kind: &str, numbers: impl IntoIterator<Item = f64>) -> Effect {
    let settings = settings_of(kind, numbers);
    Effect::Scales { field: field.to_owned(), settings, samples: None }
}

/// Returns the hash of a transform's kind and numbers.
fn settings_of(kind: &str, numbers: impl IntoIterator<Item = f64>) -> u64 {
    let hash = Fingerprint::new().text(kind);
    numbers.into_iter().fold(hash, |hash, number| hash.word(number.to_bits())).finish()
}

/// Returns whether the last axes of a shape have this many elements together: none of the axes, some, or all.
fn are_last_axes(elements: usize, shape: &[usize]) -> bool {
    let mut size = 1_usize;
    let mut sizes = shape.iter().rev().map(|extent| {
        size = size.saturating_mul(*extent);
        size
    });
    elements == 1 || sizes.any(|size| size == elements)
}

/// Replaces i32 class labels of shape [...] by f32 rows of shape [..., classes]: one at the label, zero
/// elsewhere.
///
/// A label outside 0..classes is an error.
pub fn one_hot(
    field: &str,
    classes: usize,
) -> impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static {
    let name = field.to_owned();
    move |sample, _| {
        let labels = sample.field_mut(&name).ok_or_else(|| DataError::field(&name, "no such field"))?;
        let Values::I32(values) = &labels.values else {
            return Err(DataError::field(&name, "dtype f32, expected i32").into());
        };
        let mut rows = vec![0.0; values.len() * classes];
        for (i, &label) in values.iter().enumerate() {
            match usize::try_from(label) {
                Ok(class) if class < classes => rows[i * classes + class] = 1.0,
                _ => {
                    let what = format!("label {label} is not one of {classes} classes");
                    return Err(DataError::field(&name, what).into());
                }
            }
        }
        let shape: Vec<usize> = labels.shape.iter().copied().chain([classes]).collect();
        *labels = Field::f32(shape, rows);
        Ok(())
    }
}

/// Turns a picture into the layout that convolutions and pools take: `[height, width, channels]` becomes
/// `[channels, height, width]`, and `[height, width]` becomes `[1, height, width]`.
///
/// Sources of pictures, their [`Statistics`] and [`augment`](crate::augment) have the channels last, so this
/// comes after augmentation and [`normalize`].
pub fn channels_first(field: &str) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let field = sample.field_mut(&name).ok_or_else(|| DataError::field(&name, "no such field"))?;
        field.check_length(&name)?;
        let (height, width, channels) = match *field.shape.as_slice() {
            [height, width] => (height, width, 1),
            [height, width, channels] => {
                check_channels_last(&name, &field.shape)?;
                (height, width, channels)
            }
            _ => {
                let what =
                    format!("shape {:?} is not [height, width] or [height, width, channels]", field.shape);
                return Err(DataError::field(&name, what).into());
            }
        };
        match &mut field.values {
            Values::F32(values) => *values = planes(values, channels),
            Values::I32(values) => *values = planes(values, channels),
        }
        field.shape = vec![channels, height, width];
        Ok(())
    }
}

/// Refuses a shape that looks like `[channels, height, width]`: the first axis is 1, 3 or 4, and the other
/// two are above 4 and differ by less than a factor of 2. Feature maps and signals can also begin with such a
/// number. Their last two axes usually differ by more, so they are accepted.
pub(crate) fn check_channels_last(name: &str, shape: &[usize]) -> Result<(), DataError> {
    match *shape {
        [1 | 3 | 4, height, width] if height.min(width) > 4 && height.max(width) / 2 < height.min(width) => {
            let what = format!(
                "shape {shape:?} looks like [channels, height, width], and [height, width, channels] is \
                 expected: channels_first is the last transform of a picture, and comes once"
            );
            Err(DataError::field(name, what))
        }
        _ => Ok(()),
    }
}

/// Returns one plane after the other of values that have the channels last.
fn planes<T: Copy>(values: &[T], channels: usize) -> Vec<T> {
    let plane = |channel: usize| values.iter().skip(channel).step_by(channels).copied();
    (0..channels).flat_map(plane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws() -> Draws {
        Draws::of(0, "map", "test", 0, 0)
    }

    #[test]
    fn normalise_uses_each_groups_statistics() {
        let statistics = Statistics { count: 1, mean: vec![1.0, 10.0], deviation: vec![2.0, 0.0] };
        let mut sample = Sample::new().with("x", Field::f32([2, 2], [3.0, 11.0, -1.0, 10.0]));
        normalize("x", &statistics)(&mut sample, &mut draws()).unwrap();
        assert_eq!(sample.field("x"), Some(&Field::f32([2, 2], [1.0, 1.0, -1.0, 0.0])));

        let mut odd = Sample::new().with("x", Field::f32([3], [0.0; 3]));
        let error = normalize("x", &statistics)(&mut odd, &mut draws()).unwrap_err();
        assert_eq!(error.to_string(), "field 'x': 3 values cannot use statistics of 2 groups");
        assert!(normalize("z", &statistics)(&mut odd, &mut draws()).is_err());
    }

    #[test]
    fn groups_that_divide_by_chance_are_refused() {
        let normalized = |groups: usize, shape: &[usize]| {
            let statistics = Statistics { count: 1, mean: vec![1.0; groups], deviation: vec![2.0; groups] };
            let field = Field::f32(shape, vec![0.5; shape.iter().product()]);
            normalize("x", &statistics)(&mut Sample::new().with("x", field), &mut draws())
        };
        for groups in [1, 3, 12, 60] {
            normalized(groups, &[5, 4, 3]).unwrap();
        }
        normalized(1, &[]).unwrap();
        for (groups, shape) in [(3, &[3, 5, 4][..]), (5, &[5, 4, 3]), (3, &[6]), (2, &[4])] {
            let error = normalized(groups, shape).unwrap_err().to_string();
            let expected = format!(
                "field 'x': statistics of {groups} groups fit none of the last axes of shape {shape:?}"
            );
            assert!(error.starts_with(&expected) && error.contains("channels_first"), "{error}");
        }
    }

    #[test]
    fn casts_and_scales() {
        let mut sample = Sample::new().with("x", Field::f32([3], [-1.9, 2.5, 2_147_483_520.0]));
        cast("x", FieldDType::I32)(&mut sample, &mut draws()).unwrap();
        assert_eq!(sample.field("x"), Some(&Field::i32([3], [-1, 2, 2_147_483_520])));
        cast("x", FieldDType::F32)(&mut sample, &mut draws()).unwrap();
        rescale("x", 2.0, 1.0)(&mut sample, &mut draws()).unwrap();
        assert_eq!(sample.f32_mut("x").unwrap()[..2], [-1.0, 5.0]);
        for (value, text) in [(f32::NAN, "NaN"), (2_147_483_648.0, "2147483600"), (f32::NEG_INFINITY, "-inf")]
        {
            let mut sample = Sample::new().with("x", Field::f32([1], [value]));
            let error = cast("x", FieldDType::I32)(&mut sample, &mut draws()).unwrap_err();
            assert_eq!(error.to_string(), format!("field 'x': {text} does not fit an i32"));
        }
    }

    #[test]
    fn channels_come_first() {
        let mut sample = Sample::new()
            .with("x", Field::f32([2, 3, 2], (0..12).map(|i| i as f32).collect::<Vec<_>>()))
            .with("mask", Field::i32([2, 3], [5, 4, 3, 2, 1, 0]));
        channels_first("x")(&mut sample, &mut draws()).unwrap();
        channels_first("mask")(&mut sample, &mut draws()).unwrap();
        let planes = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0];
        assert_eq!(sample.field("x"), Some(&Field::f32([2, 2, 3], planes)));
        assert_eq!(sample.field("mask"), Some(&Field::i32([1, 2, 3], [5, 4, 3, 2, 1, 0])));
        let mut row = Sample::new().with("x", Field::f32([3], [0.0; 3])).with("e", Field::f32([0, 3, 0], []));
        let error = channels_first("x")(&mut row, &mut draws()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "field 'x': shape [3] is not [height, width] or [height, width, channels]"
        );
        assert_eq!(
            channels_first("z")(&mut row, &mut draws()).unwrap_err().to_string(),
            "field 'z': no such field"
        );
        channels_first("e")(&mut row, &mut draws()).unwrap();
        assert_eq!(row.field("e"), Some(&Field::f32([0, 0, 3], [])));
    }

    #[test]
    fn channels_that_come_first_already_are_refused() {
        let mut sample = Sample::new().with("x", Field::f32([6, 8, 3], [0.5; 144]));
        channels_first("x")(&mut sample, &mut draws()).unwrap();
        let error = channels_first("x")(&mut sample, &mut draws()).unwrap_err().to_string();
        assert!(
            error.starts_with("field 'x': shape [3, 6, 8] looks like [channels, height, width]"),
            "{error}"
        );
        for shape in [[1, 28, 28], [4, 5, 9], [3, 480, 640]] {
            assert!(check_channels_last("x", &shape).is_err(), "{shape:?}");
        }
        // Small pictures, patches with many channels, strips, and signals of a height of 1.
        for shape in [[3, 5, 3], [3, 3, 200], [4, 4, 16], [1, 90, 3], [1, 1000, 64], [2, 9, 9], [3, 5, 10]] {
            assert!(check_channels_last("x", &shape).is_ok(), "{shape:?}");
        }
    }

    #[test]
    fn one_hot_checks_its_labels() {
        let mut sample = Sample::new().with("y", Field::i32([], [2]));
        one_hot("y", 3)(&mut sample, &mut draws()).unwrap();
        assert_eq!(sample.field("y"), Some(&Field::f32([3], [0.0, 0.0, 1.0])));
        for label in [-1, 3, i32::MAX] {
            let mut sample = Sample::new().with("y", Field::i32([], [label]));
            let error = one_hot("y", 3)(&mut sample, &mut draws()).unwrap_err();
            assert_eq!(error.to_string(), format!("field 'y': label {label} is not one of 3 classes"));
        }
    }
}
