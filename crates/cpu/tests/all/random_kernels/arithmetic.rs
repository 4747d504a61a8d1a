//! Operations of scalars, which are given by their bits.

use super::program::Scalar;

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn of_float(x: f32) -> u64 {
    u64::from(x.to_bits())
}

/// Returns an integer with its sign.
fn signed(scalar: Scalar, x: u64) -> i64 {
    if scalar == Scalar::I32 { i64::from(x as u32 as i32) } else { x as i64 }
}

/// Cuts an integer to its bits.
fn cut(scalar: Scalar, x: u64) -> u64 {
    if scalar.bytes() == 8 { x } else { x & 0xffff_ffff }
}

fn is_signed(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::I32 | Scalar::I64)
}

pub fn unary(op: &str, scalar: Scalar, x: u64) -> u64 {
    match (op, scalar) {
        ("-", Scalar::F32) => of_float(-float(x)),
        ("-", _) => cut(scalar, x.wrapping_neg()),
        ("!", _) => x ^ 1,
        _ => cut(scalar, !x),
    }
}

pub fn binary(op: &str, scalar: Scalar, a: u64, b: u64) -> u64 {
    match scalar {
        Scalar::F32 => {
            let (x, y) = (float(a), float(b));
            match op {
                "+" => of_float(x + y),
                "-" => of_float(x - y),
                "*" => of_float(x * y),
                "/" => of_float(x / y),
                "==" => (x == y).into(),
                "!=" => (x != y).into(),
                "<" => (x < y).into(),
                "<=" => (x <= y).into(),
                ">" => (x > y).into(),
                _ => (x >= y).into(),
            }
        }
        Scalar::Bool => match op {
            "==" => (a == b).into(),
            "!=" => a ^ b,
            "&" | "&&" => a & b,
            _ => a | b,
        },
        _ => {
            let bits = 8 * scalar.bytes() as u32;
            let (x, y) = (signed(scalar, a), signed(scalar, b));
            let order = if is_signed(scalar) { x.cmp(&y) } else { a.cmp(&b) };
            cut(
                scalar,
                match op {
                    "+" => a.wrapping_add(b),
                    "-" => a.wrapping_sub(b),
                    "*" => a.wrapping_mul(b),
                    "/" if b == 0 => a,
                    "/" if is_signed(scalar) => x.wrapping_div(y) as u64,
                    "/" => a / b,
                    "%" if b == 0 => 0,
                    "%" if is_signed(scalar) => x.wrapping_rem(y) as u64,
                    "%" => a % b,
                    "&" => a & b,
                    "|" => a | b,
                    "^" => a ^ b,
                    "<<" => a << (b as u32 % bits),
                    ">>" if is_signed(scalar) => (x >> (b as u32 % bits)) as u64,
                    ">>" => a >> (b as u32 % bits),
                    "==" => order.is_eq().into(),
                    "!=" => order.is_ne().into(),
                    "<" => order.is_lt().into(),
                    "<=" => order.is_le().into(),
                    ">" => order.is_gt().into(),
                    _ => order.is_ge().into(),
                },
            )
        }
    }
}

pub fn builtin(name: &str, scalar: Scalar, x: &[u64]) -> u64 {
    if name == "select" {
        return if x[2] != 0 { x[1] } else { x[0] };
    }
    if scalar == Scalar::F32 {
        let x: Vec<f32> = x.iter().map(|&x| float(x)).collect();
        // A subnormal number that is rounded to an integer or chosen of two may be 0 here.
        let whole = x[0] * std::hint::black_box(1.0);
        let less = |a: f32, b: f32| (if a < b { a } else { b }) * std::hint::black_box(1.0);
        let greater = |a: f32, b: f32| (if a > b { a } else { b }) * std::hint::black_box(1.0);
        return of_float(match name {
            "abs" => x[0].abs(),
            "sqrt" => x[0].sqrt(),
            "floor" => whole.floor(),
            "ceil" => whole.ceil(),
            "trunc" => whole.trunc(),
            "round" => whole.round_ties_even(),
            "sign" if x[0] > 0.0 => 1.0,
            "sign" if x[0] < 0.0 => -1.0,
            "sign" => x[0],
            "fract" => x[0] - whole.floor(),
            "inverseSqrt" => 1.0 / x[0].sqrt(),
            "saturate" => less(greater(x[0], 0.0), 1.0),
            "min" => less(x[0], x[1]),
            "max" => greater(x[0], x[1]),
            "clamp" => less(greater(x[0], x[1]), x[2]),
            "fma" => x[0].mul_add(x[1], x[2]),
            _ => x[0] * (1.0 - x[2]) + x[1] * x[2],
        });
    }
    let most = |a: u64, b: u64| if binary(">", scalar, a, b) != 0 { a } else { b };
    let least = |a: u64, b: u64| if binary("<", scalar, a, b) != 0 { a } else { b };
    match name {
        "abs" if is_signed(scalar) => cut(scalar, signed(scalar, x[0]).wrapping_abs() as u64),
        "abs" => x[0],
        "min" => least(x[0], x[1]),
        "max" => most(x[0], x[1]),
        "clamp" => least(most(x[0], x[1]), x[2]),
        "countOneBits" => x[0].count_ones().into(),
        "countLeadingZeros" => (x[0] as u32).leading_zeros().into(),
        "countTrailingZeros" => (x[0] as u32).trailing_zeros().into(),
        "reverseBits" => (x[0] as u32).reverse_bits().into(),
        _ => (x[0] as u32).checked_ilog2().unwrap_or(u32::MAX).into(),
    }
}

pub fn convert(from: Scalar, to: Scalar, x: u64) -> u64 {
    match (from, to) {
        (Scalar::F32, Scalar::F32) => x,
        // Else Rust looks at the bits, and not at what the mode of the thread makes of them.
        (Scalar::F32, Scalar::Bool) => (std::hint::black_box(float(x)) != 0.0).into(),
        (Scalar::F32, Scalar::I32) => u64::from(float(x) as i32 as u32),
        (Scalar::F32, _) => u64::from(float(x) as u32),
        (_, Scalar::Bool) => (x != 0).into(),
        (Scalar::Bool, Scalar::F32) => of_float(x as f32),
        (_, Scalar::F32) if is_signed(from) => of_float(signed(from, x) as f32),
        (_, Scalar::F32) => of_float(x as f32),
        (Scalar::I32, _) => cut(to, signed(from, x) as u64),
        _ => cut(to, x),
    }
}
