//! Instructions on vector registers, by AMD's "RDNA3 Instruction Set Architecture".

use crate::scalar::ones;

/// An instruction on the lanes of vectors. Floats are flushed as the mode says, words are not.
#[derive(Clone, Copy, Debug)]
pub enum Vector {
    Float1(fn(f32) -> f32),
    /// A float that the hardware computes to the last bit or the one beside it.
    Rough(fn(f64) -> f64),
    Float2(fn(f32, f32) -> f32),
    Float3(fn(f32, f32, f32) -> f32),
    /// A product that is added to the result.
    MultiplyAdd,
    /// A float and an integer.
    Scaled(fn(f32, i32) -> f32),
    FromFloat(fn(f32) -> u32),
    ToFloat(fn(u32) -> f32),
    Word1(fn(u32) -> u32),
    Word2(fn(u32, u32) -> u32),
    Word3(fn(u32, u32, u32) -> u32),
    /// A double word, shifted by a word.
    Shift(fn(u32, u64) -> u64),
    /// Two words with a carry, which it may read, and sets.
    Carries {
        reads: bool,
        of: fn(u32, u32, u32) -> (u32, bool),
    },
    /// A product of words, and a double word.
    MultiplyAddWide,
    CompareFloats {
        sets_exec: bool,
        of: fn(f32, f32) -> bool,
    },
    CompareWords {
        sets_exec: bool,
        of: fn(u32, u32) -> bool,
    },
    /// Whether a float is of one of the classes that a mask has.
    CompareClass {
        sets_exec: bool,
    },
    Selects,
    Swaps,
    FirstLane,
}

/// Returns an instruction by its name.
pub fn named(name: &str) -> Option<Vector> {
    use Vector::*;
    let name = name.strip_prefix("v_")?;
    let name = name.strip_suffix("_e32").or_else(|| name.strip_suffix("_e64")).unwrap_or(name);
    let compared = |name: &str, sets_exec| match name.rsplit_once('_')? {
        ("class", "f32") => Some(CompareClass { sets_exec }),
        (op, "f32") => float_test(op).map(|of| CompareFloats { sets_exec, of }),
        (op, "u32") => word_test(op).map(|of| CompareWords { sets_exec, of }),
        (op, "i32") => signed_test(op).map(|of| CompareWords { sets_exec, of }),
        _ => None,
    };
    if let Some(test) = name.strip_prefix("cmp_") {
        return compared(test, false);
    }
    if let Some(test) = name.strip_prefix("cmpx_") {
        return compared(test, true);
    }
    floats(name).or_else(|| words(name))
}

fn floats(name: &str) -> Option<Vector> {
    use Vector::*;
    Some(match name {
        "add_f32" => Float2(|a, b| a + b),
        "sub_f32" => Float2(|a, b| a - b),
        "subrev_f32" => Float2(|a, b| b - a),
        "mul_f32" => Float2(|a, b| a * b),
        "fma_f32" | "fmaak_f32" | "fmamk_f32" => Float3(f32::mul_add),
        "fmac_f32" => MultiplyAdd,
        "min_f32" => Float2(least),
        "max_f32" => Float2(greatest),
        "min3_f32" => Float3(|a, b, c| least(least(a, b), c)),
        "max3_f32" => Float3(|a, b, c| greatest(greatest(a, b), c)),
        "med3_f32" => Float3(|a, b, c| match a.is_nan() || b.is_nan() || c.is_nan() {
            true => least(least(a, b), c),
            false => greatest(least(a, b), least(greatest(a, b), c)),
        }),
        "rndne_f32" => Float1(f32::round_ties_even),
        "floor_f32" => Float1(f32::floor),
        "ceil_f32" => Float1(f32::ceil),
        "trunc_f32" => Float1(f32::trunc),
        "rcp_f32" | "rcp_iflag_f32" => Rough(|x| 1.0 / x),
        "rsq_f32" => Rough(|x| 1.0 / x.sqrt()),
        "sqrt_f32" => Rough(f64::sqrt),
        "exp_f32" => Rough(f64::exp2),
        "log_f32" => Rough(f64::log2),
        "ldexp_f32" => Scaled(|x, by| (f64::from(x) * 2f64.powi(by.clamp(-400, 400))) as f32),
        // A float that is no integer is cut off, and one that is too large is the last integer.
        "cvt_i32_f32" => FromFloat(|x| x as i32 as u32),
        "cvt_u32_f32" => FromFloat(|x| x as u32),
        "cvt_f32_i32" => ToFloat(|word| word as i32 as f32),
        "cvt_f32_u32" => ToFloat(|word| word as f32),
        "cvt_f32_ubyte0" => ToFloat(|word| (word & 255) as f32),
        _ => return None,
    })
}

fn words(name: &str) -> Option<Vector> {
    use Vector::*;
    const LOW: u32 = 0xff_ffff;
    Some(match name {
        "mov_b32" => Word1(|a| a),
        "not_b32" => Word1(|a| !a),
        "bfrev_b32" => Word1(u32::reverse_bits),
        "clz_i32_u32" => Word1(|a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
        "ctz_i32_b32" => Word1(|a| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
        "add_nc_u32" => Word2(u32::wrapping_add),
        "sub_nc_u32" => Word2(u32::wrapping_sub),
        "subrev_nc_u32" => Word2(|a, b| b.wrapping_sub(a)),
        "mul_lo_u32" => Word2(u32::wrapping_mul),
        "mul_hi_u32" => Word2(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul_hi_i32" => Word2(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        "mul_u32_u24" => Word2(|a, b| (a & LOW).wrapping_mul(b & LOW)),
        "mul_i32_i24" => Word2(|a, b| low(a).wrapping_mul(low(b)) as u32),
        "mad_u32_u24" => Word3(|a, b, c| (a & LOW).wrapping_mul(b & LOW).wrapping_add(c)),
        "mad_i32_i24" => Word3(|a, b, c| (low(a).wrapping_mul(low(b)) as u32).wrapping_add(c)),
        "min_u32" => Word2(u32::min),
        "max_u32" => Word2(u32::max),
        "min_i32" => Word2(|a, b| (a as i32).min(b as i32) as u32),
        "max_i32" => Word2(|a, b| (a as i32).max(b as i32) as u32),
        "min3_u32" => Word3(|a, b, c| a.min(b).min(c)),
        "max3_u32" => Word3(|a, b, c| a.max(b).max(c)),
        "min3_i32" => Word3(|a, b, c| (a as i32).min(b as i32).min(c as i32) as u32),
        "max3_i32" => Word3(|a, b, c| (a as i32).max(b as i32).max(c as i32) as u32),
        "med3_i32" => Word3(|a, b, c| {
            let [a, b, c] = [a, b, c].map(|word| word as i32);
            a.min(b).max(a.max(b).min(c)) as u32
        }),
        "med3_u32" => Word3(|a, b, c| a.min(b).max(a.max(b).min(c))),
        "and_b32" => Word2(|a, b| a & b),
        "or_b32" => Word2(|a, b| a | b),
        "xor_b32" => Word2(|a, b| a ^ b),
        "xnor_b32" => Word2(|a, b| !(a ^ b)),
        "or3_b32" => Word3(|a, b, c| a | b | c),
        "xor3_b32" => Word3(|a, b, c| a ^ b ^ c),
        "and_or_b32" => Word3(|a, b, c| a & b | c),
        "xad_u32" => Word3(|a, b, c| (a ^ b).wrapping_add(c)),
        "add3_u32" => Word3(|a, b, c| a.wrapping_add(b).wrapping_add(c)),
        "add_lshl_u32" => Word3(|a, b, c| a.wrapping_add(b) << (c & 31)),
        "lshl_add_u32" => Word3(|a, b, c| (a << (b & 31)).wrapping_add(c)),
        "lshl_or_b32" => Word3(|a, b, c| a << (b & 31) | c),
        "lshlrev_b32" => Word2(|a, b| b << (a & 31)),
        "lshrrev_b32" => Word2(|a, b| b >> (a & 31)),
        "ashrrev_i32" => Word2(|a, b| (b as i32 >> (a & 31)) as u32),
        "bfe_u32" => Word3(|a, b, c| a >> (b & 31) & ones(c & 31)),
        "bfe_i32" => Word3(|a, b, c| match c & 31 {
            0 => 0,
            width => (((a >> (b & 31)) << (32 - width)) as i32 >> (32 - width)) as u32,
        }),
        "bfi_b32" => Word3(|a, b, c| a & b | !a & c),
        "bfm_b32" => Word2(|a, b| ones(a & 31) << (b & 31)),
        "alignbit_b32" => Word3(|a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
        "lshrrev_b64" => Shift(|by, word| word >> (by & 63)),
        "lshlrev_b64" => Shift(|by, word| word << (by & 63)),
        "add_co_u32" => Carries { reads: false, of: |a, b, _| a.overflowing_add(b) },
        "sub_co_u32" => Carries { reads: false, of: |a, b, _| a.overflowing_sub(b) },
        "subrev_co_u32" => Carries { reads: false, of: |a, b, _| b.overflowing_sub(a) },
        "add_co_ci_u32" => Carries {
            reads: true,
            of: |a, b, carry| {
                let sum = u64::from(a) + u64::from(b) + u64::from(carry);
                (sum as u32, sum >> 32 != 0)
            },
        },
        "sub_co_ci_u32" => Carries { reads: true, of: borrowed },
        "subrev_co_ci_u32" => Carries { reads: true, of: |a, b, carry| borrowed(b, a, carry) },
        "mad_u64_u32" => MultiplyAddWide,
        "cndmask_b32" => Selects,
        "swap_b32" => Swaps,
        "readfirstlane_b32" => FirstLane,
        _ => return None,
    })
}

/// Returns the last 24 bits as an integer with a sign.
fn low(word: u32) -> i32 {
    (word << 8) as i32 >> 8
}

fn borrowed(a: u32, b: u32, carry: u32) -> (u32, bool) {
    let rest = i64::from(a) - i64::from(b) - i64::from(carry);
    (rest as u32, rest < 0)
}

fn float_test(op: &str) -> Option<fn(f32, f32) -> bool> {
    Some(match op {
        "lt" => |a, b| a < b,
        "eq" => |a, b| a == b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "lg" => |a, b| a.partial_cmp(&b).is_some_and(|order| order.is_ne()),
        "ge" => |a, b| a >= b,
        "o" => |a, b| !a.is_nan() && !b.is_nan(),
        "u" => |a, b| a.is_nan() || b.is_nan(),
        "nge" => |a, b| a.partial_cmp(&b).is_none_or(|order| !order.is_ge()),
        "nlg" => |a, b| a.partial_cmp(&b).is_none_or(|order| order.is_eq()),
        "ngt" => |a, b| a.partial_cmp(&b).is_none_or(|order| !order.is_gt()),
        "nle" => |a, b| a.partial_cmp(&b).is_none_or(|order| !order.is_le()),
        "neq" => |a, b| a != b,
        "nlt" => |a, b| a.partial_cmp(&b).is_none_or(|order| !order.is_lt()),
        _ => return None,
    })
}

fn word_test(op: &str) -> Option<fn(u32, u32) -> bool> {
    Some(match op {
        "lt" => |a, b| a < b,
        "eq" => |a, b| a == b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ne" => |a, b| a != b,
        "ge" => |a, b| a >= b,
        _ => return None,
    })
}

fn signed_test(op: &str) -> Option<fn(u32, u32) -> bool> {
    Some(match op {
        "lt" => |a, b| (a as i32) < b as i32,
        "eq" => |a, b| a == b,
        "le" => |a, b| a as i32 <= b as i32,
        "gt" => |a, b| a as i32 > b as i32,
        "ne" => |a, b| a != b,
        "ge" => |a, b| a as i32 >= b as i32,
        _ => return None,
    })
}

/// Returns the lesser of two numbers, of which -0 is less than 0. A NaN is no number.
fn least(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    }
}

/// Returns the greater of two numbers, as [`least`] returns the lesser.
fn greatest(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        _ => a.max(b),
    }
}

/// Returns the class of a float as a bit of `v_cmp_class_f32`.
pub fn class(x: f32) -> u32 {
    let sign = |negative: u32, positive: u32| if x.is_sign_negative() { negative } else { positive };
    1 << match x.classify() {
        std::num::FpCategory::Nan => u32::from(x.to_bits() & 0x40_0000 != 0),
        std::num::FpCategory::Infinite => sign(2, 9),
        std::num::FpCategory::Normal => sign(3, 8),
        std::num::FpCategory::Subnormal => sign(4, 7),
        std::num::FpCategory::Zero => sign(5, 6),
    }
}
