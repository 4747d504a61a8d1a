//! The element types of tensors, and the description of a tensor without its elements.

use std::fmt;

use safetensors::Dtype as Stored;

/// The element type of a [`Tensor`](crate::Tensor).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the field's own")]
pub enum TensorDType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

/// Each type with its name and its counterpart in the safetensors crate.
const TYPES: [(TensorDType, &str, Stored); 13] = [
    (TensorDType::Bool, "BOOL", Stored::BOOL),
    (TensorDType::U8, "U8", Stored::U8),
    (TensorDType::I8, "I8", Stored::I8),
    (TensorDType::U16, "U16", Stored::U16),
    (TensorDType::I16, "I16", Stored::I16),
    (TensorDType::F16, "F16", Stored::F16),
    (TensorDType::Bf16, "BF16", Stored::BF16),
    (TensorDType::U32, "U32", Stored::U32),
    (TensorDType::I32, "I32", Stored::I32),
    (TensorDType::F32, "F32", Stored::F32),
    (TensorDType::U64, "U64", Stored::U64),
    (TensorDType::I64, "I64", Stored::I64),
    (TensorDType::F64, "F64", Stored::F64),
];

impl TensorDType {
    /// Returns the number of bytes of an element.
    pub fn size(self) -> usize {
        self.stored().bitsize() / 8
    }

    /// Returns the name that safetensors headers use, such as `F32` and `BF16`.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    pub(crate) fn stored(self) -> Stored {
        TYPES[self as usize].2
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

impl fmt::Display for TensorDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor's type and shape, without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The element type.
    pub dtype: TensorDType,
    /// The sizes of the axes, outermost first. A scalar has none.
    pub shape: Vec<usize>,
}

impl Info {
    /// Describes a tensor of f32 elements.
    pub fn f32(shape: &[usize]) -> Self {
        Self { dtype: TensorDType::F32, shape: shape.to_vec() }
    }

    /// Returns the number of bytes that it takes, or `None` beyond what the machine can count.
    pub fn bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        elements?.checked_mul(self.dtype.size())
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_types_is_in_the_order_of_the_enum() {
        for (i, (dtype, name, stored)) in TYPES.into_iter().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(stored.to_string(), name);
            assert_eq!(TensorDType::from_name(name), Some(dtype));
        }
    }
}
