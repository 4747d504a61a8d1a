//! The adapters that tests run on.

use unisono_gpu::{Adapter, Backend};

/// Returns every adapter of the machine: those of Vulkan, Metal or DX12, and those of GL. It panics if there
/// is none, so that a test without an adapter fails.
pub fn adapters() -> Vec<Adapter> {
    let mut found = unisono_gpu::adapters(&[]);
    for gl in unisono_gpu::adapters(&[Backend::Gl]) {
        if !found.contains(&gl) {
            found.push(gl);
        }
    }
    found
}
