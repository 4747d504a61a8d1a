//! The adapters that tests run on, and what is said where a test has too few of them.

use std::io::Write;

use unisono_gpu::{Adapter, Arithmetic, Backend};

/// Returns every adapter of the machine: those of Vulkan, Metal or DX12, those of GL, the CPU, and the CPU in
/// the arithmetic of software drivers.
///
/// # Panics
/// There is none, so that a test without an adapter fails.
pub fn adapters() -> Vec<Adapter> {
    let mut found = unisono_gpu::adapters(&[]);
    for other in unisono_gpu::adapters(&[Backend::Gl, Backend::Cpu]) {
        if !found.contains(&other) {
            found.push(other);
        }
    }
    found.extend(Adapter::cpu(Arithmetic { fused: false, ..Arithmetic::default() }));
    assert!(!found.is_empty(), "no adapter: cargo xtask test installs one");
    found
}

/// Says on stderr what a test leaves out and why, also where the test passes. A test prints nothing else
/// then, because its harness catches what `println!` and `eprintln!` write.
pub fn left_out(what: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "left out: {what}");
}
