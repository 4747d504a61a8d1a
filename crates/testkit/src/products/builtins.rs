//! Classifies WGSL's built-in functions by what they do with products of floats.

use naga::MathFunction;

/// What a built-in function does with products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Math {
    /// The result is a product.
    Product,
    /// The function adds or subtracts products that it computes itself.
    Hides,
    /// The function adds something to its operand.
    Adds,
    /// The result may be an operand, unchanged but for its sign.
    Passes,
    /// The result is rounded on its own.
    Rounds,
}

/// Returns what a built-in function does that is called with floats. Every function is named here, so that a
/// new one of naga does not compile until it is classified.
pub(super) fn math(function: MathFunction) -> Math {
    use MathFunction as F;
    match function {
        F::Radians | F::Degrees | F::Ldexp | F::Outer => Math::Product,
        F::Dot
        | F::Cross
        | F::Distance
        | F::Length
        | F::Normalize
        | F::FaceForward
        | F::Reflect
        | F::Refract => Math::Hides,
        F::Mix | F::SmoothStep | F::Inverse | F::Determinant => Math::Hides,
        F::Fract | F::Modf => Math::Adds,
        F::Abs | F::Min | F::Max | F::Clamp | F::Saturate | F::Transpose => Math::Passes,
        F::Fma | F::Sqrt | F::InverseSqrt | F::Step | F::Sign | F::Frexp | F::QuantizeToF16 => Math::Rounds,
        F::Ceil | F::Floor | F::Round | F::Trunc => Math::Rounds,
        F::Cos | F::Cosh | F::Sin | F::Sinh | F::Tan | F::Tanh | F::Acos | F::Asin | F::Atan | F::Atan2 => {
            Math::Rounds
        }
        F::Asinh | F::Acosh | F::Atanh | F::Exp | F::Exp2 | F::Log | F::Log2 | F::Pow => Math::Rounds,
        F::Dot4I8Packed
        | F::Dot4U8Packed
        | F::CountTrailingZeros
        | F::CountLeadingZeros
        | F::CountOneBits => Math::Rounds,
        F::ReverseBits | F::ExtractBits | F::InsertBits | F::FirstTrailingBit | F::FirstLeadingBit => {
            Math::Rounds
        }
        F::Pack4x8snorm | F::Pack4x8unorm | F::Pack2x16snorm | F::Pack2x16unorm | F::Pack2x16float => {
            Math::Rounds
        }
        F::Pack4xI8 | F::Pack4xU8 | F::Pack4xI8Clamp | F::Pack4xU8Clamp => Math::Rounds,
        F::Unpack4x8snorm | F::Unpack4x8unorm | F::Unpack2x16snorm | F::Unpack2x16unorm => Math::Rounds,
        F::Unpack2x16float | F::Unpack4xI8 | F::Unpack4xU8 => Math::Rounds,
    }
}
