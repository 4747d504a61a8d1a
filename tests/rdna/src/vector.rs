//! Instructions on vector registers, as defined in AMD's "RDNA3 Instruction Set Architecture".

use crate::scalar::ones;

/// What a vector instruction computes from its operands in each lane. The mode decides whether floats are
/// flushed; words never are.
#[derive(Clone, Copy, Debug)]
pub enum Vector {
    /// A float from a float.
    Float1(fn(f32) -> f32),
    /// An approximation of a function. The hardware is off by less than a unit in the last place.
    Rough(fn(f64) -> f64),
    /// A float from two floats.
    Float2(fn(f32, f32) -> f32),
    /// A float from three floats.
    Float3(fn(f32, f32, f32) -> f32),
    /// The product of two floats, added to what the result's register contains.
    MultiplyAdd,
    /// An integer from a float.
    FromFloat(fn(f32) -> u32),
    /// A float from an integer.
    ToFloat(fn(u32) -> f32),
    /// A word from a word.
    Word1(fn(u32) -> u32),
    /// A word from two words.
    Word2(fn(u32, u32) -> u32),
    /// The sum or the difference of two words. With `clamp` it becomes the second field where it would wrap.
    Sum(fn(u32, u32) -> (u32, bool), u32),
    /// A word from three words.
    Word3(fn(u32, u32, u32) -> u32),
    /// A double word, shifted by a word.
    Shift(fn(u32, u64) -> u64),
    /// A word from two words, with a carry bit for each lane. `reads`: the carry is an operand, too.
    Carries { reads: bool, of: fn(u32, u32, u32) -> (u32, bool) },
    /// A comparison of floats, whose result is a bit for each lane.
    CompareFloats { sets_exec: bool, of: fn(f32, f32) -> bool },
    /// A comparison of unsigned integers.
    CompareWords { sets_exec: bool, of: fn(u32, u32) -> bool },
    /// A comparison of signed integers.
    CompareSigned { sets_exec: bool, of: fn(i32, i32) -> bool },
    /// The first or the second word, by a bit for each lane.
    Selects,
    /// Exchanges two registers.
    Swaps,
    /// The word of the first active lane, as a scalar.
    FirstLane,
}

impl Vector {
    /// Returns the number of operands.
    pub fn operands(self) -> usize {
        match self {
            Self::CompareFloats { sets_exec, .. }
            | Self::CompareWords { sets_exec, .. }
            | Self::CompareSigned { sets_exec, .. } => 3 - usize::from(sets_exec),
            Self::Float1(_) | Self::Rough(_) | Self::FromFloat(_) | Self::ToFloat(_) | Self::Word1(_) => 2,
            Self::Swaps | Self::FirstLane => 2,
            Self::Float2(_) | Self::MultiplyAdd | Self::Word2(_) | Self::Sum(..) | Self::Shift(_) => 3,
            Self::Float3(_) | Self::Word3(_) | Self::Selects => 4,
            Self::Carries { reads, .. } => 4 + usize::from(reads),
        }
    }
}

/// Returns an instruction by its name.
pub fn named(name: &str) -> Option<Vector> {
    use Vector::*;
    let name = name.strip_prefix("v_")?;
    let name = name.strip_suffix("_e32").or_else(|| name.strip_suffix("_e64")).unwrap_or(name);
    let compared = |name: &str, sets_exec| match name.rsplit_once('_')? {
        (op, "f32") => test(op).map(|of| CompareFloats { sets_exec, of }),
        (op, "u32") => test(op).map(|of| CompareWords { sets_exec, of }),
        (op, "i32") => test(op).map(|of| CompareSigned { sets_exec, of }),
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
        "mul_f32" => Float2(|a, b| a * b),
        "fma_f32" | "fmaak_f32" | "fmamk_f32" => Float3(f32::mul_add),
        "fmac_f32" => MultiplyAdd,
        "med3_f32" => Float3(|a, b, c| match a.is_nan() || b.is_nan() || c.is_nan() {
            true => least(least(a, b), c),
            false => greatest(least(a, b), least(greatest(a, b), c)),
        }),
        "rndne_f32" => Float1(f32::round_ties_even),
        "floor_f32" => Float1(f32::floor),
        "trunc_f32" => Float1(f32::trunc),
        "rcp_f32" => Rough(|x| 1.0 / x),
        "rsq_f32" => Rough(|x| 1.0 / x.sqrt()),
        // `as` truncates and saturates, as the instructions do.
        "cvt_i32_f32" => FromFloat(|x| x as i32 as u32),
        "cvt_u32_f32" => FromFloat(|x| x as u32),
        "cvt_f32_i32" => ToFloat(|word| word as i32 as f32),
        "cvt_f32_u32" => ToFloat(|word| word as f32),
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
        "add_nc_u32" => Sum(u32::overflowing_add, u32::MAX),
        "sub_nc_u32" => Sum(u32::overflowing_sub, 0),
        "subrev_nc_u32" => Sum(|a, b| b.overflowing_sub(a), 0),
        "mul_lo_u32" => Word2(u32::wrapping_mul),
        "mul_hi_u32" => Word2(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul_u32_u24" => Word2(|a, b| (a & LOW).wrapping_mul(b & LOW)),
        "mad_u32_u24" => Word3(|a, b, c| (a & LOW).wrapping_mul(b & LOW).wrapping_add(c)),
        "mad_i32_i24" => Word3(|a, b, c| (low(a).wrapping_mul(low(b)) as u32).wrapping_add(c)),
        "min_u32" => Word2(u32::min),
        "max_u32" => Word2(u32::max),
        "min_i32" => Word2(|a, b| (a as i32).min(b as i32) as u32),
        "max_i32" => Word2(|a, b| (a as i32).max(b as i32) as u32),
        "med3_u32" => Word3(|a, b, c| a.min(b).max(a.max(b).min(c))),
        "max3_u32" => Word3(|a, b, c| a.max(b).max(c)),
        "and_b32" => Word2(|a, b| a & b),
        "or_b32" => Word2(|a, b| a | b),
        "xor_b32" => Word2(|a, b| a ^ b),
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
        "lshrrev_b64" => Shift(|by, word| word >> (by & 63)),
        "sub_co_u32" => Carries { reads: false, of: |a, b, _| a.overflowing_sub(b) },
        "add_co_ci_u32" => Carries {
            reads: true,
            of: |a, b, carry| {
                let sum = u64::from(a) + u64::from(b) + u64::from(carry);
                (sum as u32, sum >> 32 != 0)
            },
        },
        "subrev_co_ci_u32" => Carries { reads: true, of: |a, b, carry| borrowed(b, a, carry) },
        "cndmask_b32" => Selects,
        "swap_b32" => Swaps,
        "readfirstlane_b32" => FirstLane,
        _ => return None,
    })
}

/// Returns the lowest 24 bits as a signed integer.
fn low(word: u32) -> i32 {
    (word << 8) as i32 >> 8
}

fn borrowed(a: u32, b: u32, carry: u32) -> (u32, bool) {
    let rest = i64::from(a) - i64::from(b) - i64::from(carry);
    (rest as u32, rest < 0)
}

/// Returns a comparison by its name.
fn test<T: PartialOrd>(op: &str) -> Option<fn(T, T) -> bool> {
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

/// Returns the lesser of two floats. -0 is less than +0. If one is a NaN, returns the other.
fn least(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    }
}

/// Returns the greater of two floats, with the rules of [`least`].
fn greatest(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        _ => a.max(b),
    }
}
