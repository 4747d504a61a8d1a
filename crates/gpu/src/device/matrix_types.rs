//! The numbers of cooperative matrices that are loaded from eights of f16.
//!
//! Kernels keep eight f16 in a `vec4<u32>` of workgroup memory, because that makes drivers load 16 bytes at a
//! time. SPIR-V allows matrices to be loaded from there. naga 30 takes the numbers of a matrix for those of
//! the memory, and not for those that the text names. No kernel has matrices of integers, so every such
//! matrix is one of f16.

use super::spirv::{HEADER, instructions};

const CAPABILITY: u32 = 17;
const TYPE_INT: u32 = 21;
const TYPE_FLOAT: u32 = 22;
const TYPE_MATRIX: u32 = 4456;

/// Half-precision floats, as OpCapability names them.
const FLOAT16: u32 = 9;

/// Returns a module whose matrices of integers are matrices of f16. A module without any is returned as it
/// is.
pub(super) fn of_halves(words: Vec<u32>) -> Vec<u32> {
    let of =
        |wanted: u32| instructions(&words).filter(move |(_, opcode)| *opcode == wanted).map(|(at, _)| at);
    let integers: Vec<u32> = of(TYPE_INT).map(|at| words[at + 1]).collect();
    let is_of_integers = |at: usize| integers.contains(&words[at + 2]);
    if !of(TYPE_MATRIX).any(is_of_integers) {
        return words;
    }
    let known = of(TYPE_FLOAT).find(|at| words[at + 2] == 16);
    let half = known.map_or(words[3], |at| words[at + 1]);
    let is_capable = of(CAPABILITY).any(|at| words[at + 1] == FLOAT16);
    let types = instructions(&words).find(|(_, opcode)| (19..=39).contains(opcode)).map(|(at, _)| at);
    let mut new = words[..HEADER].to_vec();
    new[3] += u32::from(known.is_none());
    if !is_capable {
        new.extend([2 << 16 | CAPABILITY, FLOAT16]);
    }
    for (at, opcode) in instructions(&words) {
        // The type stands in front of all others, and so of the matrices.
        if Some(at) == types {
            new.extend([3 << 16 | TYPE_FLOAT, half, 16]);
        }
        if Some(at) == known {
            continue;
        }
        let length = (words[at] >> 16).max(1) as usize;
        let first = new.len();
        new.extend_from_slice(&words[at..(at + length).min(words.len())]);
        if opcode == TYPE_MATRIX && is_of_integers(at) {
            new[first + 2] = half;
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::{Access, Kernel};

    use super::*;
    use crate::spirv;

    /// Returns a kernel that multiplies a matrix from memory of the first kind by one from memory of the
    /// second.
    fn module(kinds: [&str; 2]) -> Vec<u32> {
        let wgsl = format!(
            "enable f16;
            enable wgpu_cooperative_matrix;
            @group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
            var<workgroup> a: array<{}, 32>;
            var<workgroup> b: array<{}, 32>;
            var<workgroup> z: array<vec4<f32>, 32>;
            @compute @workgroup_size(32)
            fn main(@builtin(local_invocation_index) i: u32) {{
                let left = coopLoadT<coop_mat8x8<f16, A>>(&a[0], 2u);
                let right = coopLoad<coop_mat8x8<f16, B>>(&b[0], 2u);
                var c: coop_mat8x8<f32, C>;
                c = coopMultiplyAdd(left, right, c);
                coopStoreT(c, &z[0], 2u);
                workgroupBarrier();
                y[i] = z[i];
            }}",
            kinds[0], kinds[1]
        );
        spirv(&Kernel { name: "k".to_owned(), wgsl, bindings: vec![Access::ReadWrite] }, (1, 3)).unwrap()
    }

    /// Returns the width of the numbers of each matrix's type, after a look at what a module must have.
    fn widths(words: &[u32]) -> Vec<u32> {
        let of = |wanted: u32| {
            instructions(words)
                .filter(move |(_, opcode)| *opcode == wanted)
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        };
        let halves: Vec<usize> = of(TYPE_FLOAT).into_iter().filter(|at| words[at + 2] == 16).collect();
        assert_eq!(halves.len(), 1, "a type is declared once");
        assert!(
            of(TYPE_MATRIX).iter().all(|matrix| halves[0] < *matrix),
            "types stand in front of their uses"
        );
        assert!(words[halves[0] + 1] < words[3], "ids are below the bound");
        assert_eq!(of(CAPABILITY).iter().filter(|at| words[**at + 1] == FLOAT16).count(), 1);
        let width = |at: &usize| {
            let float = of(TYPE_FLOAT).into_iter().find(|float| words[float + 1] == words[at + 2]);
            float.map_or(0, |float| words[float + 2])
        };
        of(TYPE_MATRIX).iter().map(width).collect()
    }

    #[test]
    fn matrices_from_eights_are_matrices_of_halves() {
        for kinds in [["vec4<u32>", "vec4<u32>"], ["vec4<u32>", "vec4<f16>"], ["vec4<f16>", "vec4<u32>"]] {
            let mut found = widths(&module(kinds));
            found.sort_unstable();
            assert_eq!(found, [16, 16, 32], "{kinds:?}");
        }
    }

    #[test]
    fn other_modules_stay_as_they_are() {
        let words = module(["vec4<f16>", "vec4<f16>"]);
        assert_eq!(of_halves(words.clone()), words);
    }
}
