//! The adapters that tests run on.

use unisono_gpu::{Adapter, Backend};

/// Every adapter of the machine: Vulkan's (or Metal's, or DX12's), and those of GL. At least one, or the test has to fail.
pub fn adapters() -> Vec<Adapter> {
    let mut found = unisono_gpu::adapters(&[]);
    for gl in unisono_gpu::adapters(&[Backend::Gl]) {
        if !found.contains(&gl) {
            found.push(gl);
        }
    }
    found
}
