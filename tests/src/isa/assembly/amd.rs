//! AMD machine code, as Mesa's RADV writes it.

use std::collections::BTreeSet;

use super::{Block, Mix};

/// Adds an instruction.
fn add(mix: &mut Mix, line: &str) {
    let op = line.split_whitespace().next().unwrap_or_default();
    let is_hint = ["s_delay", "s_clause", "s_nop", "s_inst_prefetch"].iter().any(|hint| op.starts_with(hint));
    mix.instructions += u32::from(!is_hint);
    let fmas = multiply_adds(line);
    mix.fmas += fmas;
    mix.fma_instructions += u32::from(fmas > 0);
    mix.barriers += u32::from(op.starts_with("s_barrier"));
    mix.matrices += u32::from(op.starts_with("v_wmma") || op.starts_with("v_swmmac"));
    let is_load = ["ds_load", "ds_read", "buffer_load", "global_load", "flat_load"];
    let is_load = is_load.iter().any(|load| op.starts_with(load));
    mix.wide_loads += u32::from(is_load && loaded_bytes(op) == 16);
    if op.starts_with("ds_load") || op.starts_with("ds_read") {
        mix.workgroup_bytes += loaded_bytes(op);
    } else if ["buffer_load", "global_load", "flat_load"].iter().any(|load| op.starts_with(load)) {
        mix.global_bytes += loaded_bytes(op);
    }
}

/// Returns the number of multiply-adds of f32 in an instruction.
fn multiply_adds(line: &str) -> u32 {
    let part = |part: &str| {
        let op = part.split_whitespace().next().unwrap_or_default();
        let name = op.strip_prefix("v_dual_").or_else(|| op.strip_prefix("v_"));
        let is_single = |name: &str| {
            [
                "fma_f32",
                "fmac_f32",
                "fmaak_f32",
                "fmamk_f32",
                "mad_f32",
                "mac_f32",
                "fmac_legacy",
                "mac_legacy",
            ]
            .iter()
            .any(|fma| name.starts_with(fma))
        };
        match name {
            Some(name) if name.starts_with("pk_fma_f32") => 2,
            Some(name) if is_single(name) => 1,
            _ => 0,
        }
    };
    line.split("::").map(|half| part(half.trim())).sum()
}

/// Returns the bytes that a load brings to a lane, by its name: `ds_load_b128`, `ds_read2_b64`,
/// `buffer_load_dwordx4`, `global_load_ushort`.
fn loaded_bytes(op: &str) -> u32 {
    let twice = if op.contains("read2") || op.contains("load_2addr") { 2 } else { 1 };
    let digits = |at: &str| -> u32 {
        let behind = op.rsplit_once(at).map_or("", |(_, behind)| behind);
        behind.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    if op.contains("dwordx") {
        return 4 * digits("dwordx");
    }
    if op.contains("dword") {
        return 4;
    }
    if op.contains("short") || op.contains("16") {
        return 2;
    }
    if op.contains("byte") || op.ends_with("_u8") || op.ends_with("_i8") {
        return 1;
    }
    twice * digits("_b") / 8
}

/// Returns the blocks of each loop, given the jumps between blocks: all from a block to a jump back to it.
pub fn loops(jumps: &[(usize, usize)]) -> Vec<BTreeSet<usize>> {
    let back = jumps.iter().filter(|(from, to)| to <= from);
    let mut ranges: Vec<(usize, usize)> = back.map(|&(from, to)| (to, from)).collect();
    ranges.sort_unstable();
    // The test of an inner loop may stand where the outer one jumps back: its body is behind that jump.
    for at in (0..ranges.len()).rev() {
        let (first, last) = ranges[at];
        let behind = ranges.iter().filter(|(a, b)| (first + 1..=last).contains(a) && *b > last);
        ranges[at].1 = behind.map(|(_, b)| *b).max().unwrap_or(last);
    }
    ranges.into_iter().map(|(first, last)| (first..=last).collect()).collect()
}

/// Returns the basic blocks.
pub fn blocks(assembly: &str) -> Vec<Block> {
    let mut blocks = vec![Block { name: "start".to_owned(), falls: true, ..Block::default() }];
    for line in assembly.lines().map(str::trim) {
        let label = line.split_once(':').map(|(label, _)| label).filter(|label| {
            label.strip_prefix("BB").is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()))
        });
        if let Some(label) = label {
            blocks.push(Block { name: label.to_owned(), falls: true, ..Block::default() });
        } else if line.starts_with(|c: char| c.is_ascii_lowercase())
            && let Some(block) = blocks.last_mut()
        {
            add(&mut block.mix, line);
            if line.starts_with("s_branch") || line.starts_with("s_cbranch") {
                block.to.extend(line.split_whitespace().nth(1).map(str::to_owned));
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::{loops, main_loop};
    use super::*;

    const CODE: &str = "BB0:
\ts_load_b128 s[0:3], s[0:1], null                           ; f4080000
BB1:
\tbuffer_load_b128 v[0:3], v4, s[0:3], 0 offen              ; e05c0000
\ts_waitcnt vmcnt(0)                                         ; bf8903f7
\tds_store_b128 v5, v[0:3]                                   ; db7c0000
\ts_barrier                                                  ; bfbd0000
BB2:
\tds_load_b128 v[8:11], v6 offset:16                         ; dbfc0010
\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6   ; c8000000
\tv_fmac_f32_e32 v7, v8, v9                                  ; 560e1308
\ts_delay_alu instid0(VALU_DEP_1)                            ; bf870001
\ts_cbranch_scc1 BB2                                         ; bfa20001
BB3:
\ts_cbranch_scc0 BB1                                         ; bfa10001
BB4:
\ts_endpgm                                                   ; bfb00000
";

    #[test]
    fn loops_are_found_by_their_jumps() {
        let found = loops(CODE);
        assert_eq!(found.iter().map(|l| l.is_innermost).collect::<Vec<_>>(), [false, true]);
        let inner = found[1].mix;
        assert_eq!((inner.instructions, inner.fma_instructions, inner.fmas), (4, 2, 3));
        assert_eq!((inner.workgroup_bytes, inner.global_bytes), (16, 0));
        let outer = main_loop(CODE);
        assert_eq!((outer.barriers, outer.global_bytes, outer.instructions), (1, 16, 9));
    }

    #[test]
    fn loads_say_their_bytes() {
        let cases = [
            ("ds_read2_b64", 16),
            ("ds_load_2addr_b32", 8),
            ("ds_load_b96", 12),
            ("buffer_load_dwordx4", 16),
            ("buffer_load_dword", 4),
            ("buffer_load_b64", 8),
            ("buffer_load_ushort", 2),
            ("buffer_load_d16_b16", 2),
        ];
        for (op, bytes) in cases {
            assert_eq!(loaded_bytes(op), bytes, "{op}");
        }
    }
}
