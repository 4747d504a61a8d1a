use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::half::round_half;
use crate::values::tree::PRODUCT_CHUNK;
use crate::values::{Array, Frame, Type};
use super::MatMul;

/// y is a matrix product rounded to numbers that f16 holds, as [`crate::ops::RoundHalf`] rounds. The kernel
/// that computes the product rounds it; its sums are f32. The inner size is at most that of a chunk. The
/// compiler makes this op of a product and its rounding.
#[derive(Debug, Clone, Serialize)]
pub struct MatMulHalf(pub MatMul);

impl Op for MatMulHalf {
    fn name(&self) -> &'static str {
        "matmul_half"
    }

    fn attrs(&self) -> String {
        self.0.attrs()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let ty = self.0.infer(inputs)?;
        match self.0.inner(inputs[0]) {
            ..=PRODUCT_CHUNK => Ok(ty),
            inner => {
                Err(format!("an inner size of {inner} is more than {PRODUCT_CHUNK}: round the product apart"))
            }
        }
    }

    /// The gradient is that of the product.
    fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>> {
        self.0.gradient(io)
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let exact = self.0.reference(inputs, output, frame);
        Array::new(&exact.dims, exact.data.iter().map(|&x| f64::from(round_half(x as f32))).collect())
    }

    fn lowering(&self) -> Lowering {
        let MatMul { transpose_a, transpose_b } = self.0;
        Lowering::MatMul { transpose_a, transpose_b, rounds: true }
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "matmul_half", cases }];

/// Returns cases on eighths, whose sums f32 holds exactly, so that every device rounds the same number.
fn cases() -> Vec<Case> {
    let eighths = [1.0, -6.0, 4.0, 11.0, -2.0, 7.0, -13.0].map(|x: f64| x / 8.0);
    let case = |a: Type, b: Type, transpose_b| {
        let case = Case::random(MatMulHalf(MatMul { transpose_a: false, transpose_b }), &[a, b]);
        case.with(0, &eighths).with(1, &eighths[..5])
    };
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(s(&[5]), g(&[5, 3]), false),
        case(s(&[64]), g(&[48, 64]), true),
        case(s(&[2, 3, 4]), s(&[2, 5, 4]), true),
        case(g(&[6, 9]), s(&[12, 9]), true),
        case(g(&[33, 70]), g(&[70, 36]), false),
    ]
}
