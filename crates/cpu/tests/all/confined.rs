//! A process that may not make code. The test runs itself again in a process of its own.

#![cfg(target_os = "linux")]

use std::process::Command;

/// The environment variable that tells the process which is confined.
const CONFINED: &str = "UNISONO_CPU_CONFINED";

#[expect(unsafe_code, reason = "no safe function asks for it")]
unsafe extern "C" {
    fn prctl(option: i32, ...) -> i32;
}

/// Runs the test of this name again in a process of its own, which runs `test`.
fn apart(name: &str, test: fn()) {
    if std::env::var_os(CONFINED).is_some() {
        return test();
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(own);
    command.args(["--exact", name, "--nocapture"]).env(CONFINED, "1");
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// The kernel refuses to make memory executable, as with SELinux or systemd's `MemoryDenyWriteExecute`.
#[test]
fn a_system_that_forbids_code_is_an_error_when_a_device_is_opened() {
    apart("confined::a_system_that_forbids_code_is_an_error_when_a_device_is_opened", || {
        const PR_SET_MDWE: i32 = 65;
        const REFUSE_EXEC_GAIN: u64 = 1;
        // SAFETY: the call changes nothing but what this process may do with its memory.
        #[expect(unsafe_code, reason = "no safe function asks for it")]
        let answer = unsafe { prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0u64, 0u64, 0u64) };
        if answer != 0 {
            return println!("this kernel has no such refusal");
        }
        let adapter = unisono_cpu::adapter(unisono_cpu::Options::default());
        let error = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default())).err();
        let message = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("may not make code"), "{message:?}");
    });
}
