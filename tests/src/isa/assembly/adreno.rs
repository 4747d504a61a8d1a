//! Machine code of Qualcomm's Adreno GPUs, as Mesa's Turnip writes it.

use super::{Block, Mix};

/// Returns the basic blocks.
pub fn blocks(assembly: &str) -> Vec<Block> {
    let new = |name: &str| Block { name: name.to_owned(), falls: true, ..Block::default() };
    let mut blocks = vec![new("start")];
    for line in assembly.lines().map(str::trim) {
        if let Some(label) = label(line) {
            blocks.push(new(label));
            continue;
        }
        let Some((op, repeats)) = instruction(line) else { continue };
        let at = blocks.len() - 1;
        add(&mut blocks[at].mix, op, line, repeats);
        if let Some((_, to)) =
            line.split_once('#').filter(|_| !op.starts_with("sam") && !op.starts_with("isam"))
        {
            blocks[at].to.push(to.split_whitespace().next().unwrap_or_default().to_owned());
            blocks[at].falls = op != "jump";
            // What follows a jump is a block of its own, without a label.
            blocks.push(new(""));
        }
    }
    blocks
}

/// Returns the label of a line such as `l29:`.
fn label(line: &str) -> Option<&str> {
    let label = line.strip_suffix(':')?;
    label.strip_prefix('l').filter(|number| number.chars().all(|c| c.is_ascii_digit())).map(|_| label)
}

/// Returns the name of an instruction such as `(ss)(rpt1)mad.f32 r4.x, ...` and how often it is executed, or
/// `None` if a line has none.
fn instruction(line: &str) -> Option<(&str, u32)> {
    let (mut rest, mut repeats) = (line, 1);
    while let Some((flag, behind)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        if let Some(more) = flag.strip_prefix("rpt") {
            repeats = 1 + more.parse::<u32>().ok()?;
        }
        rest = behind.trim_start();
    }
    let op = rest.split_whitespace().next()?;
    // Besides, there is a heading, constants that begin with `@`, and comments.
    let is_op = op.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c));
    (is_op && op.starts_with(|c: char| c.is_ascii_lowercase())).then_some((op, repeats))
}

fn add(mix: &mut Mix, op: &str, line: &str, repeats: u32) {
    // `end` is behind the last one, and what pads the code behind it does nothing.
    if op == "nop" {
        return;
    }
    mix.instructions += repeats;
    if op.starts_with("mad.f32") {
        mix.fmas += repeats;
        mix.fma_instructions += repeats;
    }
    mix.barriers += u32::from(op == "bar" || op.starts_with("bar."));
    let bytes = loaded_bytes(op, line);
    mix.wide_loads += u32::from(bytes == 16);
    if op.starts_with("ldl.") || op.starts_with("ldlw.") {
        mix.workgroup_bytes += bytes;
    } else {
        mix.global_bytes += bytes;
    }
}

/// Returns the bytes that a load brings to a lane: `ldl.u32 r0.x, l[r1.x], 4`, which loads four numbers,
/// `isam.v.base0 (u32)(xyzw)r0.x, ...`, or `ldib.b.untyped.1d.u32.4.imm.base0 ...`. Constants are loaded once
/// for many lanes and do not count.
fn loaded_bytes(op: &str, line: &str) -> u32 {
    let width = |name: &str| match name.get(1..) {
        Some("32") => Some(4),
        Some("16") => Some(2),
        Some("8") => Some(1),
        _ => None,
    };
    let count = |text: Option<&str>| text.and_then(|count| count.trim().parse::<u32>().ok()).unwrap_or(1);
    let first = op.split('.').next().unwrap_or_default();
    match first {
        "ldl" | "ldlw" | "ldg" => op.split('.').find_map(width).unwrap_or(0) * count(line.rsplit(',').next()),
        "ldib" => {
            let mut parts = op.split('.').skip_while(|part| width(part).is_none());
            parts.next().and_then(width).unwrap_or(0) * count(parts.next())
        }
        "isam" => {
            let flags = || line.split('(').skip(1).filter_map(|part| part.split(')').next());
            let lanes = flags().find(|flag| !flag.is_empty() && flag.chars().all(|c| "xyzw".contains(c)));
            flags().find_map(width).unwrap_or(4) * lanes.map_or(1, |lanes| lanes.len() as u32)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Maker, loops, main_loop};
    use super::*;

    /// As Turnip of Mesa 26.1 writes a product's loops.
    const CODE: &str = "Native code for unnamed CL shader (null) with blake3 f2:
; num_ubos:           0
@const(c8.x)\t0x00001000, 0x00001010, 0x00001020, 0x00001030
shps #l9
(sy)(ss)shpe
l9:
(jp)add.u r48.x, r48.x, c1.x
l29:
cmps.u.ge up0.x, r48.w, c4.x
(ss)br p0.x, #l98
(sy)(ss)(rpt1)nop
bar.g
(rpt3)add.u r5.z, (r)c8.x, r5.y
isam.v.base0 (u32)(xyzw)r6.z, r5.x, s#0, t#1
(sy)stl.u32 l[r5.y], r6.z, 4
bar.g
l65:
cmps.u.ge up0.x, r49.y, c4.y
(ss)br p0.x, #l96
ldl.u32 r15.x, l[r14.z], 4
(ss)mad.f32 r4.z, r15.x, r16.x, (last)r4.z
(rpt1)mad.f32 r4.x, (last)r15.x, (r)r16.z, (r)(last)r4.x
jump #l65
l96:
add.u r48.w, r48.w, 1
jump #l29
l98:
stib.b.untyped.1d.u32.4.imm.base0 r5.z, r0.w, 5
end
; CL prog 18/1: 295 instr, 58 nops
";

    #[test]
    fn loops_are_found_by_their_jumps() {
        assert_eq!(Maker::of(CODE), Some(Maker::Adreno));
        let found = loops(CODE);
        assert_eq!(found.iter().map(|l| l.is_innermost).collect::<Vec<_>>(), [false, true]);
        let inner = found[1].mix;
        assert_eq!((inner.instructions, inner.fmas, inner.fma_instructions), (7, 3, 3));
        assert_eq!((inner.workgroup_bytes, inner.global_bytes), (16, 0));
        let outer = main_loop(CODE);
        assert_eq!((outer.instructions, outer.barriers, outer.global_bytes), (2 + 8 + 7 + 2, 2, 16));
    }

    #[test]
    fn loads_say_their_bytes() {
        for (line, bytes) in [
            ("ldl.u32 r15.x, l[r14.z], 4", 16),
            ("ldl.u16 hr0.x, l[r14.z], 1", 2),
            ("isam.v.base0 (u32)(xyzw)r6.z, r5.x, s#0, t#1", 16),
            ("isam.base0 (u32)(x)r6.z, r5.x, s#0, t#1", 4),
            ("isam.base0 (u16)(xy)hr6.z, r5.x, s#0, t#1", 4),
            ("ldib.b.untyped.1d.u32.4.imm.base0 r13.x, r0.w+12, 5", 16),
            ("ldg.u32 r0.x, g[r1.x], 2", 8),
            ("ldc.4.k.imm.base0 c[a1.x], 0, 0", 0),
        ] {
            let (op, _) = instruction(line).unwrap();
            assert_eq!(loaded_bytes(op, line), bytes, "{line}");
        }
    }
}
