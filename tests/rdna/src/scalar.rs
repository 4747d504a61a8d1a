//! Instructions on scalar registers, by AMD's "RDNA3 Instruction Set Architecture".

/// An instruction on scalars.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Of one word.
    One(fn(u32) -> u32),
    /// Of one word, with the bit `scc`.
    OneSets(fn(u32) -> u32),
    /// Of two words.
    Two(fn(u32, u32) -> u32),
    /// Of two words, with the bit `scc`.
    TwoSets(fn(u32, u32) -> (u32, bool)),
    /// Of two words and the bit `scc`, which it sets.
    Carries(fn(u32, u32, bool) -> (u32, bool)),
    /// Of one or two double words, which sets `scc` unless the result is 0.
    Wide(fn(u64, u64) -> u64),
    /// Copies a double word.
    WideMove(fn(u64) -> u64),
    /// Compares.
    Compares(fn(u32, u32) -> bool),
    CompareWide(fn(u64, u64) -> bool),
    /// Either of two operands of so many words, as `scc` says.
    Selects(u16),
    /// Keeps `exec` and changes it.
    SavesExec(fn(u64, u64) -> u64),
    /// Changes its result by a constant.
    InPlace(fn(u32, u32) -> (u32, Option<bool>)),
    /// The number of a bit of a double word.
    WideBit(fn(u64) -> u32),
}

/// Returns an instruction by its name.
pub fn named(name: &str) -> Option<Scalar> {
    use Scalar::*;
    let name = name.strip_prefix("s_")?;
    if let Some(compare) = name.strip_prefix("cmp_").or_else(|| name.strip_prefix("cmpk_")) {
        return compared(compare);
    }
    if let Some(op) = name.strip_suffix("_saveexec_b64") {
        return Some(SavesExec(match op {
            "and" => |a, exec| a & exec,
            "or" => |a, exec| a | exec,
            "xor" => |a, exec| a ^ exec,
            "and_not1" => |a, exec| a & !exec,
            "and_not0" => |a, exec| !a & exec,
            "or_not1" => |a, exec| a | !exec,
            "or_not0" => |a, exec| !a | exec,
            _ => return None,
        }));
    }
    let sets = |of: fn(u32, u32) -> (u32, bool)| Some(TwoSets(of));
    match name {
        "mov_b32" | "movk_i32" => Some(One(|a| a)),
        "mov_b64" => Some(WideMove(|a| a)),
        "not_b32" => Some(OneSets(|a| !a)),
        "not_b64" => Some(Wide(|a, _| !a)),
        "brev_b32" => Some(One(u32::reverse_bits)),
        "ctz_i32_b32" => Some(One(|a| if a == 0 { u32::MAX } else { a.trailing_zeros() })),
        "clz_i32_u32" => Some(One(|a| if a == 0 { u32::MAX } else { a.leading_zeros() })),
        "ctz_i32_b64" => Some(WideBit(|a| if a == 0 { u32::MAX } else { a.trailing_zeros() })),
        "bcnt1_i32_b32" => Some(OneSets(u32::count_ones)),
        "abs_i32" => Some(OneSets(|a| (a as i32).unsigned_abs())),
        "sext_i32_i16" => Some(One(|a| a as i16 as i32 as u32)),
        "add_u32" => sets(u32::overflowing_add),
        "sub_u32" => sets(u32::overflowing_sub),
        "add_i32" => sets(|a, b| signed((a as i32).overflowing_add(b as i32))),
        "sub_i32" => sets(|a, b| signed((a as i32).overflowing_sub(b as i32))),
        "addc_u32" => Some(Carries(|a, b, carry| {
            let sum = u64::from(a) + u64::from(b) + u64::from(carry);
            (sum as u32, sum >> 32 != 0)
        })),
        "subb_u32" => Some(Carries(|a, b, carry| {
            let rest = i64::from(a) - i64::from(b) - i64::from(carry);
            (rest as u32, rest < 0)
        })),
        "mul_i32" => Some(Two(u32::wrapping_mul)),
        "mul_hi_u32" => Some(Two(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
        "mul_hi_i32" => Some(Two(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)),
        "min_u32" => sets(|a, b| (a.min(b), a < b)),
        "max_u32" => sets(|a, b| (a.max(b), a > b)),
        "min_i32" => sets(|a, b| ((a as i32).min(b as i32) as u32, (a as i32) < b as i32)),
        "max_i32" => sets(|a, b| ((a as i32).max(b as i32) as u32, a as i32 > b as i32)),
        "and_b32" => sets(|a, b| nonzero(a & b)),
        "or_b32" => sets(|a, b| nonzero(a | b)),
        "xor_b32" => sets(|a, b| nonzero(a ^ b)),
        "and_not1_b32" => sets(|a, b| nonzero(a & !b)),
        "or_not1_b32" => sets(|a, b| nonzero(a | !b)),
        "lshl_b32" => sets(|a, b| nonzero(a << (b & 31))),
        "lshr_b32" => sets(|a, b| nonzero(a >> (b & 31))),
        "ashr_i32" => sets(|a, b| nonzero((a as i32 >> (b & 31)) as u32)),
        "lshl1_add_u32" => sets(|a, b| shifted(a, b, 1)),
        "lshl2_add_u32" => sets(|a, b| shifted(a, b, 2)),
        "lshl3_add_u32" => sets(|a, b| shifted(a, b, 3)),
        "lshl4_add_u32" => sets(|a, b| shifted(a, b, 4)),
        "bfe_u32" => sets(|a, b| nonzero(a >> (b & 31) & ones(b >> 16 & 127))),
        "bfe_i32" => sets(|a, b| {
            let width = (b >> 16 & 127).min(32);
            let rest = 32 - width;
            let field = (a >> (b & 31)) << (rest & 31);
            nonzero(if width == 0 { 0 } else { (field as i32 >> rest) as u32 })
        }),
        "bfm_b32" => Some(Two(|a, b| ones(a & 31) << (b & 31))),
        "pack_ll_b32_b16" => Some(Two(|a, b| a & 0xffff | b << 16)),
        "and_b64" => Some(Wide(|a, b| a & b)),
        "or_b64" => Some(Wide(|a, b| a | b)),
        "xor_b64" => Some(Wide(|a, b| a ^ b)),
        "and_not1_b64" => Some(Wide(|a, b| a & !b)),
        "or_not1_b64" => Some(Wide(|a, b| a | !b)),
        "lshl_b64" => Some(Wide(|a, b| a << (b & 63))),
        "lshr_b64" => Some(Wide(|a, b| a >> (b & 63))),
        "cselect_b32" => Some(Selects(1)),
        "cselect_b64" => Some(Selects(2)),
        "addk_i32" => Some(InPlace(|a, b| {
            let (sum, overflows) = (a as i32).overflowing_add(b as i32);
            (sum as u32, Some(overflows))
        })),
        "mulk_i32" => Some(InPlace(|a, b| (a.wrapping_mul(b), None))),
        _ => None,
    }
}

/// Returns a comparison by its name without the prefix.
fn compared(name: &str) -> Option<Scalar> {
    use Scalar::{CompareWide, Compares};
    Some(match name {
        "eq_u32" | "eq_i32" => Compares(|a, b| a == b),
        "lg_u32" | "lg_i32" => Compares(|a, b| a != b),
        "lt_u32" => Compares(|a, b| a < b),
        "le_u32" => Compares(|a, b| a <= b),
        "gt_u32" => Compares(|a, b| a > b),
        "ge_u32" => Compares(|a, b| a >= b),
        "lt_i32" => Compares(|a, b| (a as i32) < b as i32),
        "le_i32" => Compares(|a, b| a as i32 <= b as i32),
        "gt_i32" => Compares(|a, b| a as i32 > b as i32),
        "ge_i32" => Compares(|a, b| a as i32 >= b as i32),
        "eq_u64" => CompareWide(|a, b| a == b),
        "lg_u64" => CompareWide(|a, b| a != b),
        _ => return None,
    })
}

fn nonzero(word: u32) -> (u32, bool) {
    (word, word != 0)
}

fn signed((word, overflows): (i32, bool)) -> (u32, bool) {
    (word as u32, overflows)
}

fn shifted(a: u32, b: u32, by: u32) -> (u32, bool) {
    let sum = (u64::from(a) << by) + u64::from(b);
    (sum as u32, sum >> 32 != 0)
}

/// Returns a word whose last bits are ones.
pub fn ones(count: u32) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}
