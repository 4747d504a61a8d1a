//! The scalars of a kernel and their arithmetic, with the choices that WGSL leaves to a device.

use naga::{BinaryOperator, MathFunction, Scalar, ScalarKind, UnaryOperator};

/// How a device computes where WGSL leaves it a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Whether `fma` rounds once. Default: it rounds the product and the sum.
    pub fused: bool,
    /// Whether the device is as different from the default as WGSL allows. The default is IEEE 754 to the
    /// last bit, and memory that nobody wrote holds zeros. The other one takes subnormal operands and results
    /// for 0, quotients and roots are off by up to two units in the last place, a NaN has other bits, the
    /// lesser of a number and a NaN is the NaN, an integer that becomes f32 is cut off, a number that no
    /// integer holds becomes some integer, a shift by 32 and more gives 0, a quotient by 0 is all ones, and
    /// memory that nobody wrote holds a NaN.
    pub otherwise: bool,
}

/// The bits of memory that nobody wrote.
const UNWRITTEN: u32 = 0x7fa5_a5a5;
/// The NaN that a device makes.
const NAN: [u32; 2] = [0x7fc0_0000, 0xffc1_2345];

pub(super) const F32: Scalar = Scalar { kind: ScalarKind::Float, width: 4 };

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn signed(bits: u64) -> i32 {
    bits as u32 as i32
}

impl Choices {
    /// Returns the bits of a word of memory that nobody wrote.
    pub(super) fn unwritten(self) -> u32 {
        if self.otherwise { UNWRITTEN } else { 0 }
    }

    /// Returns an operand or a result as the device takes it.
    fn taken(self, x: f32) -> f32 {
        if self.otherwise && x.is_subnormal() { x.signum() * 0.0 } else { x }
    }

    fn result(self, x: f32) -> u64 {
        let x = self.taken(x);
        u64::from(if x.is_nan() { NAN[usize::from(self.otherwise)] } else { x.to_bits() })
    }

    /// Returns a result that a device computes roughly.
    fn rough(self, x: f32) -> u64 {
        if !self.otherwise || !x.is_normal() {
            return self.result(x);
        }
        // Somewhere from two units below to two above, the same for the same number.
        let off = x.to_bits().wrapping_mul(0x9e37_79b1) >> 16;
        let near = f32::from_bits(x.to_bits().wrapping_add(off % 5).wrapping_sub(2));
        self.result(if near.is_normal() { near } else { x })
    }

    fn fma(self, a: f32, b: f32, c: f32) -> u64 {
        let [a, b, c] = [a, b, c].map(|x| self.taken(x));
        if self.fused { self.result(a.mul_add(b, c)) } else { self.result(self.taken(a * b) + c) }
    }

    /// Returns the lesser or the greater of two numbers.
    fn extreme(self, a: f32, b: f32, greater: bool) -> u64 {
        let (a, b) = (self.taken(a), self.taken(b));
        if a.is_nan() || b.is_nan() {
            let number = if a.is_nan() { b } else { a };
            return self.result(if self.otherwise { f32::NAN } else { number });
        }
        let takes_first = if a == b { !self.otherwise } else { (a > b) == greater };
        self.result(if takes_first { a } else { b })
    }

    /// Returns what an operator gives, or none if it is not emulated.
    pub(super) fn binary(self, op: BinaryOperator, of: Scalar, a: u64, b: u64) -> Option<u64> {
        match (of.kind, of.width) {
            (ScalarKind::Float, 4) => self.binary_float(op, float(a), float(b)),
            (ScalarKind::Sint, 4) => {
                let ordered = |a: u64| u64::from((a as u32) ^ 0x8000_0000);
                match op {
                    BinaryOperator::Divide | BinaryOperator::Modulo => {
                        let (a, b) = (signed(a), signed(b));
                        let is_whole = b != 0 && !(a == i32::MIN && b == -1);
                        let remains = op == BinaryOperator::Modulo;
                        Some(u64::from(match (is_whole, remains) {
                            (false, _) if self.otherwise => u32::MAX,
                            (false, true) => 0,
                            (false, false) => a as u32,
                            (true, true) => (a % b) as u32,
                            (true, false) => (a / b) as u32,
                        }))
                    }
                    BinaryOperator::ShiftRight => {
                        let by = self.shift(b, 32);
                        Some(u64::from(by.map_or(0, |by| (signed(a) >> by) as u32)))
                    }
                    _ if is_comparison(op) => self.binary_integer(op, ordered(a), ordered(b), 32),
                    _ => self.binary_integer(op, a, b, 32),
                }
            }
            (ScalarKind::Uint, width @ (4 | 8)) => self.binary_integer(op, a, b, u32::from(width) * 8),
            (ScalarKind::Bool, _) => Some(match op {
                BinaryOperator::Equal => u64::from(a == b),
                BinaryOperator::NotEqual | BinaryOperator::ExclusiveOr => u64::from(a != b),
                BinaryOperator::And | BinaryOperator::LogicalAnd => a & b,
                BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => a | b,
                _ => return None,
            }),
            _ => None,
        }
    }

    fn binary_float(self, op: BinaryOperator, a: f32, b: f32) -> Option<u64> {
        let (a, b) = (self.taken(a), self.taken(b));
        Some(match op {
            BinaryOperator::Add => self.result(a + b),
            BinaryOperator::Subtract => self.result(a - b),
            BinaryOperator::Multiply => self.result(a * b),
            BinaryOperator::Divide => self.rough(a / b),
            BinaryOperator::Equal => u64::from(a == b),
            BinaryOperator::NotEqual => u64::from(a != b),
            BinaryOperator::Less => u64::from(a < b),
            BinaryOperator::LessEqual => u64::from(a <= b),
            BinaryOperator::Greater => u64::from(a > b),
            BinaryOperator::GreaterEqual => u64::from(a >= b),
            _ => return None,
        })
    }

    /// Returns by how many bits a shift goes, or none if they are more than there are.
    fn shift(self, by: u64, bits: u32) -> Option<u32> {
        let by = by as u32;
        if by >= bits && self.otherwise { None } else { Some(by % bits) }
    }

    fn binary_integer(self, op: BinaryOperator, a: u64, b: u64, bits: u32) -> Option<u64> {
        let most = u64::MAX >> (64 - bits);
        Some(match op {
            BinaryOperator::Add => a.wrapping_add(b) & most,
            BinaryOperator::Subtract => a.wrapping_sub(b) & most,
            BinaryOperator::Multiply => a.wrapping_mul(b) & most,
            BinaryOperator::Divide => a.checked_div(b).unwrap_or(if self.otherwise { most } else { a }),
            BinaryOperator::Modulo => a.checked_rem(b).unwrap_or(if self.otherwise { most } else { 0 }),
            BinaryOperator::Equal => u64::from(a == b),
            BinaryOperator::NotEqual => u64::from(a != b),
            BinaryOperator::Less => u64::from(a < b),
            BinaryOperator::LessEqual => u64::from(a <= b),
            BinaryOperator::Greater => u64::from(a > b),
            BinaryOperator::GreaterEqual => u64::from(a >= b),
            BinaryOperator::And => a & b,
            BinaryOperator::ExclusiveOr => a ^ b,
            BinaryOperator::InclusiveOr => a | b,
            BinaryOperator::ShiftLeft => self.shift(b, bits).map_or(0, |by| a << by) & most,
            BinaryOperator::ShiftRight => self.shift(b, bits).map_or(0, |by| a >> by),
            _ => return None,
        })
    }

    pub(super) fn unary(self, op: UnaryOperator, of: Scalar, a: u64) -> Option<u64> {
        Some(match (op, of.kind, of.width) {
            (UnaryOperator::Negate, ScalarKind::Float, 4) => self.result(-self.taken(float(a))),
            (UnaryOperator::Negate, ScalarKind::Sint, 4) => u64::from((a as u32).wrapping_neg()),
            (UnaryOperator::BitwiseNot, ScalarKind::Sint | ScalarKind::Uint, 4) => u64::from(!(a as u32)),
            (UnaryOperator::BitwiseNot, ScalarKind::Uint, 8) => !a,
            (UnaryOperator::LogicalNot, ScalarKind::Bool, _) => a ^ 1,
            _ => return None,
        })
    }

    /// Returns what a built-in function of scalars gives, or none if it is not emulated: WGSL says too little
    /// about most functions of floats for kernels to use them.
    pub(super) fn math(self, function: MathFunction, of: Scalar, args: &[u64]) -> Option<u64> {
        match (of.kind, of.width) {
            (ScalarKind::Float, 4) => self.math_float(function, args),
            (ScalarKind::Uint | ScalarKind::Sint, 4) => {
                let turned = if of.kind == ScalarKind::Sint { 0x8000_0000 } else { 0 };
                let ordered = |at: usize| args[at] ^ turned;
                Some(match function {
                    MathFunction::Min => ordered(0).min(ordered(1)) ^ turned,
                    MathFunction::Max => ordered(0).max(ordered(1)) ^ turned,
                    MathFunction::Clamp => ordered(0).max(ordered(1)).min(ordered(2)) ^ turned,
                    MathFunction::Abs if turned != 0 => u64::from(signed(args[0]).unsigned_abs()),
                    MathFunction::Abs => args[0],
                    MathFunction::Sign if turned != 0 => u64::from(signed(args[0]).signum() as u32),
                    MathFunction::FirstLeadingBit if turned == 0 => {
                        u64::from((args[0] as u32).checked_ilog2().unwrap_or(u32::MAX))
                    }
                    MathFunction::CountOneBits => u64::from(args[0].count_ones()),
                    MathFunction::CountLeadingZeros => u64::from((args[0] as u32).leading_zeros()),
                    MathFunction::CountTrailingZeros => u64::from((args[0] as u32).trailing_zeros()),
                    MathFunction::ReverseBits => u64::from((args[0] as u32).reverse_bits()),
                    _ => return None,
                })
            }
            _ => None,
        }
    }

    fn math_float(self, function: MathFunction, args: &[u64]) -> Option<u64> {
        let x = |at: usize| self.taken(float(args[at]));
        Some(match function {
            MathFunction::Abs => self.result(x(0).abs()),
            MathFunction::Sign => self.result(if x(0) == 0.0 { x(0) } else { x(0).signum() }),
            MathFunction::Min => self.extreme(x(0), x(1), false),
            MathFunction::Max => self.extreme(x(0), x(1), true),
            MathFunction::Clamp => self.extreme(float(self.extreme(x(0), x(1), true)), x(2), false),
            MathFunction::Saturate => self.extreme(float(self.extreme(x(0), 0.0, true)), 1.0, false),
            MathFunction::Fma => self.fma(x(0), x(1), x(2)),
            MathFunction::Sqrt => self.rough(x(0).sqrt()),
            MathFunction::InverseSqrt => self.rough((1.0 / f64::from(x(0)).sqrt()) as f32),
            MathFunction::Floor => self.result(x(0).floor()),
            MathFunction::Ceil => self.result(x(0).ceil()),
            MathFunction::Trunc => self.result(x(0).trunc()),
            MathFunction::Round => self.result(x(0).round_ties_even()),
            _ => return None,
        })
    }

    /// Returns a scalar as another type, or none if that is not emulated. A number becomes f16 only if f16
    /// holds it: how others are rounded is a driver's choice.
    pub(super) fn convert(self, from: Scalar, to: Scalar, x: u64) -> Option<u64> {
        use ScalarKind::{Bool, Float, Sint, Uint};
        Some(match ((from.kind, from.width), (to.kind, to.width)) {
            (a, b) if a == b => x,
            ((_, 4), (Bool, _)) if from.kind != Float => u64::from(x != 0),
            ((Float, 4), (Bool, _)) => u64::from(self.taken(float(x)) != 0.0),
            ((Bool, _), (Float, 4)) => u64::from(if x == 0 { 0 } else { 1.0f32.to_bits() }),
            ((Bool, _), _) => x,
            ((Sint | Uint, 4), (Sint | Uint, 4)) => x,
            ((Uint, 4 | 8), (Uint, 8)) => x,
            ((Uint, 8), (Sint | Uint, 4)) => x & 0xffff_ffff,
            ((Sint, 4), (Uint, 8)) => i64::from(signed(x)) as u64,
            ((Sint, 4), (Float, 4)) => self.rounded(i64::from(signed(x))),
            ((Uint, 4), (Float, 4)) => self.rounded(i64::from(x as u32)),
            ((Float, 4), (Sint, 4)) => {
                let x = self.taken(float(x)).trunc();
                let holds = (-2_147_483_648.0..2_147_483_648.0).contains(&x);
                u64::from(if holds || !self.otherwise { x as i32 } else { i32::MIN } as u32)
            }
            ((Float, 4), (Uint, 4)) => {
                let x = self.taken(float(x)).trunc();
                let holds = (0.0..4_294_967_296.0).contains(&x);
                u64::from(if holds || !self.otherwise { x as u32 } else { u32::MAX })
            }
            ((Float, 2), (Float, 4)) => u64::from(widened(x as u16).to_bits()),
            ((Float, 4), (Float, 2)) => u64::from(narrowed(float(x))?),
            _ => return None,
        })
    }

    /// Returns the f32 of an integer.
    fn rounded(self, x: i64) -> u64 {
        let near = x as f32;
        let is_beyond = (near as i64).unsigned_abs() > x.unsigned_abs();
        let cut = self.otherwise && is_beyond;
        self.result(if cut { f32::from_bits(near.to_bits() - 1) } else { near })
    }
}

fn is_comparison(op: BinaryOperator) -> bool {
    use BinaryOperator::{Greater, GreaterEqual, Less, LessEqual};
    matches!(op, Less | LessEqual | Greater | GreaterEqual)
}

/// Returns the number that these bits of f16 are.
fn widened(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => (fraction as f32 * 2f32.powi(-24)).to_bits(),
        31 => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// Returns the bits of f16 that are this number, or none if there are none.
fn narrowed(x: f32) -> Option<u16> {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    if x.is_nan() {
        return Some(sign | 0x7e00);
    }
    let size = x.abs();
    let magnitude = if size.is_infinite() {
        0x7c00
    } else if size < 2f32.powi(-14) {
        (size * 2f32.powi(24)) as u16
    } else {
        ((size.to_bits() >> 13).wrapping_sub(112 << 10)) as u16
    };
    (widened(sign | magnitude) == x).then_some(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_f16_holds_go_there_and_back() {
        for bits in 0..=u16::MAX {
            let x = widened(bits);
            assert!(x.is_nan() || narrowed(x) == Some(bits), "{bits:x}");
        }
        assert_eq!(narrowed(0.1), None);
        assert_eq!(narrowed(65_520.0), None);
    }
}
