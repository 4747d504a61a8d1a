//! The adapters that tests run on, and what is said where a test has too few of them.

use std::io::Write;

use unisono_gpu::{Adapter, Arithmetic, Backend, Device};

use crate::emulator::fuses;

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

/// Returns the CPU as an adapter that rounds as a device does. Its kernels do the work of one operation or
/// sum each, so that what they give is what the joined launches of GPUs are compared with.
///
/// # Panics
/// The device does not compute, or this build has no CPU adapter: a test fails then.
pub fn cpu_like(device: &mut Device) -> Adapter {
    let fused = fuses(device).expect("a device that computes");
    Adapter::cpu(Arithmetic { fused, ..Arithmetic::default() }).expect("the CPU as an adapter")
}

/// Says on stderr what a test leaves out and why, also where the test passes, and in the file that
/// `UNISONO_LEFT_OUT` names, from which `cargo xtask test` lists it. A test prints nothing else then, because
/// its harness catches what `println!` and `eprintln!` write. Where the machine can have what is missing, the
/// text says how, by [`install`]: with `--complete` the task fails then.
pub fn left_out(what: &str) {
    let line = format!("left out: {what}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Returns what is added to a text for [`left_out`] where packages of this machine's system are missing.
/// Debian's names stand for those of all systems on Linux. Other systems have no such packages.
pub fn install(packages: &str) -> String {
    if cfg!(target_os = "linux") { format!(" (install: {packages})") } else { String::new() }
}
