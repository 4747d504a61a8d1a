//! The SPIR-V of a kernel: what wgpu's Vulkan backend writes for shaders without run-time checks, with the
//! decoration that keeps drivers from changing float operations.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use unisono_graph::plan::Kernel;

use crate::GpuError;
use crate::device::interface::Interface;
use crate::device::matrix_types::of_halves;
use crate::device::memory_model::ordered;

/// Returns the SPIR-V of a kernel as devices ship it to Vulkan drivers. The options are those of wgpu-hal
/// 30's Vulkan backend for `ShaderRuntimeChecks::unchecked()` and workgroup memory that is not cleared: no
/// bounds checks, no checks of divisors, no bound on loops, binding n of the kernel as binding n of
/// descriptor set 0.
///
/// Beyond these, every float operation is decorated with `NoContraction`: a driver may neither contract a
/// product and a sum, nor factor, reorder or merge operations. In a module with cooperative matrices,
/// accesses to memory that invocations share are marked as shared, because such a module is under Vulkan's
/// memory model, and matrices that are loaded from eights of f16 in `vec4<u32>` are matrices of f16.
///
/// The version is SPIR-V's. wgpu-hal takes the highest one that the device's Vulkan allows: (1, 0) for Vulkan
/// 1.0, (1, 3) for 1.1, (1, 5) for 1.2 and (1, 6) from 1.3 on. Subgroup operations need (1, 3).
///
/// # Errors
/// [`GpuError::Validation`] if the text is no valid WGSL, has no entry point `main`, or needs another
/// version.
pub fn spirv(kernel: &Kernel, version: (u8, u8)) -> Result<Vec<u32>, GpuError> {
    translate(kernel, version, Capabilities::all()).map(|(words, _)| words)
}

/// Returns the SPIR-V of a kernel that may use these capabilities, and its bindings.
///
/// # Errors
/// See [`spirv`]; also if the kernel's bindings are others than the text's.
pub(crate) fn translate(
    kernel: &Kernel,
    version: (u8, u8),
    capabilities: Capabilities,
) -> Result<(Vec<u32>, Interface), GpuError> {
    let refused = |message: String| GpuError::Validation { what: format!("kernel {}", kernel.name), message };
    let mut wgsl = naga::front::wgsl::Options::new();
    wgsl.capabilities = capabilities;
    let module = naga::front::wgsl::Frontend::new_with_options(wgsl)
        .parse(&kernel.wgsl)
        .map_err(|error| refused(error.emit_to_string(&kernel.wgsl)))?;
    let mut checks = ValidationFlags::all();
    // naga 30 takes the number of a subgroup for one that differs within it. Kernels with cooperative
    // matrices branch on it, so that all invocations of a subgroup go the same way.
    let is_cooperative = kernel.wgsl.contains(COOPERATIVE);
    checks.set(ValidationFlags::CONTROL_FLOW_UNIFORMITY, !is_cooperative);
    let info = Validator::new(checks, capabilities)
        .validate(&module)
        .map_err(|error| refused(error.emit_to_string(&kernel.wgsl)))?;
    let interface = Interface::of(&module, kernel).map_err(refused)?;
    let entry =
        spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".to_owned() };
    let words = spv::write_vec(&module, &info, &options(version), Some(&entry))
        .map_err(|error| refused(error.to_string()))?;
    Ok((ordered(of_halves(decorated(&words))), interface))
}

/// What the text of a kernel with cooperative matrices has in front.
const COOPERATIVE: &str = "enable wgpu_cooperative_matrix;";
/// The number of words in front of a module's first instruction.
pub(super) const HEADER: usize = 5;
/// The opcodes with a float result that compilers may change: OpExtInst (Fma among others), OpFNegate,
/// OpFAdd, OpFSub, OpFMul, OpFDiv, OpFRem, OpFMod, OpVectorTimesScalar, OpMatrixTimesScalar to
/// OpMatrixTimesMatrix, OpDot.
const FLOAT: [u32; 14] = [12, 127, 129, 131, 133, 136, 140, 141, 142, 143, 144, 145, 146, 148];
/// OpDecorate with three words, and the decoration.
const DECORATE: u32 = 3 << 16 | 71;
const NO_CONTRACTION: u32 = 42;

/// Returns a module with `NoContraction` on every float operation. Decorations stand in front of the first
/// type.
fn decorated(words: &[u32]) -> Vec<u32> {
    let found: Vec<(usize, u32)> = instructions(words).collect();
    let is_type = |&&(_, opcode): &&(usize, u32)| (19..=39).contains(&opcode);
    let Some(&(types, _)) = found.iter().find(is_type) else { return words.to_vec() };
    let results = found.iter().filter(|(_, opcode)| FLOAT.contains(opcode)).map(|&(at, _)| words[at + 2]);
    let mut new = words[..types].to_vec();
    results.for_each(|id| new.extend([DECORATE, id, NO_CONTRACTION]));
    new.extend_from_slice(&words[types..]);
    new
}

/// Returns each instruction of a module: its first word's index, and its opcode.
pub(super) fn instructions(words: &[u32]) -> impl Iterator<Item = (usize, u32)> {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let first = *words.get(at)?;
        let here = at;
        // A length of 0 would never end.
        at += (first >> 16).max(1) as usize;
        Some((here, first & 0xffff))
    })
}

fn options(version: (u8, u8)) -> spv::Options<'static> {
    let unchecked = BoundsCheckPolicy::Unchecked;
    spv::Options {
        lang_version: version,
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ray_query_initialization_tracking: false,
        emit_int_div_checks: false,
        // Devices without that feature may not be given a module that asks for it, and kernels have no such
        // inputs and outputs.
        use_storage_input_output_16: false,
        // wgpu-hal numbers the bindings of the only group in their order, which are the numbers in the WGSL.
        fake_missing_bindings: true,
        ..spv::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::Access;

    use super::*;

    const WGSL: &str = "
        @group(0) @binding(0) var<uniform> n: vec4<u32>;
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        var<workgroup> part: array<f32, 64>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_index) i: u32) {
            part[i] = x[i / n.x];
            workgroupBarrier();
            y[i] = part[63u - i];
        }";

    fn kernel(wgsl: &str) -> Kernel {
        let bindings = vec![Access::Read, Access::ReadWrite];
        Kernel { name: "k".to_owned(), wgsl: wgsl.to_owned(), bindings }
    }

    /// Returns the opcodes of a module's instructions.
    fn opcodes(words: &[u32]) -> Vec<u32> {
        instructions(words).map(|(_, opcode)| opcode).collect()
    }

    #[test]
    fn every_float_operation_is_decorated() {
        let wgsl = WGSL.replace("y[i] = part[63u - i];", "y[i] = fma(-part[i], x[i] * 3.0, x[0] / x[1]);");
        let words = spirv(&kernel(&wgsl), (1, 3)).unwrap();
        let decorated: Vec<u32> = instructions(&words)
            .filter(|&(at, opcode)| opcode == 71 && words[at + 2] == NO_CONTRACTION)
            .map(|(at, _)| words[at + 1])
            .collect();
        let results: Vec<u32> = instructions(&words)
            .filter(|(_, opcode)| [12, 127, 133, 136].contains(opcode))
            .map(|(at, _)| words[at + 2])
            .collect();
        assert_eq!((decorated.len(), &decorated), (4, &results));
    }

    #[test]
    fn nothing_is_checked_and_nothing_is_cleared() {
        let words = spirv(&kernel(WGSL), (1, 3)).unwrap();
        assert_eq!(words[..2], [0x0723_0203, 0x0001_0300]);
        let opcodes = opcodes(&words);
        // OpArrayLength, OpSelect and OpExtInst (UMin) are what checks are made of, OpConstantNull is what
        // memory is cleared with.
        for checks in [68, 169, 12, 46] {
            assert!(!opcodes.contains(&checks), "opcode {checks}");
        }
        // The division is one instruction in `main`, the only function.
        assert_eq!(opcodes.iter().filter(|&&opcode| opcode == 134).count(), 1);
        assert_eq!(opcodes.iter().filter(|&&opcode| opcode == 54).count(), 1);
    }

    #[test]
    fn a_kernel_that_is_refused_is_named() {
        let error = spirv(&kernel("fn main() { nonsense(); }"), (1, 3)).unwrap_err().to_string();
        assert!(error.starts_with("kernel k: ") && error.contains("nonsense"), "{error}");
        let error = spirv(&kernel("fn other() {}"), (1, 3)).unwrap_err().to_string();
        assert!(error.starts_with("kernel k: "), "{error}");
    }
}
