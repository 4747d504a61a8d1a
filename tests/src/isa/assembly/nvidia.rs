//! NVIDIA machine code, as Mesa's NVK writes it: blocks in braces with the numbers of those before and after
//! them. It is what NVK compiles, not what NVIDIA's own driver does.

use super::{Block, Mix};

/// Returns the basic blocks. Each names all that may follow it.
pub fn blocks(assembly: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in assembly.lines().map(str::trim) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first == "block" || first.starts_with("block.") {
            let name = words.next().unwrap_or_default().to_owned();
            blocks.push(Block { name, ..Block::default() });
        } else if let Some(block) = blocks.last_mut() {
            match line.strip_prefix("} -> [") {
                Some(after) => {
                    let names = after.trim_end_matches(']').split(',').map(str::trim);
                    block.to.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
                }
                None => add(&mut block.mix, line),
            }
        }
    }
    blocks
}

/// Adds an instruction: `@!p0 r0..4 = ld.global.b128 [r4..6] // delay=2`, where predicate and results may be
/// missing.
fn add(mix: &mut Mix, line: &str) {
    let text = line.split("//").next().unwrap_or_default();
    let text = text.split_once(" = ").map_or(text, |(_, behind)| behind);
    let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
    let Some(op) = words.next().filter(|op| *op != "nop" && *op != "{" && *op != "}") else { return };
    mix.instructions += 1;
    if op.starts_with("ffma") {
        mix.fmas += 1;
        mix.fma_instructions += 1;
    }
    mix.matrices += u32::from(op.starts_with("hmma"));
    mix.barriers += u32::from(op.starts_with("bar.sync"));
    let bytes = loaded_bytes(op);
    mix.wide_loads += u32::from(bytes == 16);
    if op.starts_with("ld.shared") || op.starts_with("ldsm") {
        mix.workgroup_bytes += bytes;
    } else if op.starts_with("ld.global") {
        mix.global_bytes += bytes;
    }
}

/// Returns the bytes that a load brings to a lane, by its name: `ld.shared.strong.cta.b128`, `ldsm.m8n8.x4`,
/// which brings as many registers of four bytes. Constants are loaded for a whole warp and do not count.
fn loaded_bytes(op: &str) -> u32 {
    let number = |part: &str, mark: &[char]| part.strip_prefix(mark)?.parse::<u32>().ok();
    let parts = || op.split('.').skip(1);
    if op.starts_with("ldsm") {
        return 4 * parts().find_map(|part| number(part, &['x'])).unwrap_or(1);
    }
    if !op.starts_with("ld.") {
        return 0;
    }
    parts().filter_map(|part| number(part, &['b', 'u', 'i', 's'])).last().unwrap_or(0) / 8
}

#[cfg(test)]
mod tests {
    use super::super::{Maker, loops, main_loop, whole};
    use super::*;

    /// As NVK of Mesa 26.1 writes a product's loops: what is behind them comes before their bodies.
    const CODE: &str = "block.u 0 L2 [] -> {
      b0     = bclear                                       // delay=1
               nop L0                                       // delay=1
      ur0    = ldc.b32 c[0x1][+0x0]                         // delay=1 wr:0
} -> [1]
block.u 1 L1 [0, 4] -> {
      up0    = isetp.ge.u32 ur3 ur4                         // delay=9 wt=000010
               bra !up0 L70                                 // delay=1 wt=000001
} -> [2, 3]
block.u 2 L5 [1] -> {
               st.global.a64.strong.gpu.b32 [r20..22] r2    // delay=1 rd:0
               exit                                         // delay=1
} -> []
block.u 3 L70 [1] -> {
               bar.sync                                     // delay=6 yld
               nop                                          // delay=2
      r0..4  = ld.global.a64.constant.b128 [r24..26], pT    // delay=2 wr:0
               st.shared.strong.cta.b128 [r20] r0..4        // delay=2 wt=000001 rd:0
@!p0           bra pT L71                                   // delay=1
} -> [5]
block.u 4 L75 [5] -> {
      ur3    = iadd3 ur3 0x1 rZ                             // delay=1
               bra pT L1                                    // delay=1
} -> [1]
block.u 5 L71 [3, 6] -> {
      up0    = isetp.ge.u32 ur4 ur2                         // delay=9
               bra !up0 L76                                 // delay=1 wt=000001
} -> [6, 4]
block.u 6 L76 [5] -> {
      r4..8  = ld.shared.strong.cta.b128 [r0.x4], pT        // delay=2 wr:0
      r19    = ffma.ftz r1 r4 r19                           // delay=1 wt=000001
      r18    = ffma.ftz r1 r5 r18                           // delay=1
               bra pT L71                                   // delay=1
} -> [5]
";

    #[test]
    fn loops_are_found_by_the_blocks_that_follow() {
        assert_eq!(Maker::of(CODE), Some(Maker::Nvidia));
        let found = loops(CODE);
        assert_eq!(found.iter().map(|l| l.is_innermost).collect::<Vec<_>>(), [false, true]);
        let inner = found[1].mix;
        assert_eq!((inner.instructions, inner.fmas, inner.fma_instructions), (6, 2, 2));
        assert_eq!((inner.workgroup_bytes, inner.global_bytes, inner.wide_loads), (16, 0, 1));
        // Without block 2, which is behind the loop.
        let outer = main_loop(CODE);
        assert_eq!((outer.instructions, outer.barriers, outer.global_bytes), (14, 1, 16));
        assert_eq!(whole(CODE).instructions, 14 + 2 + 2);
    }

    #[test]
    fn loads_say_their_bytes() {
        let cases = [
            ("ld.global.a64.constant.b128", 16),
            ("ld.shared.strong.cta.b32", 4),
            ("ld.global.a64.strong.gpu.u16", 2),
            ("ldsm.m8n8.x4", 16),
            ("ldc.b32", 0),
            ("st.global.a64.strong.gpu.b32", 0),
        ];
        for (op, bytes) in cases {
            assert_eq!(loaded_bytes(op), bytes, "{op}");
        }
    }

    #[test]
    fn matrix_products_count() {
        let mut mix = Mix::default();
        add(&mut mix, "r0..4 = hmma.m16n8k16.f32 r4..8 r8..10 r0..4 // delay=2");
        assert_eq!((mix.matrices, mix.instructions, mix.fmas), (1, 1, 0));
    }
}
