//! The element types of arrays in files, and what they become in memory.

use std::fmt::Display;

use crate::sample::narrow::{kept, kept_whole};
use crate::{DataError, FieldDType, Values};

/// The type of an array's elements in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Element {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl Element {
    /// Returns the number of bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns the type of a field of these elements, unless another is asked for: f32 for floating point,
    /// i32 for whole numbers.
    pub const fn dtype(self) -> FieldDType {
        match self {
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => FieldDType::F32,
            _ => FieldDType::I32,
        }
    }

    /// Decodes a whole number of elements.
    ///
    /// Numbers that f32 does not hold are errors, unless `how` says otherwise. To i32 whole numbers must fit,
    /// and floating-point values are refused.
    pub(crate) fn decode(
        self,
        bytes: &[u8],
        big_endian: bool,
        to: FieldDType,
        how: Floats,
    ) -> Result<Values, DataError> {
        Ok(match to {
            FieldDType::F32 if how.scale.is_some() => Values::F32(self.scaled(bytes, big_endian, how)?),
            FieldDType::F32 => Values::F32(self.floats(bytes, big_endian, how)?),
            FieldDType::I32 => Values::I32(self.integers(bytes, big_endian)?),
        })
    }

    /// Decodes to numbers that are scaled in f64.
    fn scaled(self, bytes: &[u8], big: bool, how: Floats) -> Result<Vec<f32>, DataError> {
        match self {
            Self::Bool | Self::U8 => each_kept(bytes, big, how, |[byte]| f64::from(byte)),
            Self::I8 => each_kept(bytes, big, how, |[byte]| f64::from(byte as i8)),
            Self::U16 => each_kept(bytes, big, how, |b| f64::from(u16::from_le_bytes(b))),
            Self::I16 => each_kept(bytes, big, how, |b| f64::from(i16::from_le_bytes(b))),
            Self::U64 => each_kept(bytes, big, how, |b| u64::from_le_bytes(b) as f64),
            Self::I64 => each_kept(bytes, big, how, |b| i64::from_le_bytes(b) as f64),
            Self::F16 => each_kept(bytes, big, how, |b| f64::from(half(u16::from_le_bytes(b)))),
            Self::BF16 => each_kept(bytes, big, how, |b| {
                f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
            }),
            Self::F32 => each_kept(bytes, big, how, |b| f64::from(f32::from_le_bytes(b))),
            Self::U32 | Self::I32 | Self::F64 => self.floats(bytes, big, how),
        }
    }

    fn floats(self, bytes: &[u8], big: bool, how: Floats) -> Result<Vec<f32>, DataError> {
        match self {
            Self::Bool | Self::U8 => each(bytes, big, |[byte]| f32::from(byte)),
            Self::I8 => each(bytes, big, |[byte]| f32::from(byte as i8)),
            Self::U16 => each(bytes, big, |b| f32::from(u16::from_le_bytes(b))),
            Self::I16 => each(bytes, big, |b| f32::from(i16::from_le_bytes(b))),
            Self::U32 => each_kept(bytes, big, how, |b| f64::from(u32::from_le_bytes(b))),
            Self::I32 => each_kept(bytes, big, how, |b| f64::from(i32::from_le_bytes(b))),
            Self::U64 => each_whole(bytes, big, how, |b| u64::from_le_bytes(b).into()),
            Self::I64 => each_whole(bytes, big, how, |b| i64::from_le_bytes(b).into()),
            Self::F16 => each(bytes, big, |b| half(u16::from_le_bytes(b))),
            Self::BF16 => each(bytes, big, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            Self::F32 => each(bytes, big, f32::from_le_bytes),
            Self::F64 => each_kept(bytes, big, how, f64::from_le_bytes),
        }
    }

    fn integers(self, bytes: &[u8], big: bool) -> Result<Vec<i32>, DataError> {
        match self {
            Self::Bool | Self::U8 => each(bytes, big, |[byte]| i32::from(byte)),
            Self::I8 => each(bytes, big, |[byte]| i32::from(byte as i8)),
            Self::U16 => each(bytes, big, |b| i32::from(u16::from_le_bytes(b))),
            Self::I16 => each(bytes, big, |b| i32::from(i16::from_le_bytes(b))),
            Self::I32 => each(bytes, big, i32::from_le_bytes),
            Self::U32 => each_that_fits(bytes, big, u32::from_le_bytes),
            Self::U64 => each_that_fits(bytes, big, u64::from_le_bytes),
            Self::I64 => each_that_fits(bytes, big, i64::from_le_bytes),
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => {
                Err(DataError::other(format!("{self:?} elements cannot be read as i32")))
            }
        }
    }
}

/// Reads every `N` bytes, brought to little-endian order.
fn each<const N: usize, T>(
    bytes: &[u8],
    big_endian: bool,
    read: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, DataError> {
    let chunks = bytes.as_chunks().0;
    let mut values = room(chunks.len())?;
    values.extend(chunks.iter().map(|chunk| read(little(*chunk, big_endian))));
    Ok(values)
}

/// How elements become f32.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Floats {
    /// What is subtracted from a number in f64, and what it is then divided by.
    pub scale: Option<(f64, f64)>,
    /// Whether a number that f32 does not hold is rounded.
    pub rounds: bool,
}

/// Checks that an offset is finite, and that a scale is finite and not 0. The error is the message.
pub(crate) fn check_scale((offset, scale): (f64, f64)) -> Result<(), String> {
    if !offset.is_finite() {
        return Err(format!("the offset is {offset}, but must be finite"));
    }
    if scale == 0.0 || !scale.is_finite() {
        return Err(format!("the scale is {scale}, but must be finite and not 0"));
    }
    Ok(())
}

impl Floats {
    fn of(self, value: f64) -> Option<f32> {
        let scaled = self.scale.map_or(value, |(offset, scale)| (value - offset) / scale);
        kept(scaled).or(self.rounds.then_some(scaled as f32))
    }
}

/// Returns the error of an element that f32 does not hold.
fn not_kept(at: usize, value: impl Display) -> DataError {
    let advice = "Array::scaled, Array::rounded, or Array::cast to i32 says what is meant";
    DataError::other(format!("element {at} is {value}, which f32 does not hold: {advice}"))
}

/// Reads every `N` bytes as a number that f32 has to hold.
fn each_kept<const N: usize>(
    bytes: &[u8],
    big_endian: bool,
    how: Floats,
    read: impl Fn([u8; N]) -> f64,
) -> Result<Vec<f32>, DataError> {
    let chunks = bytes.as_chunks().0;
    let mut values = room(chunks.len())?;
    for (at, chunk) in chunks.iter().enumerate() {
        let value = read(little(*chunk, big_endian));
        values.push(how.of(value).ok_or_else(|| not_kept(at, value))?);
    }
    Ok(values)
}

/// Reads every `N` bytes as a whole number that f32 has to represent exactly.
fn each_whole<const N: usize>(
    bytes: &[u8],
    big_endian: bool,
    how: Floats,
    read: impl Fn([u8; N]) -> i128,
) -> Result<Vec<f32>, DataError> {
    let chunks = bytes.as_chunks().0;
    let mut values = room(chunks.len())?;
    for (at, chunk) in chunks.iter().enumerate() {
        let value = read(little(*chunk, big_endian));
        let float = kept_whole(value).or(how.rounds.then_some(value as f32));
        values.push(float.ok_or_else(|| not_kept(at, value))?);
    }
    Ok(values)
}

/// Reads every `N` bytes as a whole number that must fit an i32.
fn each_that_fits<const N: usize, T: Copy + Display + TryInto<i32>>(
    bytes: &[u8],
    big_endian: bool,
    read: impl Fn([u8; N]) -> T,
) -> Result<Vec<i32>, DataError> {
    let chunks = bytes.as_chunks().0;
    let mut values = room(chunks.len())?;
    for chunk in chunks {
        let value = read(little(*chunk, big_endian));
        values.push(value.try_into().map_err(|_| DataError::other(format!("{value} does not fit an i32")))?);
    }
    Ok(values)
}

fn little<const N: usize>(mut bytes: [u8; N], big_endian: bool) -> [u8; N] {
    if big_endian {
        bytes.reverse();
    }
    bytes
}

/// Returns a list with room for so many values. That memory does not suffice is an error.
fn room<T>(count: usize) -> Result<Vec<T>, DataError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| DataError::other(format!("no memory for {count} values")))?;
    Ok(values)
}

/// Returns the value of a binary16 number, exactly.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match exponent {
        // A subnormal is a multiple of 2^-24.
        0 => sign * fraction as f32 * f32::from_bits((127 - 24) << 23),
        31 if fraction == 0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * f32::from_bits((exponent + 127 - 15) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_type_and_byte_order() {
        let of = |element: Element, bytes: &[u8], big, to| {
            element.decode(bytes, big, to, Floats::default()).unwrap()
        };
        assert_eq!(of(Element::U16, &[1, 2], false, FieldDType::I32), Values::I32(vec![513]));
        assert_eq!(of(Element::U16, &[1, 2], true, FieldDType::F32), Values::F32(vec![258.0]));
        assert_eq!(of(Element::I8, &[255, 3], false, FieldDType::I32), Values::I32(vec![-1, 3]));
        assert_eq!(
            of(Element::F64, &(-2.5f64).to_be_bytes(), true, FieldDType::F32),
            Values::F32(vec![-2.5])
        );
        assert_eq!(of(Element::BF16, &[0x80, 0x3f], false, FieldDType::F32), Values::F32(vec![1.0]));
        assert_eq!(of(Element::I64, &(-9i64).to_le_bytes(), false, FieldDType::I32), Values::I32(vec![-9]));
        let far = Element::U32.decode(&u32::MAX.to_le_bytes(), false, FieldDType::I32, Floats::default());
        let far = far.unwrap_err();
        assert_eq!(far.to_string(), "4294967295 does not fit an i32");
        assert!(Element::F32.decode(&[0; 4], false, FieldDType::I32, Floats::default()).is_err());
    }

    #[test]
    fn halves() {
        let cases = [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
            (0x0400, 2f32.powi(-14)),
        ];
        for (bits, value) in cases {
            assert_eq!(half(bits), value);
        }
        assert!(
            half(0x7e00).is_nan() && half(0xfc00) == f32::NEG_INFINITY && half(0x8000).to_bits() == 1 << 31
        );
    }
}
