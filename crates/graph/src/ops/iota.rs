use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Expression, Halves, Io, Lowering, Op, Product, Var};
use crate::values::{Array, DType, Frame, Type};

/// y is each element's own coordinate on one axis, as i32 (NumPy's `indices`).
#[derive(Debug, Clone, Serialize)]
pub struct Iota {
    /// The axes of the result.
    pub dims: Vec<usize>,
    /// The axis whose coordinates are counted.
    pub axis: usize,
}

impl Op for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn attrs(&self) -> String {
        format!("{:?} axis={}", self.dims, self.axis)
    }

    fn infer(&self, _: &[&Type]) -> Result<Type, String> {
        let fits = self.axis < self.dims.len();
        fits.then(|| Type::global(&self.dims).of(DType::I32)).ok_or_else(|| format!("no axis {}", self.axis))
    }

    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![]
    }

    fn reference(&self, _: &[&Array], _: &Type, _: &Frame) -> Array {
        Array::generate(&self.dims, |at| at[self.axis] as f64)
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            wgsl: format!("i32($axis{})", self.axis),
            snippets: &[],
            whole: &[],
            product: Product::Never,
            adds: false,
            halves: Halves::Never,
            canonical: true,
        })
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "iota", cases: || vec![Case::random(Iota { dims: vec![3, 4], axis: 1 }, &[])] },
];
