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

/// y is an f32 as i32, without its fraction: towards zero (PyTorch's `int()`). A number that i32 does not
/// hold becomes some i32, which one depends on the device.
#[derive(Debug, Clone, Serialize)]
pub struct ToI32;

impl Op for ToI32 {
    fn name(&self) -> &'static str {
        "to_i32"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        match inputs[0].dtype {
            DType::F32 => Ok(inputs[0].clone().of(DType::I32)),
            _ => Err(format!("{} is not f32", inputs[0])),
        }
    }

    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        Array::new(&inputs[0].dims, inputs[0].data.iter().map(|x| x.trunc()).collect())
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            // Drivers make f32(i32(x)) a truncation, which gives -0 between -1 and 0.
            wgsl: "i32(select($0, 0.0, abs($0) < 1.0))".into(),
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
    /// Returns an f32 value as i32 without its fraction, such as what [`Var::argmax`] and [`Var::top_k`]
    /// give, and an i32 value as it is. The numbers must be ones that i32 holds. No gradient flows through
    /// it.
    pub fn to_i32(&self) -> Var {
        if self.ty().dtype == DType::I32 { self.clone() } else { self.apply(ToI32) }
    }

    /// Returns an i32 value as f32, and an f32 value as it is.
    pub fn to_f32(&self) -> Var {
        if self.ty().dtype == DType::F32 { self.clone() } else { self.apply(ToF32) }
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "to_i32", cases: to_i32_cases },
    Entry { name: "to_f32", cases: || vec![Case::random(ToF32, &[Type::sample(&[4]).of(DType::I32)])] },
];

fn to_i32_cases() -> Vec<Case> {
    vec![Case::random(ToI32, &[Type::sample(&[6])]).with(0, &[-2.75, 2.75, 0.5, -0.5, 16_777_216.0, -7.0])]
}
