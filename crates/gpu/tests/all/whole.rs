//! A whole step in one submission: two in flight, and the division of one that takes too long.

use std::time::Duration;

use crate::common::*;
use unisono_gpu::{Device, Executable, GpuError, InFlight, Options};

const N: u64 = 1000;

/// Submits a step whose first operand is `first` everywhere.
fn submit(device: &Device, step: &mut Executable, lane: usize, first: f32) -> Result<InFlight, GpuError> {
    device.submit_all(step, lane, &mut |transfer, to| {
        to.write(&bytes((0..N).map(|_| if transfer.slot == 7 { first } else { 2.0 })));
    })
}

/// Collects a step, and checks its results.
fn collect(device: &Device, step: &mut Executable, flight: InFlight, first: f32) {
    let mut slots = Vec::new();
    let timing = device.collect(step, flight, &mut |transfer, found| {
        let expected = |i: u64| first + 6.0 + [10.0, 20.0, 30.0, 40.0][i as usize % 4];
        let cleared = if transfer.slot == 10 { N / 2 } else { 0 };
        assert_eq!(found, bytes((0..N).map(|i| if i < cleared { 0.0 } else { expected(i) })));
        slots.push(transfer.slot);
    });
    assert!(timing.unwrap().record > Duration::ZERO);
    assert_eq!(slots, [9, 10]);
}

#[test]
fn two_steps_in_flight_are_two_submissions_and_give_what_each_was_given() {
    for adapter in all() {
        let options = Options::default().with(|options| options.longest_submission = Some(Duration::MAX));
        let mut device = Device::open_with(&adapter, options).unwrap();
        let mut step = device.load(&plan(N)).unwrap();
        let mut state = 0.0;
        let mut before = submit(&device, &mut step, 0, 0.0).unwrap();
        for number in 1..8 {
            let [first, last] = [number as f32 - 1.0, number as f32];
            let counters = device.counters();
            let next = submit(&device, &mut step, number % 2, last).unwrap();
            let submitted = device.counters();
            assert_eq!((submitted.submissions, submitted.waits), (counters.submissions + 1, counters.waits));
            collect(&device, &mut step, before, first);
            state += first + 16.0;
            before = next;
        }
        collect(&device, &mut step, before, 7.0);
        state += 7.0 + 16.0;
        let found = device.read_state(1).unwrap();
        assert_eq!(found[..4], f32::to_le_bytes(state), "{}", adapter.label());
    }
}

#[test]
fn a_step_that_takes_too_long_is_divided_and_gives_the_same() {
    for adapter in all() {
        let options = Options::default().with(|options| options.longest_submission = Some(Duration::ZERO));
        let mut device = Device::open_with(&adapter, options).unwrap();
        let mut step = device.load(&plan(N)).unwrap();
        // What was not timed yet may take too long as well.
        for (number, submissions) in [2, 2, 2].into_iter().enumerate() {
            let before = device.counters().submissions;
            let flight = submit(&device, &mut step, 0, number as f32).unwrap();
            // The plan has two launches.
            assert_eq!(device.counters().submissions - before, submissions, "{}", adapter.label());
            collect(&device, &mut step, flight, number as f32);
        }
        assert_eq!(device.read_state(1).unwrap()[..4], f32::to_le_bytes(3.0 + 3.0 * 16.0));
    }
}

/// Without a clock, a host that comes late for the results waits for nothing, and knows little of the step.
#[test]
fn a_step_that_nobody_timed_is_divided_although_the_host_did_not_wait_for_it() {
    for adapter in all() {
        let options = Options::default().with(|options| {
            (options.clock, options.longest_submission) = (false, Some(Duration::from_millis(50)));
        });
        let mut device = Device::open_with(&adapter, options).unwrap();
        let mut step = device.load(&plan(N)).unwrap();
        for number in 0..3 {
            let before = device.counters().submissions;
            let flight = submit(&device, &mut step, 0, number as f32).unwrap();
            assert_eq!(device.counters().submissions - before, 2, "{}", adapter.label());
            std::thread::sleep(Duration::from_millis(100));
            collect(&device, &mut step, flight, number as f32);
        }
    }
}

/// A step whose device does not decide goes segment by segment, and so does an audit.
#[test]
fn a_segment_is_divided_unless_it_is_known_to_be_short() {
    let mut twice = plan(N);
    let launch = twice.segments[0].commands[0].clone();
    twice.segments[0].commands.insert(0, launch);
    for adapter in all() {
        for (longest, expected) in
            [(Duration::ZERO, [2, 2, 2]), (Duration::from_secs(900), [2, 1, 1]), (Duration::MAX, [1, 1, 1])]
        {
            let options = Options::default().with(|options| options.longest_submission = Some(longest));
            let mut device = Device::open_with(&adapter, options).unwrap();
            let mut executable = device.load(&twice).unwrap();
            let submissions = expected.map(|_| {
                let before = device.counters().submissions;
                step(&device, &mut executable, N);
                // The update is a segment of one launch.
                device.counters().submissions - before - 1
            });
            assert_eq!(submissions, expected, "{}, {longest:?}", adapter.label());
        }
    }
}

#[test]
fn a_step_that_was_submitted_over_is_an_error() {
    let adapter = all().remove(0);
    let mut device = Device::open(&adapter).unwrap();
    let mut step = device.load(&plan(N)).unwrap();
    let stale = submit(&device, &mut step, 0, 1.0).unwrap();
    let newest = submit(&device, &mut step, 0, 2.0).unwrap();
    let error = device.collect(&mut step, stale, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("submitted again before it was collected"), "{error}");
    collect(&device, &mut step, newest, 2.0);
    assert!(submit(&device, &mut step, 2, 1.0).is_err());
}
