//! Fused and separate operations of f32: as a kernel's text has them, and as its machine code does. A
//! compiler that contracts makes fused ones of separate ones.

use std::collections::BTreeMap;

use unisono_gpu::spirv;
use unisono_graph::plan::{Access, Kernel};

use super::assembly::Maker;

/// The number of words in front of a module's first instruction.
const HEADER: usize = 5;
const NO_CONTRACTION: u32 = 42;

/// Returns a kernel with shapes that compilers are known to change where they may: a product and a sum that
/// could be one multiply-add, nested multiply-adds that share a factor, and a sum of sums. No kernel of a
/// plan has them, so it shows what keeps a compiler from changing them.
pub fn shapes() -> Kernel {
    let wgsl = "
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            let i = 8u * id.x;
            let a = x[i]; let b = x[i + 1u]; let c = x[i + 2u]; let n = x[i + 3u];
            y[i] = a * b + c;
            y[i + 1u] = fma(n, a, fma(n, b, c));
            y[i + 2u] = (a * c + (b * n + c * n)) + n;
        }";
    let bindings = vec![Access::Read, Access::ReadWrite];
    Kernel { name: "shapes".to_owned(), wgsl: wgsl.to_owned(), bindings }
}

/// Operations of f32, each component of a vector counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Multiply-adds that round once.
    pub fused: u32,
    /// Products, sums and differences.
    pub separate: u32,
}

impl Arithmetic {
    fn plus(self, other: Self) -> Self {
        Self { fused: self.fused + other.fused, separate: self.separate + other.separate }
    }
}

/// Returns the operations of a kernel's SPIR-V, with those of the functions that it calls as often as it
/// calls them, or `None` if it has a loop: compilers write out as many turns as they like.
///
/// # Errors
/// A text if the kernel is not valid.
pub fn of_kernel(kernel: &Kernel) -> Result<Option<Arithmetic>, String> {
    Ok(of_words(&spirv(kernel, (1, 6)).map_err(|error| error.to_string())?))
}

/// Returns SPIR-V without the decorations that keep compilers from changing float operations.
pub fn undecorated(words: &[u32]) -> Vec<u32> {
    let mut plain = words[..HEADER].to_vec();
    for instruction in instructions(words) {
        let is_decoration = instruction[0] & 0xffff == 71 && instruction.get(2) == Some(&NO_CONTRACTION);
        if !is_decoration {
            plain.extend_from_slice(instruction);
        }
    }
    plain
}

/// Returns the operations of machine code, anywhere in it. AMD's `v_mad_f32` and `v_mac_f32` round a product
/// and then the sum. For GPUs before gfx10.3 Mesa makes these of `fma` as well. Adreno's `mad.f32` counts as
/// such.
pub fn of_machine(assembly: &str) -> Arithmetic {
    let of_line: fn(&str) -> Arithmetic = match Maker::of(assembly) {
        Some(Maker::Nvidia) => |line| by_name(line, &["ffma"], &[], &["fmul", "fadd"]),
        Some(Maker::Adreno) => |line| by_name(line, &[], &["mad.f32"], &["mul.f", "add.f"]),
        Some(Maker::Amd) | None => of_amd,
    };
    assembly.lines().map(of_line).fold(Arithmetic::default(), Arithmetic::plus)
}

/// Counts the instruction of a line by what its name begins with: fused, a product and a sum, and one of
/// both.
fn by_name(line: &str, fused: &[&str], both: &[&str], one: &[&str]) -> Arithmetic {
    let text = line.split_once(" = ").map_or(line, |(_, behind)| behind).trim();
    let repeats = text.split_once("(rpt").and_then(|(_, rest)| rest.split(')').next()?.parse::<u32>().ok());
    let times = 1 + repeats.unwrap_or(0);
    let op = text.split_whitespace().find(|word| !word.starts_with('@') && !word.ends_with(')'));
    let op = op.map_or("", |op| op.rsplit(')').next().unwrap_or_default());
    let is_any = |names: &[&str]| names.iter().any(|name| op.starts_with(name));
    let (fused, both, one) = (is_any(fused), is_any(both), is_any(one));
    Arithmetic {
        fused: times * u32::from(fused),
        separate: times * (2 * u32::from(both) + u32::from(one && !fused && !both)),
    }
}

fn of_amd(line: &str) -> Arithmetic {
    let mut found = Arithmetic::default();
    for half in line.split("::") {
        let op = half.split_whitespace().next().unwrap_or_default();
        let name = op.strip_prefix("v_dual_").or_else(|| op.strip_prefix("v_")).unwrap_or_default();
        let (name, lanes) = name.strip_prefix("pk_").map_or((name, 1), |name| (name, 2));
        let is_any = |names: &[&str]| names.iter().any(|own| name.starts_with(own));
        if is_any(&["fma_f32", "fmac_f32", "fmaak_f32", "fmamk_f32"]) {
            found.fused += lanes;
        } else if is_any(&["mad_f32", "mac_f32", "madak_f32", "madmk_f32"]) {
            found.separate += 2 * lanes;
        } else if is_any(&["mul_f32", "add_f32", "sub_f32", "subrev_f32", "mul_legacy_f32"]) {
            found.separate += lanes;
        }
    }
    found
}

fn of_words(words: &[u32]) -> Option<Arithmetic> {
    // The widths of float types, the functions with their own operations and calls, and the last one is
    // `main`, which is written behind those that it calls.
    let mut widths: BTreeMap<u32, u32> = BTreeMap::new();
    let mut functions: BTreeMap<u32, Arithmetic> = BTreeMap::new();
    let (mut own, mut of, mut last) = (Arithmetic::default(), 0, 0);
    for instruction in instructions(words) {
        let word = |index: usize| instruction.get(index).copied().unwrap_or_default();
        let width = widths.get(&word(1)).copied().unwrap_or(0);
        match instruction[0] & 0xffff {
            22 if word(2) == 32 => _ = widths.insert(word(1), 1),
            23 if widths.get(&word(2)) == Some(&1) => _ = widths.insert(word(1), word(3)),
            // A function begins, calls another one, and ends.
            54 => (own, of) = (Arithmetic::default(), word(2)),
            57 => own = own.plus(functions.get(&word(3)).copied().unwrap_or_default()),
            56 => {
                functions.insert(of, own);
                last = of;
            }
            // A loop.
            246 => return None,
            // Fma of GLSL.std.450; sums, differences, and products, also with one number.
            12 if word(4) == 50 => own.fused += width,
            129 | 131 | 133 | 142 => own.separate += width,
            _ => {}
        }
    }
    functions.get(&last).copied()
}

fn instructions(words: &[u32]) -> impl Iterator<Item = &[u32]> {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let length = (words.get(at)? >> 16).max(1) as usize;
        let instruction = words.get(at..at + length)?;
        at += length;
        Some(instruction)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(formula: &str) -> Kernel {
        let wgsl = format!(
            "@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
             fn twice(x: vec4<f32>) -> vec4<f32> {{ return fma(x, x, x) * 0.3; }}
             @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {{ {formula} }}"
        );
        Kernel { name: "k".into(), wgsl, bindings: vec![Access::ReadWrite] }
    }

    #[test]
    fn operations_are_counted_by_components_and_calls() {
        let found = of_kernel(&kernel("y[i] = twice(twice(y[i])) + y[0];")).unwrap();
        assert_eq!(found, Some(Arithmetic { fused: 8, separate: 12 }));
        let looped = of_kernel(&kernel("for (var j = 0u; j < i; j++) { y[j] += y[i]; }")).unwrap();
        assert_eq!(looped, None);
    }

    #[test]
    fn decorations_are_taken_away_and_nothing_else() {
        let words = spirv(&kernel("y[i] = y[i] + y[0];"), (1, 6)).unwrap();
        let plain = undecorated(&words);
        let count = |words: &[u32], opcode: u32| {
            instructions(words).filter(|own| own[0] & 0xffff == opcode && own.get(2) == Some(&42)).count()
        };
        assert_eq!((count(&words, 71), count(&plain, 71)), (3, 0));
        assert_eq!(words.len() - plain.len(), 9);
    }

    #[test]
    fn machine_code_is_counted_by_its_names() {
        let code = "\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6\n\tv_add_f32_e32 v1, v2, v3\n\
                    \tv_add_nc_u32_e32 v1, v2, v3\n\tv_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]\n";
        assert_eq!(of_machine(code), Arithmetic { fused: 3, separate: 2 });
        let earlier =
            "\tv_mac_f32_e32 v2, v7, v4\n\tv_mad_f32 v1, v4, v5, v6\n\tv_madak_f32 v1, v2, v3, 1.0\n";
        assert_eq!(of_machine(earlier), Arithmetic { fused: 0, separate: 6 });
        let nvidia = "block.u 0 L2 [] -> {\n  r0 = ffma.ftz r1 r2 r3 // delay=1\n  r0 = fmul.ftz r1 r2 // delay=1\n\
                      @!p0  r0 = fadd.ftz r1 r2 // delay=1\n  r1 = iadd3 r1 r2 rZ // delay=1\n} -> []\n";
        assert_eq!(of_machine(nvidia), Arithmetic { fused: 1, separate: 2 });
        let adreno = "Native code for a shader:\n(ss)mad.f32 r4.z, r15.x, r16.x, r4.z\n\
                      (rpt1)mul.f r4.x, (r)r4.x, r5.x\n(nop1) add.f r5.z, r4.z, r1.x\nadd.u r0.x, r0.x, r1.x\n";
        assert_eq!(of_machine(adreno), Arithmetic { fused: 0, separate: 2 + 2 + 1 });
    }
}
