//! Processes that may do less than others: make no code, or have little memory. Each test runs itself again
//! in a process of its own.

#![cfg(target_os = "linux")]

mod common;

use std::process::Command;

use common::{Machine, words};

/// The environment variable that tells the process which is confined.
const CONFINED: &str = "UNISONO_CPU_CONFINED";

#[expect(unsafe_code, reason = "no safe function asks for it")]
unsafe extern "C" {
    fn prctl(option: i32, ...) -> i32;
    fn setrlimit(resource: i32, limits: *const [u64; 2]) -> i32;
}

/// Runs the test of this name again in a process of its own, which runs `test`.
fn apart(name: &str, test: fn()) {
    if std::env::var_os(CONFINED).is_some() {
        return test();
    }
    let own = std::env::current_exe().unwrap();
    let ran = Command::new(own).args(["--exact", name, "--nocapture"]).env(CONFINED, "1").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// The kernel refuses to make memory executable, as with SELinux or systemd's `MemoryDenyWriteExecute`.
#[test]
fn a_system_that_forbids_code_is_an_error_when_a_device_is_opened() {
    apart("a_system_that_forbids_code_is_an_error_when_a_device_is_opened", || {
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

/// There is room for the stacks of one workgroup, and four threads want some.
#[test]
fn a_thread_without_memory_leaves_workgroups_to_others() {
    apart("a_thread_without_memory_leaves_workgroups_to_others", || {
        const RLIMIT_AS: i32 = 9;
        let machine = Machine::new(4);
        let kernel = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
var<workgroup> turn: array<u32, 1024>;
@compute @workgroup_size(1024)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    turn[lane] = lane;
    workgroupBarrier();
    if turn[(lane + 3u) % 1024u] == 0u { x[id.x] += 1u; }
}";
        let (few, x) = (kernel.replace("1024", "8"), machine.buffer(&[0; 4 * 64]));
        let [kernel, few] = [kernel, &few].map(|kernel| machine.pipeline(kernel, true).unwrap());
        // All threads have other memory that they need.
        for _ in 0..100 {
            machine.launch(&few, &[&machine.buffer(&[0; 4 * 64])], [64, 1, 1]);
        }
        machine.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let most = pages * 4096 + (330 << 20);
        // SAFETY: the call changes nothing but how much memory this process may have.
        #[expect(unsafe_code, reason = "no safe function asks for it")]
        let answer = unsafe { setrlimit(RLIMIT_AS, &[most; 2]) };
        assert_eq!(answer, 0);
        for _ in 0..3 {
            machine.launch(&kernel, &[&x], [64, 1, 1]);
        }
        assert_eq!(words(&machine.read(&x)), [3; 64]);
    });
}
