//! What a value is: element type, who holds it, and its shape.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE 754.
    F32,
    /// Labels, ids, indices.
    I32,
    /// Raw bits, such as the keys of the random generator.
    U32,
}

impl DType {
    /// The type's name in WGSL.
    pub const fn wgsl(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::U32 => "u32",
        }
    }
}

/// Which numbers the operands of products are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32, as everything else.
    #[default]
    F32,
    /// Those that f16 holds; sums, parameters and everything that is no product stay f32 (Micikevicius et al. 2018).
    Mixed,
}

impl FromStr for Precision {
    type Err = String;

    /// `f32` or `mixed`.
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::F32, Self::Mixed]
            .into_iter()
            .find(|precision| precision.to_string() == text)
            .ok_or_else(|| "it is f32 or mixed".into())
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Mixed => "mixed",
        })
    }
}

/// What stands in front of a value's own axes.
///
/// This is the whole of data parallelism: a value either came from samples or it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Lead {
    /// The same on every replica: parameters, statistics, scalars.
    Global,
    /// One value a shard: a sum over its samples, on the way to [`crate::Var::sum_shards`].
    Shard,
    /// One value a sample: the batch axis `B` stands first.
    Sample,
}

/// Element type, lead and shape of a value. The batch axis is not among `dims`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// What stands in front of `dims`.
    pub lead: Lead,
    /// The axes of one sample, of one shard's sum, or of the global value; row-major.
    pub dims: Vec<usize>,
}

impl Type {
    /// A value that is the same on every replica.
    pub fn global(dims: &[usize]) -> Self {
        Self { dtype: DType::F32, lead: Lead::Global, dims: dims.to_vec() }
    }

    /// A value with one entry a sample; `dims` are the axes after the batch.
    pub fn sample(dims: &[usize]) -> Self {
        Self { dtype: DType::F32, lead: Lead::Sample, dims: dims.to_vec() }
    }

    /// The same with another element type.
    pub fn of(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The same with other axes.
    pub fn with_dims(&self, dims: &[usize]) -> Self {
        Self { dims: dims.to_vec(), ..self.clone() }
    }

    /// The same with another lead.
    pub fn with_lead(&self, lead: Lead) -> Self {
        Self { lead, ..self.clone() }
    }

    /// Elements of one sample, one shard's sum, or the global value.
    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Number of axes a user counts: the batch axis is one of them.
    pub fn rank(&self) -> usize {
        self.dims.len() + usize::from(self.lead == Lead::Sample)
    }
}

/// `[B, 28, 28]`, `[512]`, `[S; 10] i32`.
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

/// Row-major strides, in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
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
