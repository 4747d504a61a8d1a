use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Expression, Halves, Io, Lowering, Op, Product, Var};
use crate::values::{Array, DType, Frame, Type};

/// y is an i32 as f32, exact below 2^24.
#[derive(Debug, Clone, Serialize)]
pub struct ToF32;

impl Op for ToF32 {
    fn name(&self) -> &'static str {
        "to_f32"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        match inputs[0].dtype {
            DType::I32 => Ok(inputs[0].clone().of(DType::F32)),
            _ => Err(format!("{} is not i32", inputs[0])),
        }
    }

    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        inputs[0].clone()
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            wgsl: "f32($0)".into(),
            snippets: &[],
            whole: &[],
            product: Product::Never,
            adds: false,
            halves: Halves::Never,
            canonical: true,
        })
    }
}

impl Var {
    /// Returns an i32 value as f32, and an f32 value as it is.
    pub fn to_f32(&self) -> Var {
        if self.ty().dtype == DType::F32 { self.clone() } else { self.apply(ToF32) }
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "to_f32", cases: || vec![Case::random(ToF32, &[Type::sample(&[4]).of(DType::I32)])] },
];
