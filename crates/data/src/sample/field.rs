//! A field: a tensor of one sample or of a batch in host memory; and its name, type and shape.

use std::fmt;
use std::sync::Arc;

use crate::DataError;

/// A field: a tensor in host memory, row-major and contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The extents of its axes. A scalar has none.
    pub shape: Vec<usize>,
    /// Its elements. There are as many as the product of the extents.
    pub values: Values,
}

/// The elements of a field, all of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// 32-bit floating point.
    F32(Vec<f32>),
    /// 32-bit signed integers, such as labels and tokens.
    I32(Vec<i32>),
}

/// The type of a field's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldDType {
    /// 32-bit floating point.
    F32,
    /// 32-bit signed integers.
    I32,
}

/// The name, type and shape that a field has in every sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldSpec {
    /// Its name, such as "x" or "y".
    pub name: Arc<str>,
    /// The type of its elements.
    pub dtype: FieldDType,
    /// The extents of its axes within one sample.
    pub shape: Vec<usize>,
}

impl FieldSpec {
    /// An extent in `shape` that differs from sample to sample. A transform must make it equal before samples
    /// are stacked.
    pub const VARIES: usize = 0;

    /// Whether any extent differs from sample to sample.
    pub fn varies(&self) -> bool {
        self.shape.contains(&Self::VARIES)
    }
}

impl Field {
    /// Returns a field of f32 values.
    pub fn f32(shape: impl Into<Vec<usize>>, values: impl Into<Vec<f32>>) -> Self {
        Self { shape: shape.into(), values: Values::F32(values.into()) }
    }

    /// Returns a field of i32 values.
    pub fn i32(shape: impl Into<Vec<usize>>, values: impl Into<Vec<i32>>) -> Self {
        Self { shape: shape.into(), values: Values::I32(values.into()) }
    }

    /// Returns the field's name, type and shape, under a given name.
    pub fn spec(&self, name: impl Into<Arc<str>>) -> FieldSpec {
        FieldSpec { name: name.into(), dtype: self.values.dtype(), shape: self.shape.clone() }
    }

    /// Checks that there are as many values as the shape says.
    pub(crate) fn check_length(&self, name: &str) -> Result<(), DataError> {
        if elements(&self.shape) == Some(self.values.len()) {
            return Ok(());
        }
        let what = format!("{} values do not fill shape {:?}", self.values.len(), self.shape);
        Err(DataError::field(name, what))
    }
}

/// Returns the number of elements of a shape, or `None` beyond what memory could hold.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
}

impl Values {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::I32(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> FieldDType {
        match self {
            Values::F32(_) => FieldDType::F32,
            Values::I32(_) => FieldDType::I32,
        }
    }

    /// Returns the elements if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        if let Values::F32(values) = self { Some(values) } else { None }
    }

    /// Returns the elements, mutably, if they are f32.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        if let Values::F32(values) = self { Some(values) } else { None }
    }

    /// Returns the elements if they are i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        if let Values::I32(values) = self { Some(values) } else { None }
    }

    /// Returns the elements, mutably, if they are i32.
    pub fn as_i32_mut(&mut self) -> Option<&mut [i32]> {
        if let Values::I32(values) = self { Some(values) } else { None }
    }

    /// Returns a copy of some elements, or `None` if the range reaches beyond them.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Option<Values> {
        Some(match self {
            Values::F32(values) => Values::F32(values.get(range)?.to_vec()),
            Values::I32(values) => Values::I32(values.get(range)?.to_vec()),
        })
    }

    /// Returns an empty list of a type with memory for `capacity` elements. The memory of `old` is used again
    /// if it is of this type. `None` means that the memory cannot be had.
    pub(crate) fn with_capacity(dtype: FieldDType, capacity: usize, old: Option<Values>) -> Option<Self> {
        fn room<T>(mut values: Vec<T>, capacity: usize) -> Option<Vec<T>> {
            values.clear();
            values.try_reserve_exact(capacity).ok()?;
            Some(values)
        }
        Some(match (dtype, old) {
            (FieldDType::F32, Some(Values::F32(old))) => Values::F32(room(old, capacity)?),
            (FieldDType::I32, Some(Values::I32(old))) => Values::I32(room(old, capacity)?),
            (FieldDType::F32, _) => Values::F32(room(Vec::new(), capacity)?),
            (FieldDType::I32, _) => Values::I32(room(Vec::new(), capacity)?),
        })
    }

    /// Appends the first `count` elements of values of the same type. Returns false, and appends nothing, if
    /// there are too few or the types differ.
    pub(crate) fn append_first(&mut self, other: &Values, count: usize) -> bool {
        fn extend<T: Copy>(own: &mut Vec<T>, other: Option<&[T]>) -> bool {
            own.extend_from_slice(other.unwrap_or(&[]));
            other.is_some()
        }
        match (self, other) {
            (Values::F32(own), Values::F32(other)) => extend(own, other.get(..count)),
            (Values::I32(own), Values::I32(other)) => extend(own, other.get(..count)),
            _ => false,
        }
    }

    /// Keeps the first elements.
    pub(crate) fn truncate(&mut self, count: usize) {
        match self {
            Self::F32(values) => values.truncate(count),
            Self::I32(values) => values.truncate(count),
        }
    }

    /// Keeps the elements of the rows that are marked true.
    pub(crate) fn keep_rows(&mut self, keep: &[bool]) {
        fn retain<T: Copy>(values: &mut Vec<T>, keep: &[bool]) {
            let size = (values.len() / keep.len().max(1)).max(1);
            let rows = values.chunks(size).zip(keep).filter(|(_, keep)| **keep);
            *values = rows.flat_map(|(row, _)| row.iter().copied()).collect();
        }
        match self {
            Values::F32(values) => retain(values, keep),
            Values::I32(values) => retain(values, keep),
        }
    }
}

impl fmt::Display for FieldDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldDType::F32 => "f32",
            FieldDType::I32 => "i32",
        })
    }
}
