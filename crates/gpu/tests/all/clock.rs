//! The device's clock: one query set, whatever is loaded.

use std::time::Duration;

use crate::common::*;
use unisono_gpu::{Device, Executable};

/// The parts with a launch in [`plan`], and the pairs of timestamps that a device has.
const PARTS: usize = 2;
const PAIRS: usize = 256;

/// Returns whether a step is timed by the device's clock.
fn is_timed(device: &Device, executable: &mut Executable) -> bool {
    let run = device.run(executable, 0, &mut |t, to| to.write(&input(t.slot, 100)), &mut |_, _| {});
    let timing = run.unwrap();
    assert!(timing.total() > Duration::ZERO);
    timing.device.is_some()
}

#[test]
fn all_plans_of_a_device_share_one_query_set_and_give_back_what_they_have_of_it() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut first = device.load(&plan(100)).unwrap();
        if !is_timed(&device, &mut first) {
            println!("{adapter}: no clock");
            continue;
        }
        let mut loaded: Vec<_> = (1..PAIRS / PARTS).map(|_| device.load(&plan(100)).unwrap()).collect();
        assert_eq!(device.counters().query_sets, 1);
        assert!(loaded.iter_mut().all(|executable| is_timed(&device, executable)));
        // There are no more, so this one has none, nor has its second lane.
        let mut late = device.load(&plan(100)).unwrap();
        assert!(!is_timed(&device, &mut late));
        let flight = device.submit_all(&mut late, 1, &mut |t, to| to.write(&input(t.slot, 100))).unwrap();
        assert_eq!(device.collect(&mut late, flight, &mut |_, _| {}).unwrap().device, None);
        drop(loaded.pop());
        let mut later = device.load(&plan(100)).unwrap();
        assert!(is_timed(&device, &mut later) && !is_timed(&device, &mut late));
        assert_eq!(device.counters().query_sets, 1);
    }
}
