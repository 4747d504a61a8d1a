//! Matrix units: what an adapter lists, and which of it kernels use.

use std::fmt;

use unisono_graph::target::{MatrixUnit, UnitWay};

use crate::{Adapter, Backend, GpuError};

/// The numbers of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixNumbers {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
    /// Integers, which no kernel uses.
    Integers,
}

/// A product that a matrix unit computes: `[rows, inner] x [inner, columns]` is added to `[rows, columns]`.
/// PyTorch and CUDA call such a product a fragment of `mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatrixSize {
    /// The rows of the left operand and of the result.
    pub rows: u32,
    /// The columns of the right operand and of the result.
    pub columns: u32,
    /// The columns of the left operand, which are the rows of the right one.
    pub inner: u32,
    /// The numbers of both operands.
    pub operands: MatrixNumbers,
    /// The numbers of the sums.
    pub sums: MatrixNumbers,
}

impl MatrixSize {
    /// Returns the sizes that an adapter lists, smaller ones first.
    pub(crate) fn listed(raw: &wgpu::Adapter) -> Vec<Self> {
        let numbers = |scalar| match scalar {
            wgpu::wgt::CooperativeScalarType::F16 => MatrixNumbers::F16,
            wgpu::wgt::CooperativeScalarType::F32 => MatrixNumbers::F32,
            _ => MatrixNumbers::Integers,
        };
        let size = |listed: &wgpu::CooperativeMatrixProperties| Self {
            rows: listed.m_size,
            columns: listed.n_size,
            inner: listed.k_size,
            operands: numbers(listed.ab_type),
            sums: numbers(listed.cr_type),
        };
        let mut sizes: Vec<Self> = raw.cooperative_matrix_properties().iter().map(size).collect();
        sizes.sort();
        sizes.dedup();
        sizes
    }

    /// Returns whether kernels can use the size: square matrices of f16, and sums of f32.
    pub fn is_used(&self) -> bool {
        let is_square = self.rows == self.columns && self.columns == self.inner;
        is_square && self.operands == MatrixNumbers::F16 && self.sums == MatrixNumbers::F32
    }
}

/// Prints the rows, columns and inner size, and the numbers: `16x16x16 f16->f32`.
impl fmt::Display for MatrixSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |numbers| match numbers {
            MatrixNumbers::F16 => "f16",
            MatrixNumbers::F32 => "f32",
            MatrixNumbers::Integers => "int",
        };
        let Self { rows, columns, inner, operands, sums } = *self;
        write!(f, "{rows}x{columns}x{inner} {}->{}", name(operands), name(sums))
    }
}

impl Adapter {
    /// Returns the adapter with its matrix unit in use: a device of it multiplies numbers that f16 holds by
    /// the unit. The largest size that the adapter lists is taken. The CPU has no unit: it
    /// computes in software what the unit of its arithmetic does ([`crate::Arithmetic::unit_sums`]).
    ///
    /// # Errors
    /// [`GpuError::NoMatrixUnit`] if the adapter has no unit that kernels can use.
    pub fn with_matrix_units(&self) -> Result<Self, GpuError> {
        let lacks = |why: String| GpuError::NoMatrixUnit { adapter: self.label(), why };
        let used = self.matrix_sizes.iter().filter(|size| size.is_used()).map(|size| size.inner).max();
        let (fewest, lanes) = self.limits.subgroup;
        let unit = match (self.backend, used) {
            (Backend::Cpu, _) => self.arithmetic.unwrap_or_default().unit_sums.unit(),
            (Backend::Vulkan, Some(size)) if self.features.subgroups && lanes > 0 => {
                MatrixUnit { size, lanes, fewest, way: UnitWay::Cooperative }
            }
            (Backend::Vulkan, None) if self.matrix_sizes.is_empty() => {
                return Err(lacks("its driver lists no cooperative matrices".to_owned()));
            }
            (Backend::Vulkan, Some(_)) => {
                return Err(lacks("it has no subgroups that kernels can use".to_owned()));
            }
            (Backend::Vulkan, None) => {
                let sizes: Vec<String> = self.matrix_sizes.iter().map(ToString::to_string).collect();
                return Err(lacks(format!("kernels can use none of the sizes {}", sizes.join(", "))));
            }
            (backend, _) => return Err(lacks(format!("kernels use units through Vulkan, not {backend}"))),
        };
        if !self.features.f16 {
            return Err(lacks("it has no 16-bit floats in shaders".to_owned()));
        }
        if u64::from(self.limits.workgroup_bytes) < MatrixUnit::WORKGROUP_BYTES {
            return Err(lacks(format!(
                "its workgroups have {} bytes of memory, and kernels with units take {}",
                self.limits.workgroup_bytes,
                MatrixUnit::WORKGROUP_BYTES
            )));
        }
        Ok(Self { unit: Some(unit), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::adapter;

    const USED: MatrixSize = MatrixSize {
        rows: 16,
        columns: 16,
        inner: 16,
        operands: MatrixNumbers::F16,
        sums: MatrixNumbers::F32,
    };

    fn with(backend: Backend, sizes: &[MatrixSize]) -> Adapter {
        let mut adapter = adapter(backend, 1, "");
        (adapter.matrix_sizes, adapter.features.subgroups) = (sizes.to_vec(), true);
        adapter.limits.workgroup_bytes = 32 << 10;
        adapter
    }

    #[test]
    fn the_largest_size_with_sums_of_f32_is_used() {
        let small = MatrixSize { rows: 8, columns: 8, inner: 8, ..USED };
        let narrow = MatrixSize { sums: MatrixNumbers::F16, ..USED };
        let unit = |sizes: &[MatrixSize]| with(Backend::Vulkan, sizes).with_matrix_units().unwrap().unit;
        let expected = |size| Some(MatrixUnit { size, lanes: 32, fewest: 32, way: UnitWay::Cooperative });
        assert_eq!([unit(&[small, USED]), unit(&[narrow, small])], [expected(16), expected(8)]);
        assert_eq!(USED.to_string(), "16x16x16 f16->f32");
    }

    #[test]
    fn an_adapter_without_a_unit_is_refused_by_name() {
        let oblong = MatrixSize { inner: 8, ..USED };
        let mut without_f16 = with(Backend::Vulkan, &[USED]);
        without_f16.features.f16 = false;
        let mut small = with(Backend::Vulkan, &[USED]);
        small.limits.workgroup_bytes = 16 << 10;
        let mut alone = with(Backend::Vulkan, &[USED]);
        alone.features.subgroups = false;
        for (adapter, why) in [
            (with(Backend::Vulkan, &[]), "lists no cooperative matrices"),
            (with(Backend::Vulkan, &[oblong]), "none of the sizes 16x16x8 f16->f32"),
            (with(Backend::Dx12, &[USED]), "through Vulkan, not dx12"),
            (without_f16, "no 16-bit floats"),
            (alone, "it has no subgroups"),
            (small, "its workgroups have 16384 bytes of memory, and kernels with units take 20480"),
        ] {
            let error = adapter.with_matrix_units().unwrap_err().to_string();
            assert!(error.contains(&adapter.label()) && error.contains(why), "{error}");
        }
    }
}
