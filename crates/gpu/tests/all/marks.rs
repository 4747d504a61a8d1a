//! Commands that a driver drops and reports as done: nothing of what they should have computed is believed.

use std::time::Duration;

use crate::common::*;
use unisono_gpu::{Adapter, Device, Executable, GpuError, Options};
use unisono_graph::plan::Role;

const N: u64 = 256;

fn options() -> Options {
    Options::default().with(|options| options.marks = Some(true))
}

/// Makes a step whose first operand is `first` everywhere, in one submission or segment by segment. Checks
/// all that it hands out.
fn make(device: &Device, step: &mut Executable, whole: Option<usize>, first: f32) -> Result<(), GpuError> {
    let mut upload = |transfer: &unisono_graph::plan::Transfer, to: &mut unisono_gpu::Writer<'_>| {
        to.write(&bytes((0..N).map(|_| if transfer.slot == 7 { first } else { 2.0 })));
    };
    let mut download = |transfer: &unisono_graph::plan::Transfer, found: &[u8]| {
        let expected = |i: u64| first + 6.0 + [10.0, 20.0, 30.0, 40.0][i as usize % 4];
        let cleared = if transfer.slot == 10 { N / 2 } else { 0 };
        assert_eq!(found, bytes((0..N).map(|i| if i < cleared { 0.0 } else { expected(i) })));
    };
    match whole {
        Some(lane) => {
            let flight = device.submit_all(step, lane, &mut upload)?;
            device.collect(step, flight, &mut download)?;
        }
        None => {
            device.run(step, 0, &mut upload, &mut download)?;
            device.run(step, 1, &mut upload, &mut download)?;
        }
    }
    Ok(())
}

/// Checks that this is the loss of a device that dropped commands.
fn dropped(result: Result<(), GpuError>) {
    let Err(GpuError::Lost { reason, .. }) = &result else { panic!("{result:?}") };
    assert!(reason.contains("reported commands as done that it had dropped"), "{reason}");
}

/// How a step is made.
#[derive(Clone, Copy, Debug)]
struct How {
    whole: bool,
    longest: Option<Duration>,
    shared: bool,
    /// Whether segment 0 ends with its launch once more, so that copies stand between two passes.
    twice: bool,
}

/// Makes three steps and reads the state, with a run of commands from the third step on left out. Returns
/// what came of it.
fn with_one_left_out(adapter: &Adapter, how: How, run: u64) -> Result<(), GpuError> {
    let options = options().with(|options| options.longest_submission = how.longest);
    let mut device = Device::open_with(adapter, options).unwrap();
    let mut plan = plan(N);
    if how.shared {
        [A, B, Y, COPIED].into_iter().for_each(|id| plan.buffers[id].role = Role::Shared);
    }
    if how.twice {
        let launch = plan.segments[0].commands[0].clone();
        plan.segments[0].commands.push(launch);
    }
    let mut step = device.load(&plan).unwrap();
    for number in 0..2 {
        make(&device, &mut step, how.whole.then_some(number), number as f32).unwrap();
    }
    device.read_state(1).unwrap();
    device.leave_out(run);
    let made = make(&device, &mut step, how.whole.then_some(0), 2.0);
    let read = made.and_then(|()| device.read_state(1));
    if let Ok(state) = &read {
        assert_eq!(state[..4], f32::to_le_bytes(3.0 + 3.0 * 16.0));
    } else {
        assert!(matches!(make(&device, &mut step, None, 0.0), Err(GpuError::Lost { .. })));
    }
    read.map(drop)
}

#[test]
fn whatever_is_dropped_is_found_before_anything_behind_it_is_believed() {
    let whole = How { whole: true, longest: None, shared: false, twice: false };
    let segments = How { whole: false, ..whole };
    let shared = How { shared: true, ..segments };
    let divided = |how| How { longest: Some(Duration::ZERO), ..how };
    let twice = |how| How { twice: true, ..how };
    // A step has two passes with copies around them, and the read of the state has a pass between two copies.
    let all_ways = [
        (whole, 5 + 3),
        (divided(whole), 6 + 3),
        (segments, 6 + 3),
        (divided(segments), 6 + 3),
        (shared, 6 + 3),
        (twice(whole), 7 + 3),
        (twice(segments), 8 + 3),
        // Here the first submission ends with copies, and so with a pass that proves them.
        (divided(twice(whole)), 10 + 3),
        (divided(twice(segments)), 10 + 3),
    ];
    for adapter in all() {
        for (how, runs) in all_ways {
            println!("{adapter}, {how:?}");
            (1..=runs).for_each(|run| dropped(with_one_left_out(&adapter, how, run)));
            with_one_left_out(&adapter, how, runs + 1).unwrap();
        }
    }
}

#[test]
fn what_was_written_or_loaded_is_found_by_the_next_that_reads() {
    for adapter in all() {
        for run in 1..=2 {
            let mut device = Device::open_with(&adapter, options()).unwrap();
            let mut step = device.load(&plan(N)).unwrap();
            make(&device, &mut step, None, 1.0).unwrap();
            device.leave_out(run);
            device.write_state(1, &bytes((0..N).map(|_| 7.0))).unwrap();
            dropped(make(&device, &mut step, None, 1.0));
            dropped(device.read_state(1).map(drop));
        }
        let mut device = Device::open_with(&adapter, options()).unwrap();
        device.leave_out(1);
        let mut step = device.load(&plan(N)).unwrap();
        dropped(make(&device, &mut step, None, 1.0));
    }
}

/// Scratch that grows in the middle of a step is copied.
#[test]
fn scratch_that_was_not_carried_over_is_found() {
    for adapter in all() {
        let mut device = Device::open_with(&adapter, options()).unwrap();
        let mut small = device.load(&plan(100)).unwrap();
        step(&device, &mut small, 100);
        device.leave_out(1);
        let mut large = plan(N);
        large.buffers[STATE].role = Role::State(2);
        device.load(&large).unwrap();
        dropped(device.run(&mut small, 1, &mut |_, _| {}, &mut |_, _| {}).map(drop));
    }
}

#[test]
fn marks_take_no_submission_and_no_wait() {
    for adapter in all() {
        let [without, with] = [false, true].map(|marks| {
            let options = Options::default().with(|options| options.marks = Some(marks));
            let mut device = Device::open_with(&adapter, options).unwrap();
            let mut step = device.load(&plan(N)).unwrap();
            for number in 0..6 {
                make(&device, &mut step, (number > 2).then_some(number % 2), number as f32).unwrap();
            }
            device.write_state(1, &bytes((0..N).map(|_| 7.0))).unwrap();
            assert_eq!(device.read_state(1).unwrap(), bytes((0..N).map(|_| 7.0)));
            assert_eq!((device.kernels(), step.launches()), (2, 2));
            device.counters()
        });
        assert_eq!(without, with, "{adapter}");
    }
}

/// The numbers that passes look for begin again after 4,096 of them.
#[test]
fn the_count_goes_on_where_the_numbers_begin_again() {
    let adapter = all().remove(0);
    let mut device = Device::open_with(&adapter, options()).unwrap();
    let mut step = device.load(&plan(N)).unwrap();
    for number in 0..2100 {
        make(&device, &mut step, Some(number % 2), 0.0).unwrap();
    }
}
