//! The SPIR-V of a kernel, as wgpu's Vulkan backend writes it for shaders without run-time checks.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use unisono_graph::plan::Kernel;

use crate::GpuError;

/// Returns the SPIR-V of a kernel, with the options of wgpu-hal 30's Vulkan backend for
/// `ShaderRuntimeChecks::unchecked()` and workgroup memory that is not cleared: no bounds checks, no checks
/// of divisors, no bound on loops, binding n of the kernel as binding n of descriptor set 0.
///
/// The version is SPIR-V's. wgpu-hal takes the highest one that the device's Vulkan allows: (1, 0) for Vulkan
/// 1.0, (1, 3) for 1.1, (1, 5) for 1.2 and (1, 6) from 1.3 on. Subgroup operations need (1, 3).
///
/// # Errors
/// [`GpuError::Validation`] if the text is no valid WGSL, has no entry point `main`, or needs another
/// version.
pub fn spirv(kernel: &Kernel, version: (u8, u8)) -> Result<Vec<u32>, GpuError> {
    let refused = |message: String| GpuError::Validation { what: format!("kernel {}", kernel.name), message };
    let mut wgsl = naga::front::wgsl::Options::new();
    wgsl.capabilities = Capabilities::all();
    let module = naga::front::wgsl::Frontend::new_with_options(wgsl)
        .parse(&kernel.wgsl)
        .map_err(|error| refused(error.emit_to_string(&kernel.wgsl)))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| refused(error.emit_to_string(&kernel.wgsl)))?;
    let entry =
        spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".to_owned() };
    spv::write_vec(&module, &info, &options(version), Some(&entry))
        .map_err(|error| refused(error.to_string()))
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
        // wgpu-hal numbers the bindings of the only group in their order, which are the numbers in the WGSL.
        fake_missing_bindings: true,
        ..spv::Options::default()
    }
}

#[cfg(test)]
mod tests {
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
        Kernel { name: "k".to_owned(), wgsl: wgsl.to_owned(), bindings: Vec::new() }
    }

    /// Returns the opcodes of a module's instructions.
    fn opcodes(words: &[u32]) -> Vec<u32> {
        let (mut at, mut found) = (5, Vec::new());
        while at < words.len() {
            found.push(words[at] & 0xffff);
            at += (words[at] >> 16) as usize;
        }
        found
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
