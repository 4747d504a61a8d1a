//! On a machine without a desktop, drivers print nothing to a program that prepares its environment.
//! There is no test harness, since the environment can only be prepared while there is one thread.

use std::process::Command;

fn main() {
    if std::env::args().any(|argument| argument == "child") {
        assert!(unisono_gpu::prepare_environment());
        let adapters = unisono_gpu::adapters(&[]);
        assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
        for adapter in adapters {
            unisono_gpu::Device::open(&adapter).unwrap();
        }
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .arg("child")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("NODEVICE_SELECT")
        .env_remove("LP_NUM_THREADS");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
