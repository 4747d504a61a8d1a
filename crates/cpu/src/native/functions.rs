//! Functions of floats that kernels call, with the same bits on every processor.

use naga::MathFunction;

/// A function of one float.
type Unary = extern "C" fn(f32) -> f32;

/// A function of two floats.
type Binary = extern "C" fn(f32, f32) -> f32;

/// Code that takes as many floats as its function has operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Unary(Unary),
    Binary(Binary),
}

impl Code {
    /// Returns the address of the code.
    pub fn address(self) -> usize {
        match self {
            Self::Unary(code) => code as usize,
            Self::Binary(code) => code as usize,
        }
    }
}

/// Returns the code of a function, if there is some.
pub(crate) fn function(function: MathFunction) -> Option<Code> {
    macro_rules! unary {
        ($name:ident) => {{
            extern "C" fn code(x: f32) -> f32 {
                libm::$name(x)
            }
            Some(Code::Unary(code))
        }};
    }
    macro_rules! binary {
        ($name:ident) => {{
            extern "C" fn code(x: f32, y: f32) -> f32 {
                libm::$name(x, y)
            }
            Some(Code::Binary(code))
        }};
    }
    match function {
        MathFunction::Sin => unary!(sinf),
        MathFunction::Cos => unary!(cosf),
        MathFunction::Tan => unary!(tanf),
        MathFunction::Asin => unary!(asinf),
        MathFunction::Acos => unary!(acosf),
        MathFunction::Atan => unary!(atanf),
        MathFunction::Sinh => unary!(sinhf),
        MathFunction::Cosh => unary!(coshf),
        MathFunction::Tanh => unary!(tanhf),
        MathFunction::Asinh => unary!(asinhf),
        MathFunction::Acosh => unary!(acoshf),
        MathFunction::Atanh => unary!(atanhf),
        MathFunction::Exp => unary!(expf),
        MathFunction::Exp2 => unary!(exp2f),
        MathFunction::Log => unary!(logf),
        MathFunction::Log2 => unary!(log2f),
        MathFunction::Atan2 => binary!(atan2f),
        MathFunction::Pow => binary!(powf),
        _ => None,
    }
}
