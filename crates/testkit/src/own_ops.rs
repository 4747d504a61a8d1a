//! Ops as users write them, outside of the graph's crate: what a device computes is known by their types and
//! fields, whatever their names are.

mod families;

use serde::Serialize;
use unisono_graph::{Array, Expression, Frame, Halves, Io, Lowering, Op, Pointwise, Product, Type, Var};

pub use families::{FAMILIES, Made};

/// y = N x, where N is 2 or 3. The ops for all N have the same name.
#[derive(Debug, Serialize)]
pub struct Times<const N: u32>;

impl<const N: u32> Pointwise for Times<N> {
    const NAME: &str = "times";
    const ARITY: usize = 1;
    const WGSL: &str = match N {
        2 => "2.0 * $0",
        _ => "3.0 * $0",
    };
    const CASES: &[&[f64]] = &[&[1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        f64::from(N) * x[0]
    }

    /// dx = N dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Times::<N>))]
    }
}

/// y = x + by. The printed graph does not show the field.
#[derive(Debug, Clone, Serialize)]
pub struct Shift {
    /// What is added.
    pub by: f32,
}

impl Op for Shift {
    fn name(&self) -> &'static str {
        "shift"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        Ok(inputs[0].clone())
    }

    /// dx = dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone())]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        Array::new(&inputs[0].dims, inputs[0].data.iter().map(|x| x + f64::from(self.by)).collect())
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            wgsl: format!("$0 + {:?}", self.by),
            snippets: &[],
            whole: &[],
            product: Product::Never,
            adds: true,
            halves: Halves::Never,
            canonical: false,
        })
    }
}

/// y = a b / 2. It has the name of an op of the registry.
#[derive(Debug, Serialize)]
pub struct HalfProduct;

impl Pointwise for HalfProduct {
    const NAME: &str = "mul";
    const ARITY: usize = 2;
    const WGSL: &str = "$0 * $1 * 0.5";
    const CASES: &[&[f64]] = &[&[1.0, 1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] * x[1] / 2.0
    }

    /// da = b dy / 2, db = a dy / 2.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let half = |other: &Var| Some(other.zip(HalfProduct, &[dy]));
        vec![half(&x[1]), half(&x[0])]
    }
}
