//! What a kernel's text says of its bindings. wgpu checks it for WGSL, and this does for SPIR-V, which wgpu
//! passes on unseen.

use naga::{AddressSpace, Module, StorageAccess};
use unisono_graph::plan::{Access, Kernel, Launch};

/// The bindings of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    /// For each binding that the text uses its number, and the least bytes that it needs.
    least: Vec<(usize, u64)>,
}

impl Interface {
    /// Reads the bindings of a module and compares them with what the kernel says of them.
    ///
    /// # Errors
    /// A message, if the kernel does not say the same.
    pub fn of(module: &Module, kernel: &Kernel) -> Result<Self, String> {
        let mut least = Vec::new();
        for (_, variable) in module.global_variables.iter() {
            let Some(resource) = &variable.binding else { continue };
            // A texture over one of the buffers.
            if variable.space == AddressSpace::Handle {
                continue;
            }
            let (number, writes) = (resource.binding as usize, writes(variable.space));
            let declared = match number.checked_sub(1).map(|index| kernel.bindings.get(index)) {
                None => Some(false),
                Some(access) => access.map(|access| *access == Access::ReadWrite),
            };
            if resource.group != 0 || declared != Some(writes) {
                let mode = if writes { "read and write" } else { "read" };
                return Err(format!(
                    "binding {number} of group {} is to {mode}: not declared so",
                    resource.group
                ));
            }
            let bytes = module.types[variable.ty].inner.size(module.to_ctx());
            least.push((number, u64::from(bytes)));
        }
        Ok(Self { least })
    }

    /// Returns a message if a launch binds too few bytes.
    pub fn refuse(&self, launch: &Launch) -> Option<String> {
        self.least.iter().find_map(|&(number, least)| {
            let bound = match number.checked_sub(1) {
                None => 4 * launch.params.len() as u64,
                Some(index) => launch.bindings.get(index).map_or(0, |slice| slice.bytes),
            };
            (bound < least).then(|| format!("binding {number} has {bound} bytes and needs {least}"))
        })
    }
}

fn writes(space: AddressSpace) -> bool {
    matches!(space, AddressSpace::Storage { access } if access.contains(StorageAccess::STORE))
}
