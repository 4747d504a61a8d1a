//! On a machine without a desktop, drivers print nothing to a program that prepares its environment.

use std::process::Command;

/// The argument of the process that prepares its environment and opens every adapter.
pub const CHILD: &str = "child";

pub fn child() {
    assert!(unisono_gpu::prepare_environment());
    let adapters = unisono_gpu::adapters(&[]);
    assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
    for adapter in adapters {
        unisono_gpu::Device::open(&adapter).unwrap();
    }
}

pub fn drivers_print_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.arg(CHILD).env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT").env_remove("LP_NUM_THREADS");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
