//! What a kernel takes of a device, as the naga IR of its module says: nothing of this is read from its text.

use naga::proc::Layouter;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, TypeInner};
use unisono_graph::Target;

/// WebGPU rounds the size of each variable in workgroup memory up to a multiple of these bytes.
const ALIGNMENT: u64 = 16;

/// What a kernel takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The number of invocations of a workgroup.
    pub invocations: u64,
    /// The bytes of workgroup memory.
    pub workgroup_bytes: u64,
    /// The number of storage buffers.
    pub storage_buffers: usize,
}

/// Parses a kernel, validates it for a device with the features of a target, and returns what it takes.
///
/// # Errors
/// The parser's or the validator's message: a kernel that uses f16 is not valid for a device without
/// it, and no kernel uses subgroups or 64-bit integers.
pub fn needs(wgsl: &str, target: &Target) -> Result<Needs, String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| error.emit_to_string(wgsl))?;
    let has = if target.f16 { Capabilities::SHADER_FLOAT16 } else { Capabilities::empty() };
    Validator::new(ValidationFlags::all(), has)
        .validate(&module)
        .map_err(|error| error.emit_to_string(wgsl))?;
    let entry = module.entry_points.first().ok_or("the module has no entry point")?;
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).map_err(|error| error.to_string())?;
    let mut needs = Needs {
        invocations: entry.workgroup_size.iter().map(|&size| u64::from(size)).product(),
        ..Needs::default()
    };
    for (_, variable) in module.global_variables.iter() {
        match variable.space {
            AddressSpace::WorkGroup => {
                let bytes = u64::from(layouter[variable.ty].size);
                needs.workgroup_bytes += bytes.next_multiple_of(ALIGNMENT);
            }
            AddressSpace::Storage { .. } => needs.storage_buffers += 1,
            _ => {}
        }
        if matches!(module.types[variable.ty].inner, TypeInner::BindingArray { .. }) {
            return Err("the module has an array of bindings".to_owned());
        }
    }
    Ok(needs)
}
