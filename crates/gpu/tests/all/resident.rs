//! Resident memory on every adapter of this machine: it stays from step to step, for all plans of a device,
//! until it is dropped or another size of it is wanted.

use crate::common::*;
use unisono_gpu::{Device, Executable};
use unisono_graph::plan::{Plan, Role, Transfer};

const DOWN: usize = 11;

/// Returns [`plan`] with resident memory 3 in place of the state, which the last segment downloads.
fn resident(n: u64) -> Plan {
    let mut plan = plan(n);
    plan.buffers[STATE].role = Role::Resident(3);
    plan.segments[1].downloads.push(Transfer { slot: DOWN, slice: slice(STATE, n) });
    plan
}

/// Runs a step and checks that the memory holds the sum of so many steps after it.
fn holds(device: &mut Device, executable: &mut Executable, n: u64, steps: usize) {
    device.hold_residents(executable).unwrap();
    device.run(executable, 0, &mut |t, to| to.write(&input(t.slot, n)), &mut |_, _| {}).unwrap();
    let mut found = Vec::new();
    let read = &mut |_: &Transfer, got: &[u8]| found = got.to_vec();
    device.run(executable, 1, &mut |_, _| unreachable!(), read).unwrap();
    assert_eq!(found, bytes((0..n).map(|i| steps as f32 * sum(i))), "after {steps} steps");
}

#[test]
fn resident_memory_stays_until_it_is_dropped() {
    for adapter in all() {
        println!("{adapter}");
        let mut device = Device::open(&adapter).unwrap();
        let before = device.counters();
        let mut one = device.load(&resident(100)).unwrap();
        let mut other = device.load(&resident(100)).unwrap();
        holds(&mut device, &mut one, 100, 1);
        holds(&mut device, &mut other, 100, 2);
        holds(&mut device, &mut one, 100, 3);
        let after = device.counters();
        assert_eq!(after.uploaded - before.uploaded, 3 * 800, "two inputs");
        assert_eq!(after.downloaded - before.downloaded, 3 * 1200, "two outputs, and the memory");
        assert_eq!((after.resident, device.memory().resident), (400, 400));
        device.drop_residents();
        [&mut one, &mut other].into_iter().for_each(|executable| device.unbind(executable));
        assert_eq!(device.memory().resident, 0);
        holds(&mut device, &mut one, 100, 1);
        // Another size of the same memory begins anew, and so does the first one after it.
        let mut small = device.load(&resident(60)).unwrap();
        holds(&mut device, &mut small, 60, 1);
        assert_eq!(device.memory().resident, 240);
        holds(&mut device, &mut other, 100, 1);
        holds(&mut device, &mut one, 100, 2);
        assert_eq!(device.memory().state, 0);
    }
}

#[test]
fn it_changes_in_the_last_segment_alone() {
    let mut early = resident(100);
    early.segments.swap(0, 1);
    let mut device = Device::open(&all()[0]).unwrap();
    let error = device.load(&early).unwrap_err().to_string();
    assert_eq!(error, "segment 0: resident memory 3 (buffer 4) changes before the last segment");
}
