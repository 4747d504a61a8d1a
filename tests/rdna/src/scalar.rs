//! Instructions on scalar registers, as defined in AMD's "RDNA3 Instruction Set Architecture".

/// What a scalar instruction computes from its operands. `scc` is a flag that many instructions set.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// A word from a word.
    One(fn(u32) -> u32),
    /// A word from two words.
    Two(fn(u32, u32) -> u32),
    /// A word from two words, and `scc`.
    TwoSets(fn(u32, u32) -> (u32, bool)),
    /// A double word from one or two double words. `scc` is set unless the result is 0.
    Wide(fn(u64, u64) -> u64),
    /// A copy of a double word.
    WideMove,
    /// A comparison, whose result is `scc`.
    Compares(fn(u32, u32) -> bool),
    /// The first or the second operand, by `scc`. The field is the number of words of each.
    Selects(u16),
    /// A copy of `exec`. Afterwards `exec` changes.
    SavesExec(fn(u64, u64) -> u64),
    /// A new value for the register that is also the first operand. It may set `scc`.
    InPlace(fn(u32, u32) -> (u32, Option<bool>)),
}

/// Returns an instruction by its name.
pub fn named(name: &str) -> Option<Scalar> {
    use Scalar::*;
    let name = name.strip_prefix("s_")?;
    if let Some(compare) = name.strip_prefix("cmp_").or_else(|| name.strip_prefix("cmpk_")) {
        return compared(compare);
    }
    let sets = |of: fn(u32, u32) -> (u32, bool)| Some(TwoSets(of));
    match name {
        "mov_b32" | "movk_i32" => Some(One(|a| a)),
        "mov_b64" => Some(WideMove),
        "not_b64" => Some(Wide(|a, _| !a)),
        "brev_b32" => Some(One(u32::reverse_bits)),
        "add_u32" => sets(u32::overflowing_add),
        "sub_u32" => sets(u32::overflowing_sub),
        "add_i32" => sets(|a, b| signed((a as i32).overflowing_add(b as i32))),
        "sub_i32" => sets(|a, b| signed((a as i32).overflowing_sub(b as i32))),
        "mul_i32" => Some(Two(u32::wrapping_mul)),
        "mul_hi_u32" => Some(Two(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
        "min_u32" => sets(|a, b| (a.min(b), a < b)),
        "max_u32" => sets(|a, b| (a.max(b), a > b)),
        "min_i32" => sets(|a, b| ((a as i32).min(b as i32) as u32, (a as i32) < b as i32)),
        "max_i32" => sets(|a, b| ((a as i32).max(b as i32) as u32, a as i32 > b as i32)),
        "and_b32" => sets(|a, b| nonzero(a & b)),
        "or_b32" => sets(|a, b| nonzero(a | b)),
        "xor_b32" => sets(|a, b| nonzero(a ^ b)),
        "lshl_b32" => sets(|a, b| nonzero(a << (b & 31))),
        "lshr_b32" => sets(|a, b| nonzero(a >> (b & 31))),
        "lshl1_add_u32" => sets(|a, b| shifted(a, b, 1)),
        "lshl2_add_u32" => sets(|a, b| shifted(a, b, 2)),
        "lshl3_add_u32" => sets(|a, b| shifted(a, b, 3)),
        "lshl4_add_u32" => sets(|a, b| shifted(a, b, 4)),
        "bfe_u32" => sets(|a, b| nonzero(a >> (b & 31) & ones(b >> 16 & 127))),
        "bfm_b32" => Some(Two(|a, b| ones(a & 31) << (b & 31))),
        "pack_ll_b32_b16" => Some(Two(|a, b| a & 0xffff | b << 16)),
        "and_b64" => Some(Wide(|a, b| a & b)),
        "or_b64" => Some(Wide(|a, b| a | b)),
        "and_not1_b64" => Some(Wide(|a, b| a & !b)),
        "and_saveexec_b64" => Some(SavesExec(|a, exec| a & exec)),
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
    use Scalar::Compares;
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

/// Returns a word whose lowest `count` bits are ones.
pub fn ones(count: u32) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}
