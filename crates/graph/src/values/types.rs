//! The types of values: element type, lead and shape.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The type of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// The elements are 32-bit floats of IEEE 754.
    F32,
    /// The elements are 32-bit integers, such as labels, ids and indices.
    I32,
    /// The elements are raw 32-bit words, such as the key of the random generator.
    U32,
}

impl DType {
    /// Returns the name of the type in WGSL.
    pub const fn wgsl(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::U32 => "u32",
        }
    }
}

/// Which numbers the operands of products are. Default: [`Precision::F32`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// The operands of products are f32, as everything else is.
    #[default]
    F32,
    /// The operands of products are rounded to numbers that f16 holds. Sums, parameters and everything that
    /// is no product stay f32 (Micikevicius et al. 2018).
    Mixed,
    /// The operands are as in [`Precision::Mixed`], and the adapter's matrix unit multiplies them (NVIDIA's
    /// tensor cores, AMD's WMMA). Results have bits of their own, which depend on the kind of unit.
    MatrixUnits,
}

impl Precision {
    /// Returns [`Precision::Mixed`], PyTorch's `autocast`.
    pub const fn mixed() -> Self {
        Self::Mixed
    }

    /// Returns mixed precision by the adapter's matrix unit: `Precision::mixed().matrix_units()`. f32 stays
    /// as it is, because no unit multiplies f32.
    #[must_use]
    pub const fn matrix_units(self) -> Self {
        match self {
            Self::F32 => Self::F32,
            Self::Mixed | Self::MatrixUnits => Self::MatrixUnits,
        }
    }

    /// Returns whether the operands of products are rounded to f16, by whatever they are multiplied.
    pub const fn is_mixed(self) -> bool {
        matches!(self, Self::Mixed | Self::MatrixUnits)
    }
}

impl FromStr for Precision {
    type Err = String;

    /// Reads `f32`, `mixed` or `mixed+units`.
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::F32, Self::Mixed, Self::MatrixUnits]
            .into_iter()
            .find(|precision| precision.to_string() == text)
            .ok_or_else(|| "it is f32, mixed or mixed+units".into())
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Mixed => "mixed",
            Self::MatrixUnits => "mixed+units",
        })
    }
}

/// What stands in front of a value's own axes.
///
/// The lead is all that a graph knows of data parallelism: a value has an entry for each sample, or for each
/// shard, or is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Lead {
    /// The value is the same on every replica, such as a parameter, a statistic or a scalar.
    Global,
    /// There is one value for each shard: a sum over its samples, on the way to [`crate::Var::sum_shards`].
    Shard,
    /// There is one value for each sample: the batch axis `B` stands first.
    Sample,
}

/// The element type, lead and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// The type of the elements.
    pub dtype: DType,
    /// What stands in front of the axes.
    pub lead: Lead,
    /// The lengths of the axes of one sample, of one shard's sum, or of the global value, in row-major order.
    /// The batch axis is not among them.
    pub dims: Vec<usize>,
}

impl Type {
    /// Returns the type of an f32 value that is the same on every replica.
    pub fn global(dims: &[usize]) -> Self {
        Self { dtype: DType::F32, lead: Lead::Global, dims: dims.to_vec() }
    }

    /// Returns the type of an f32 value with one entry for each sample. `dims` are the axes after the batch.
    pub fn sample(dims: &[usize]) -> Self {
        Self { dtype: DType::F32, lead: Lead::Sample, dims: dims.to_vec() }
    }

    /// Returns the type with another element type.
    pub fn of(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Returns the type with other axes.
    pub fn with_dims(&self, dims: &[usize]) -> Self {
        Self { dims: dims.to_vec(), ..self.clone() }
    }

    /// Returns the type with another lead.
    pub fn with_lead(&self, lead: Lead) -> Self {
        Self { lead, ..self.clone() }
    }

    /// Returns the number of elements of one sample, of one shard's sum, or of the global value. More than a
    /// `usize` holds counts as `usize::MAX`.
    pub fn count(&self) -> usize {
        self.dims.iter().fold(1, |count, &length| count.saturating_mul(length))
    }

    /// Returns the distance between neighbours along each axis, in elements. That between samples or shards
    /// comes first, unless the value is global.
    pub(crate) fn strides(&self) -> Vec<usize> {
        let lead = (self.lead != Lead::Global).then(|| self.count());
        lead.into_iter().chain(strides(&self.dims)).collect()
    }

    /// Returns whether the lengths of the axes other than 0 have a product of at most 2^48, so that no size
    /// or offset in bytes wraps. A tape refuses values that have more.
    pub(crate) fn is_countable(&self) -> bool {
        let product = self.dims.iter().try_fold(1usize, |count, &length| count.checked_mul(length.max(1)));
        product.is_some_and(|product| product as u64 <= 1 << 48)
    }

    /// Returns the number of axes. The batch axis is counted.
    pub fn rank(&self) -> usize {
        self.dims.len() + usize::from(self.lead == Lead::Sample)
    }
}

/// Writes the type as a user thinks of it, for example `[B, 28, 28]`, `[512]` or `[S; 10] i32`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        match (self.lead, dims.is_empty()) {
            (Lead::Sample, true) => write!(f, "[B]")?,
            (Lead::Sample, false) => write!(f, "[B, {dims}]")?,
            (Lead::Shard, _) => write!(f, "[S; {dims}]")?,
            (Lead::Global, _) => write!(f, "[{dims}]")?,
        }
        match self.dtype {
            DType::F32 => Ok(()),
            other => write!(f, " {}", other.wgsl()),
        }
    }
}

/// Returns row-major strides in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(dims[axis]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_prints_as_a_user_thinks_of_it() {
        assert_eq!(Type::sample(&[28, 28]).to_string(), "[B, 28, 28]");
        assert_eq!(Type::sample(&[]).of(DType::I32).to_string(), "[B] i32");
        assert_eq!(Type::global(&[]).to_string(), "[]");
        assert_eq!(Type::global(&[3]).with_lead(Lead::Shard).to_string(), "[S; 3]");
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[]), [0usize; 0]);
    }
}
