//! Padding of sequences, and masks that tell the padding from the sequence.

use unisono_random::Draws;

use crate::{DataError, Field, Sample, Transform, Values};

/// The field in which [`pad`] notes a sequence's own length, as [`Sequences`](crate::Sequences) does.
pub(crate) const LENGTH: &str = "length";

/// Pads a field at the end of its first axis to a length, and puts the length that it had into the field
/// `length`, an i32.
///
/// With [`Buckets`](crate::Buckets) that cut the field, batches are as long as their bucket needs.
///
/// ```
/// use unisono_data::{Loader, Sequences, mask};
///
/// let texts = Sequences::labelled([vec![5, 6], vec![7, 8, 9]], [0, 1], 0)?;
/// let loader = Loader::new(texts).try_map("mask", mask("mask", 3));
/// let batch = loader.epoch(0)?.next().unwrap()?;
/// assert_eq!(batch.f32("mask")?, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias = "pad_sequence")]
pub fn pad(field: &str, to: usize, fill: f32) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let wrong = |what: String| DataError::field(&name, what);
        let field = sample.field_mut(&name).ok_or_else(|| wrong("no such field".into()))?;
        let Some(length) = field.shape.first().copied() else {
            return Err(wrong("a number has no axis to pad".into()).into());
        };
        if length > to {
            return Err(wrong(format!("a sequence of {length} is longer than {to}")).into());
        }
        let whole = fill as i32;
        if field.values.as_i32().is_some() && f64::from(whole) != f64::from(fill) {
            return Err(wrong(format!("the field is i32, and the fill {fill} is no i32 number")).into());
        }
        field.shape[0] = to;
        let elements = field.shape.iter().product();
        match &mut field.values {
            Values::F32(values) => values.resize(elements, fill),
            Values::I32(values) => values.resize(elements, whole),
        }
        sample.set(LENGTH, Field::i32([], [length as i32]));
        Ok(())
    }
}

/// Adds a field of `to` f32 that is 1 within the sequence and 0 in the padding, by the field `length`.
pub fn mask(name: &str, to: usize) -> impl Transform {
    let name = name.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let length = sample.field(LENGTH).and_then(|field| field.values.as_i32()?.first().copied());
        let length = length.ok_or_else(|| DataError::field(LENGTH, "no such i32 field"))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= to);
        let length = length.ok_or_else(|| DataError::field(LENGTH, format!("it is not in 0..={to}")))?;
        let values: Vec<f32> = (0..to).map(|at| f32::from(u8::from(at < length))).collect();
        sample.set(name.as_str(), Field::f32([to], values));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws() -> Draws {
        Draws::of(0, "test", "", 0, 0)
    }

    #[test]
    fn padding_fills_behind_and_keeps_the_length() {
        let mut sample = Sample::new().with("x", Field::f32([2, 2], [1.0, 2.0, 3.0, 4.0]));
        pad("x", 3, -1.0)(&mut sample, &mut draws()).unwrap();
        mask("is", 4)(&mut sample, &mut draws()).unwrap();
        assert_eq!(sample.field("x"), Some(&Field::f32([3, 2], [1.0, 2.0, 3.0, 4.0, -1.0, -1.0])));
        assert_eq!(sample.field("length"), Some(&Field::i32([], [2])));
        assert_eq!(sample.field("is"), Some(&Field::f32([4], [1.0, 1.0, 0.0, 0.0])));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let mut sample = Sample::new().with("x", Field::i32([3], [1, 2, 3])).with("n", Field::i32([], [3]));
        let error = |run: &dyn Fn(&mut Sample) -> Result<(), crate::BoxError>, sample: &mut Sample| {
            run(sample).unwrap_err().to_string()
        };
        assert!(error(&|s| pad("x", 2, 0.0)(s, &mut draws()), &mut sample).contains("of 3 is longer than 2"));
        assert!(error(&|s| pad("n", 2, 0.0)(s, &mut draws()), &mut sample).contains("no axis"));
        for fill in [0.5, f32::NAN, 3e9] {
            let error = error(&|s| pad("x", 5, fill)(s, &mut draws()), &mut sample);
            assert!(error.contains(&format!("the fill {fill} is no i32 number")), "{error}");
        }
        assert!(error(&|s| mask("mask", 3)(s, &mut draws()), &mut sample).contains("no such i32 field"));
        pad("x", 5, 9.0)(&mut sample, &mut draws()).unwrap();
        assert!(error(&|s| mask("mask", 2)(s, &mut draws()), &mut sample).contains("0..=2"));
    }
}
