//! The trait of pointwise ops. Everything else about such an op follows from it.

use std::fmt::Debug;

use unisono_shaders::Snippet;

use crate::trace::{Expression, Halves, Identity, Io, Lowering, Op, Product, Var};
use crate::values::{Array, DType, Frame, Type};

/// An op on single elements. Operands and result have one shape; the methods of [`Var`] broadcast before they
/// apply the op.
///
/// ```
/// use serde::Serialize;
/// use unisono_graph::{Io, Pointwise, Tape, Type, Var};
///
/// /// y = x^3, elementwise.
/// #[derive(Debug, Serialize)]
/// struct Cube;
///
/// impl Pointwise for Cube {
///     const NAME: &str = "cube";
///     const ARITY: usize = 1;
///     const WGSL: &str = "$0 * $0 * $0";
///     const CASES: &[&[f64]] = &[&[-2.0], &[0.5]];
///     fn reference(&self, x: &[f64]) -> f64 {
///         x[0].powi(3)
///     }
///     /// dx = 3 x^2 dy.
///     fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
///         vec![Some(&x[0] * &x[0] * 3.0 * *dy)]
///     }
/// }
///
/// let tape = Tape::new();
/// let y = tape.input("x", Type::sample(&[4])).apply(Cube);
/// assert_eq!(y.ty().to_string(), "[B, 4]");
/// ```
pub trait Pointwise: Identity + Debug + Send + Sync {
    /// The op's name, for messages and the names of kernels.
    const NAME: &'static str;
    /// The number of operands.
    const ARITY: usize;
    /// The expression in WGSL. In it `$0`, `$1`, ... stand for the operands' elements. On Metal a compiler
    /// may take several additions, or several multiplications, of one expression in another order. To keep it
    /// from that, put `flush(...)` round each but the last, with [`unisono_shaders::snippets::FLUSH`] among
    /// `SNIPPETS`. It makes numbers up to 2^-126 zeros, as an op of its own does.
    const WGSL: &'static str;
    /// The shader functions that the expression calls. Default: none.
    const SNIPPETS: &'static [Snippet] = &[];
    /// Whether the result may be a product that is not rounded on its own. Default: [`Product::Makes`], which
    /// is always safe.
    const PRODUCT: Product = Product::Makes;
    /// Whether an operand may reach a `+` or `-` unrounded. Default: `true`, which is always safe.
    const ADDS: bool = true;
    /// Whether the result is a number that f16 holds. Default: [`Halves::Never`].
    const HALVES: Halves = Halves::Never;
    /// Whether the result is canonical wherever all operands are ([`crate::tree::canonical`]): never -0,
    /// never subnormal, and never 2^-126 or -2^-126. Default: `false`, which is always safe, because kernels
    /// then make the result canonical.
    const CANONICAL: bool = false;
    /// Whether the operands may be i32. Default: `false`, which makes such operands an error. Leave it so if
    /// the expression calls functions of f32 or contains constants of f32.
    const INTEGERS: bool = false;
    /// The element type of the result. Default: `None`, which stands for that of the operands.
    const RESULT: Option<DType> = None;
    /// The operands at which tests compare the op with its reference, one number for each operand.
    const CASES: &'static [&'static [f64]];

    /// Returns the result in f64.
    fn reference(&self, x: &[f64]) -> f64;

    /// Returns the gradient of each operand, `None` for an operand that has none.
    fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>>;
}

/// Returns the problem of an op that takes f32 only.
pub(super) fn takes_f32(other: &Type) -> String {
    format!("takes f32, and got {other}: Var::to_f32 makes f32 of integers")
}

impl<P: Pointwise> Op for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        if inputs.len() != P::ARITY {
            return Err(format!("takes {} operands, got {}", P::ARITY, inputs.len()));
        }
        let first = inputs[0];
        if let Some(other) = inputs.iter().find(|t| **t != first) {
            return Err(format!("operands differ: {first} and {other}"));
        }
        if !P::INTEGERS && first.dtype != DType::F32 {
            return Err(takes_f32(first));
        }
        Ok(P::RESULT.map_or_else(|| first.clone(), |dtype| first.clone().of(dtype)))
    }

    fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>> {
        Pointwise::gradient(self, io)
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        let mut row = vec![0.0; P::ARITY];
        let at = |i: usize, row: &mut Vec<f64>| {
            row.iter_mut().zip(inputs).for_each(|(r, x)| *r = x.data[i]);
            Pointwise::reference(self, row)
        };
        let data = (0..inputs[0].data.len()).map(|i| at(i, &mut row)).collect();
        Array::new(&inputs[0].dims, data)
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            wgsl: P::WGSL.into(),
            snippets: P::SNIPPETS,
            whole: &[],
            product: P::PRODUCT,
            adds: P::ADDS,
            halves: P::HALVES,
            canonical: P::CANONICAL,
        })
    }
}
