//! Vulkan's memory model, which modules with cooperative matrices declare.
//!
//! In it, a barrier orders only accesses that say so (`NonPrivatePointer`), and only if it makes them
//! available and visible. naga 30 declares the model and writes neither, so that an invocation may read what
//! workgroup memory held before the barrier. In other modules the older model holds, where a barrier does it
//! all.

use std::collections::HashMap;

use super::spirv::{HEADER, instructions};

const MEMORY_MODEL: u32 = 14;
const TYPE_POINTER: u32 = 32;
const CONSTANT: u32 = 43;
const FUNCTION_PARAMETER: u32 = 55;
const VARIABLE: u32 = 59;
const LOAD: u32 = 61;
const STORE: u32 = 62;
const ACCESS_CHAIN: u32 = 65;
const IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
const CONTROL_BARRIER: u32 = 224;
const MEMORY_BARRIER: u32 = 225;
const MATRIX_LOAD: u32 = 4457;
const MATRIX_STORE: u32 = 4458;

/// The memory model of Vulkan, as OpMemoryModel names it.
const VULKAN: u32 = 3;
/// The storage classes whose memory invocations share: workgroup memory and storage buffers.
const SHARED: [u32; 2] = [4, 12];
const NON_PRIVATE: u32 = 0x20;
const MAKE_AVAILABLE_AND_VISIBLE: u32 = 0x2000 | 0x4000;

/// Returns a module whose accesses to shared memory are ordered by its barriers. A module that does not
/// declare Vulkan's memory model is returned as it is.
pub(super) fn ordered(words: Vec<u32>) -> Vec<u32> {
    let is_vulkan = |(at, opcode): (usize, u32)| opcode == MEMORY_MODEL && words.get(at + 2) == Some(&VULKAN);
    if !instructions(&words).any(is_vulkan) {
        return words;
    }
    let shared = shared_pointers(&words);
    let semantics = semantics(&words);
    let mut new = words[..HEADER].to_vec();
    // The constants that barriers have from now on, by those that they had.
    let mut stronger: HashMap<u32, u32> = HashMap::new();
    for (at, opcode) in instructions(&words) {
        let length = (words[at] >> 16).max(1) as usize;
        let mut own = words[at..(at + length).min(words.len())].to_vec();
        let fixed = match opcode {
            LOAD => Some((3, 4)),
            STORE => Some((1, 3)),
            MATRIX_LOAD => Some((3, 6)),
            MATRIX_STORE => Some((1, 5)),
            _ => None,
        };
        if let Some((_, operands)) = fixed.filter(|(pointer, _)| shared.contains(&own[*pointer])) {
            match own.get_mut(operands) {
                Some(mask) => *mask |= NON_PRIVATE,
                None => own.push(NON_PRIVATE),
            }
            own[0] = (own.len() as u32) << 16 | opcode;
        }
        let barrier = match opcode {
            CONTROL_BARRIER => Some(3),
            MEMORY_BARRIER => Some(2),
            _ => None,
        };
        if let Some(operand) = barrier {
            own[operand] = stronger.get(&own[operand]).copied().unwrap_or(own[operand]);
        }
        new.extend_from_slice(&own);
        if opcode == CONSTANT && semantics.contains(&own[2]) {
            let id = new[3];
            new[3] += 1;
            new.extend([own[0], own[1], id, own[3] | MAKE_AVAILABLE_AND_VISIBLE]);
            stronger.insert(own[2], id);
        }
    }
    new
}

/// Returns the ids of all pointers to memory that invocations share.
fn shared_pointers(words: &[u32]) -> Vec<u32> {
    let of = |wanted: u32| instructions(words).filter(move |(_, opcode)| *opcode == wanted);
    let types: Vec<u32> = of(TYPE_POINTER)
        .filter(|(at, _)| SHARED.contains(&words[at + 2]))
        .map(|(at, _)| words[at + 1])
        .collect();
    [VARIABLE, ACCESS_CHAIN, IN_BOUNDS_ACCESS_CHAIN, FUNCTION_PARAMETER]
        .into_iter()
        .flat_map(of)
        .filter(|(at, _)| types.contains(&words[at + 1]))
        .map(|(at, _)| words[at + 2])
        .collect()
}

/// Returns the ids of the constants that say what barriers order.
fn semantics(words: &[u32]) -> Vec<u32> {
    let operand = |(at, opcode): (usize, u32)| match opcode {
        CONTROL_BARRIER => Some(words[at + 3]),
        MEMORY_BARRIER => Some(words[at + 2]),
        _ => None,
    };
    instructions(words).filter_map(operand).collect()
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::{Access, Kernel};

    use super::*;
    use crate::spirv;

    const WGSL: &str = "enable f16;
        enable wgpu_cooperative_matrix;
        @group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
        var<workgroup> x: array<vec4<f16>, 32>;
        var<workgroup> z: array<vec4<f32>, 32>;
        @compute @workgroup_size(32)
        fn main(@builtin(local_invocation_index) i: u32) {
            x[i] = vec4<f16>(f16(i));
            workgroupBarrier();
            let a = coopLoadT<coop_mat8x8<f16, A>>(&x[0], 2u);
            let b = coopLoad<coop_mat8x8<f16, B>>(&x[16], 2u);
            var c: coop_mat8x8<f32, C>;
            c = coopMultiplyAdd(a, b, c);
            coopStoreT(c, &z[0], 2u);
            workgroupBarrier();
            y[i] = z[i];
        }";

    fn module(wgsl: &str) -> Vec<u32> {
        let bindings = vec![Access::ReadWrite];
        spirv(&Kernel { name: "k".to_owned(), wgsl: wgsl.to_owned(), bindings }, (1, 3)).unwrap()
    }

    #[test]
    fn barriers_of_kernels_with_cooperative_matrices_order_what_they_share() {
        let words = module(WGSL);
        // The operand after those that every instruction of the kind has, where there is one.
        let operand = |wanted: u32, fixed: usize| -> Vec<Option<u32>> {
            instructions(&words)
                .filter(|(_, opcode)| *opcode == wanted)
                .map(|(at, _)| words[at..at + (words[at] >> 16) as usize].get(fixed).copied())
                .collect()
        };
        let marked = Some(NON_PRIVATE);
        assert_eq!(operand(MATRIX_LOAD, 6), [marked; 2]);
        assert_eq!(operand(MATRIX_STORE, 5), [marked]);
        // The kernel loads an element of z, and stores one of x and one of y; the rest are its own variables.
        let shared = |operands: Vec<Option<u32>>| operands.iter().filter(|&&own| own == marked).count();
        assert_eq!([shared(operand(LOAD, 4)), shared(operand(STORE, 3))], [1, 2]);
        let value = |id: u32| {
            let constant = |&(at, opcode): &(usize, u32)| opcode == CONSTANT && words[at + 2] == id;
            instructions(&words).find(constant).map(|(at, _)| words[at + 3])
        };
        let barriers: Vec<u32> =
            operand(CONTROL_BARRIER, 3).into_iter().flatten().filter_map(value).collect();
        // Acquire and release of workgroup memory, available and visible.
        assert_eq!(barriers, [0x6108; 2]);
    }

    #[test]
    fn other_kernels_keep_the_older_model() {
        let plain = "@group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1) fn main() { workgroupBarrier(); y[0] = y[1]; }";
        let words = module(plain);
        assert_eq!(ordered(words.clone()), words);
        assert!(!instructions(&words).any(|(at, opcode)| opcode == STORE && words[at] >> 16 > 3));
    }
}
