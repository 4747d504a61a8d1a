//! Hand-made plans on every adapter of this machine.

use std::time::Duration;

use crate::common::*;
use unisono_gpu::{Adapter, Backend, Device, GpuError, Kind, Options, SharedKernels, select};
use unisono_graph::plan::{Access, Buffer, Command, Launch, Plan, Role, Slice, StateLayout, Transfer};

#[test]
fn a_plan_runs_on_every_adapter() {
    for adapter in all() {
        for checked in [false, true] {
            println!("{adapter}, checked: {checked}");
            let options = Options::default().with(|o| (o.checked, o.compile_threads) = (checked, Some(2)));
            let mut device = Device::open_with(&adapter, options).unwrap();
            device.create_state(&StateLayout::apart([8, 4000])).unwrap();
            let mut executable = device.load(&plan(1000)).unwrap();
            assert_eq!((executable.segments(), executable.launches()), (2, 2));
            device.write_state(1, &bytes((0..1000).map(|i| i as f32))).unwrap();
            step(&device, &mut executable, 1000);
            step(&device, &mut executable, 1000);
            let state = device.read_state(1).unwrap();
            assert_eq!(state, bytes((0..1000).map(|i| i as f32 + 2.0 * sum(i))));
            assert_eq!(device.read_state(0).unwrap(), [0; 8]);
            assert_eq!(device.kernels(), 2);
        }
    }
}

/// Two compile at once, and a third one, which comes when the first is gone, has what the second has.
#[test]
fn devices_on_the_cpu_compile_each_kernel_once() {
    let Some(adapter) = all().into_iter().find(|adapter| adapter.backend == Backend::Cpu) else { return };
    let shared = SharedKernels::default();
    let open = |turn: usize| {
        let shared = Some(shared.clone());
        let options = Options::default().with(|o| (o.devices, o.turn, o.shared) = (2, turn, shared));
        Device::open_with(&adapter, options).unwrap()
    };
    let load = |mut device: Device| {
        let mut executable = device.load(&plan(1000)).unwrap();
        step(&device, &mut executable, 1000);
        assert_eq!(device.read_state(1).unwrap(), bytes((0..1000).map(sum)));
        (device, executable)
    };
    // Opening a device compiles its self-test.
    let devices = [0, 1].map(open);
    let mut before = shared.compiled();
    let [one, other] = std::thread::scope(|scope| {
        devices.map(|device| scope.spawn(|| load(device))).map(|thread| thread.join().unwrap())
    });
    assert_eq!((shared.compiled() - before, one.0.kernels(), other.0.kernels()), (2, 2, 2));
    // They are dropped with the last device that has them.
    drop(one);
    let third = open(0);
    before = shared.compiled();
    let third = load(third);
    assert_eq!(shared.compiled(), before);
    drop((other, third));
    let last = open(1);
    before = shared.compiled();
    load(last);
    assert_eq!(shared.compiled() - before, 2);
}

#[test]
fn plans_share_scratch_and_state_and_kernels() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut small = device.load(&plan(100)).unwrap();
        step(&device, &mut small, 100);
        let mut other = plan(1000);
        other.buffers[STATE].role = Role::State(2);
        let mut large = device.load(&other).unwrap();
        step(&device, &mut large, 1000);
        step(&device, &mut small, 100);
        assert_eq!(device.kernels(), 2);
        assert_eq!(device.memory().scratch, 4 * 4000);
        assert_eq!(device.memory().state, 400 + 4000);
        assert_eq!(device.read_state(1).unwrap(), bytes((0..100).map(|i| 2.0 * sum(i))));
        let error = device.load(&plan(200)).unwrap_err();
        assert_eq!(error.to_string(), "state 1: 800 bytes wanted, it has 400");
    }
}

#[test]
fn scratch_that_grows_in_the_middle_of_a_step_keeps_its_contents() {
    let mut device = Device::open(&select::<&str>(&[]).unwrap()[0]).unwrap();
    let mut small = device.load(&plan(100)).unwrap();
    device.run(&mut small, 0, &mut |t, to| to.write(&input(t.slot, 100)), &mut |_, _| {}).unwrap();
    let mut other = plan(1000);
    other.buffers[STATE].role = Role::State(2);
    device.load(&other).unwrap();
    device.run(&mut small, 1, &mut |_, _| {}, &mut |_, _| {}).unwrap();
    assert_eq!(device.read_state(1).unwrap(), bytes((0..100).map(sum)));
}

#[test]
fn segments_overlap() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut executable = device.load(&plan(256)).unwrap();
        let mut fill = |t: &Transfer, to: &mut unisono_gpu::Writer<'_>| {
            let whole = input(t.slot, 256);
            assert_eq!(to.bytes(), whole.len());
            whole.chunks(100).for_each(|part| to.write(part));
            assert_eq!(to.remaining(), 0);
        };
        let dropped = device.submit(&mut executable, 0, &mut fill).unwrap();
        let first = device.submit(&mut executable, 0, &mut fill).unwrap();
        let second = device.submit(&mut executable, 1, &mut fill).unwrap();
        device.wait(&mut executable, second, &mut |_, _| unreachable!()).unwrap();
        let mut seen = 0;
        device.wait(&mut executable, first, &mut |_, got| seen += got.len()).unwrap();
        assert_eq!(seen, 2 * 1024);
        let error = device.wait(&mut executable, dropped, &mut |_, _| unreachable!()).unwrap_err();
        assert_eq!(error.to_string(), "segment 0: submitted again before it was waited for");
        assert_eq!(device.read_state(1).unwrap(), bytes((0..256).map(sum)));
    }
}

#[test]
fn what_is_shared_with_the_host_stays_until_it_is_read() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut shared = plan(256);
        for id in [A, B, Y, COPIED] {
            shared.buffers[id].role = Role::Shared;
        }
        let mut executable = device.load(&shared).unwrap();
        let mut other = device.load(&plan(256)).unwrap();
        step(&device, &mut executable, 256);
        // Three submissions, one of them of a plan with the same scratch, are made before the first is waited
        // for.
        let mut fill = |t: &Transfer, to: &mut unisono_gpu::Writer<'_>| to.write(&input(t.slot, 256));
        let first = device.submit(&mut executable, 0, &mut fill).unwrap();
        let second = device.submit(&mut executable, 1, &mut fill).unwrap();
        let mut zeros = |_: &Transfer, to: &mut unisono_gpu::Writer<'_>| to.write(&[0; 1024]);
        let third = device.submit(&mut other, 0, &mut zeros).unwrap();
        let mut got = Vec::new();
        device.wait(&mut executable, first, &mut |_, bytes| got.push(bytes.to_vec())).unwrap();
        assert_eq!(got, [0, 128].map(|from| bytes((0..256).map(|i| if i < from { 0.0 } else { sum(i) }))));
        device.wait(&mut executable, second, &mut |_, _| unreachable!()).unwrap();
        device.wait(&mut other, third, &mut |_, _| {}).unwrap();
        step(&device, &mut executable, 256);
        assert_eq!(device.read_state(1).unwrap(), bytes((0..256).map(|i| 3.0 * sum(i))));
        // A shared slice that starts where nothing can be mapped goes through staging.
        let mut odd = shared.clone();
        for transfer in &mut odd.segments[0].downloads {
            transfer.slice = Slice { buffer: Y, offset: 4, bytes: 1016 };
        }
        let mut odd = device.load(&odd).unwrap();
        device.run(&mut odd, 0, &mut fill, &mut |_, got| assert_eq!(got, bytes((1..255).map(sum)))).unwrap();
        // A write that is not whole leaves nothing mapped.
        let half = device.submit(&mut executable, 0, &mut |_, to| to.write(&[0; 4])).unwrap_err();
        assert_eq!(half.to_string(), "upload of slot 7: 4 of 1024 bytes written");
        step(&device, &mut executable, 256);
    }
}

#[test]
fn two_devices_of_one_adapter_run_in_two_threads() {
    for adapter in all() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut device = Device::open(&adapter).unwrap();
                    let mut executable = device.load(&plan(1000)).unwrap();
                    for _ in 0..50 {
                        step(&device, &mut executable, 1000);
                    }
                    assert_eq!(device.read_state(1).unwrap(), bytes((0..1000).map(|i| 50.0 * sum(i))));
                });
            }
        });
    }
}

#[test]
fn a_device_may_move_to_another_thread() {
    let adapter = select::<&str>(&[]).unwrap().remove(0);
    let mut device = Device::open(&adapter).unwrap();
    let mut executable = device.load(&plan(100)).unwrap();
    step(&device, &mut executable, 100);
    std::thread::spawn(move || step(&device, &mut executable, 100)).join().unwrap();
}

#[test]
fn large_state_travels_in_chunks() {
    let mut device = Device::open(&select::<&str>(&[]).unwrap()[0]).unwrap();
    let words = (9 << 20) / 4 + 3;
    device.create_state(&StateLayout::apart([12, words * 4])).unwrap();
    let whole = bytes((0..words).map(|i| i as f32));
    device.write_state(1, &whole).unwrap();
    assert!(device.read_state(1).unwrap() == whole);
    device.write_state(0, &[1; 12]).unwrap();
    assert_eq!(device.read_state(0).unwrap(), [1; 12]);
    assert_eq!(device.write_state(0, &[0; 4]).unwrap_err().to_string(), "state 0: 4 bytes given, 12 wanted");
    assert_eq!(device.read_state(7).unwrap_err().to_string(), "state 7: does not exist");
}

#[test]
fn a_broken_kernel_is_an_error_that_names_it() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut broken = plan(100);
        broken.kernels[1].wgsl = UPDATE.replace("y[id.x]", "y[id.x] + true");
        let Err(GpuError::Validation { what, message }) = device.load(&broken) else { panic!("{adapter}") };
        assert_eq!(what, "kernel update");
        assert!(message.contains("Bool"), "{message}");
        let mut broken = plan(100);
        broken.kernels[1].bindings[0] = Access::ReadWrite;
        let Err(GpuError::Validation { what, .. }) = device.load(&broken) else { panic!("{adapter}") };
        assert_eq!(what, "kernel update");
        // The device still works.
        let mut executable = device.load(&plan(100)).unwrap();
        step(&device, &mut executable, 100);
    }
}

#[test]
fn a_launch_that_does_not_fit_its_kernel_is_an_error_when_it_is_loaded() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut short = plan(100);
        short.kernels[0].wgsl = ADD.replace("scale: u32", "scale: u32, a: u32, b: u32, c: u32");
        let Err(GpuError::Validation { what, message }) = device.load(&short) else { panic!("{adapter}") };
        assert_eq!(what, "kernel add");
        assert!(message.contains("20"), "{message}");
        let mut executable = device.load(&plan(100)).unwrap();
        step(&device, &mut executable, 100);
    }
}

#[test]
fn limits_are_errors_that_name_the_culprit() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let target = device.target();
        let mut large = plan(100);
        large.buffers[Y].bytes = target.max_buffer_bytes.next_multiple_of(4) + 4;
        let Err(GpuError::Limit { what, needs, allows }) = device.load(&large) else { panic!("{adapter}") };
        assert_eq!(what, "scratch buffer 3: bytes of a buffer");
        assert_eq!((needs, allows), (large.buffers[Y].bytes, target.max_buffer_bytes));
        let error = device.create_state(&StateLayout::apart([large.buffers[Y].bytes])).unwrap_err();
        // The CPU has less memory than a buffer may have.
        let is_known = matches!(&error, GpuError::Limit { what, .. } if what == "state 0: bytes of a buffer");
        let is_cpu = adapter.backend == Backend::Cpu;
        assert!(is_known || is_cpu && matches!(error, GpuError::OutOfMemory { .. }), "{error}");
        let mut wide = plan(100);
        let Command::Launch(launch) = &mut wide.segments[0].commands[0] else { unreachable!() };
        launch.grid[1] = target.max_workgroups + 1;
        let error = device.load(&wide).unwrap_err().to_string();
        assert!(error.starts_with("kernel add: workgroups in a dimension: needs "), "{error}");
    }
}

#[test]
fn more_memory_than_there_is_is_an_error_before_any_is_taken() {
    for adapter in all().into_iter().filter(|adapter| adapter.kind == Kind::Cpu) {
        let mut device = Device::open(&adapter).unwrap();
        let bytes = device.target().max_buffer_bytes / 4 * 4;
        let state = device.create_state(&StateLayout::apart(vec![bytes; 100_000])).unwrap_err();
        assert_eq!(state, GpuError::OutOfMemory { what: "the state".to_owned(), bytes: bytes * 100_000 });
        let mut large = plan(100);
        large.buffers.extend(vec![Buffer { bytes, role: Role::Scratch }; 100_000]);
        let scratch = device.load(&large).unwrap_err();
        assert!(matches!(scratch, GpuError::OutOfMemory { what, .. } if what == "the plan's scratch"));
        assert_eq!((device.memory().state, device.memory().scratch), (0, 0));
    }
}

#[test]
fn a_plan_that_contradicts_itself_is_an_error() {
    let mut device = Device::open(&select::<&str>(&[]).unwrap()[0]).unwrap();
    let mut check = |change: &dyn Fn(&mut Plan), wanted: &str| {
        let mut wrong = plan(100);
        change(&mut wrong);
        assert_eq!(device.load(&wrong).unwrap_err().to_string(), wanted);
    };
    fn launch(plan: &mut Plan) -> &mut Launch {
        let Command::Launch(launch) = &mut plan.segments[0].commands[0] else { unreachable!() };
        launch
    }
    check(&|p| launch(p).kernel = 5, "a launch: no kernel 5");
    check(&|p| launch(p).grid[2] = 0, "kernel add: an empty grid [2, 1, 0]");
    check(&|p| launch(p).params = vec![0; 65], "kernel add: 65 params, 64 at most");
    check(&|p| launch(p).bindings.truncate(3), "kernel add: 3 bindings given, 4 declared");
    check(
        &|p| launch(p).bindings[0].buffer = Y,
        "kernel add: scratch buffer 3 is bound for reading and for writing",
    );
    check(
        &|p| launch(p).bindings[0].bytes = 404,
        "kernel add: bytes 0+404 of scratch buffer 0 with 400 bytes",
    );
    check(&|p| p.segments[0].downloads[0].slice.buffer = 9, "segment 0, slot 9: no buffer 9");
    check(
        &|p| launch(p).bindings[3].buffer = STATE,
        "segment 0: state 1 (buffer 4) changes before the last segment",
    );
    check(&|p| p.buffers[TABLE].bytes = 20, "table (buffer 2): 4 words in 20 bytes");
}

#[test]
fn uploads_are_written_whole_or_nothing_runs() {
    let mut device = Device::open(&select::<&str>(&[]).unwrap()[0]).unwrap();
    let mut executable = device.load(&plan(100)).unwrap();
    for wrong in [396, 404] {
        let run = device.run(&mut executable, 0, &mut |_, to| to.write(&vec![0; wrong]), &mut |_, _| {});
        assert_eq!(run.unwrap_err().to_string(), format!("upload of slot 7: {wrong} of 400 bytes written"));
    }
    step(&device, &mut executable, 100);
    let run = device.run(&mut executable, 2, &mut |_, _| {}, &mut |_, _| {});
    assert_eq!(run.unwrap_err().to_string(), "segment 2: the plan has 2");
    let other = Device::open(device.adapter()).unwrap();
    let run = other.run(&mut executable, 0, &mut |_, _| {}, &mut |_, _| {});
    assert_eq!(run.unwrap_err().to_string(), "executable: belongs to another device");
}

#[test]
fn a_lost_device_is_an_error_from_then_on() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut executable = device.load(&plan(100)).unwrap();
        step(&device, &mut executable, 100);
        let pending = device.submit(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 100))).unwrap();
        device.lose();
        let lost = |result: Result<(), GpuError>| {
            assert!(matches!(result, Err(GpuError::Lost { .. })), "{result:?}")
        };
        lost(device.wait(&mut executable, pending, &mut |_, _| {}).map(drop));
        lost(device.submit(&mut executable, 0, &mut |_, _| {}).map(drop));
        lost(device.load(&plan(100)).map(drop));
        lost(device.read_state(1).map(drop));
        lost(device.write_state(1, &[0; 400]));
        drop(device);
        drop(executable);
        // The adapter is available to other devices.
        let mut device = Device::open(&adapter).unwrap();
        let mut executable = device.load(&plan(100)).unwrap();
        step(&device, &mut executable, 100);
    }
}

#[test]
fn subnormal_numbers_are_zeros_inside_of_kernels_on_cpu_adapters() {
    // The product is 0.75 2^-126 where fma rounds twice. The sum is 2^-126 with a zero in its place. Where
    // fma rounds once the product is no number of its own. What is added last is subnormal on all adapters.
    let sum = "fma(b[id.x], f32(params.scale), a[id.x]) + f32(table[id.x % 4u])";
    let [half, least] = ["0x003fffffu + params.scale / 3u", "0x007fffffu + params.scale / 3u"];
    let tiny = format!("fma(bitcast<f32>({least}) * 1.5, 0.5, bitcast<f32>({least})) + bitcast<f32>({half})");
    for adapter in all().into_iter().filter(|adapter| adapter.kind == Kind::Cpu) {
        let mut device = Device::open(&adapter).unwrap();
        let mut flushed = plan(100);
        flushed.kernels[0].wgsl = ADD.replace(sum, &tiny);
        let mut executable = device.load(&flushed).unwrap();
        let mut found = Vec::new();
        let mut keep = |_: &Transfer, bytes: &[u8]| found.push(bytes[4 * 60..][..4].to_vec());
        device.run(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 100)), &mut keep).unwrap();
        let fused = adapter.arithmetic.is_some_and(|arithmetic| arithmetic.fused);
        let expected = if fused { 1.75 * f32::MIN_POSITIVE } else { f32::MIN_POSITIVE };
        assert_eq!(found[0], expected.to_le_bytes(), "{adapter}");
    }
}

#[test]
fn f16_is_turned_on_for_those_who_ask_for_it() {
    let mut half = plan(100);
    half.kernels[0].wgsl = format!("enable f16;\n{ADD}");
    let loads = |adapter: &Adapter, f16| {
        let mut device =
            Device::open_with(adapter, Options::default().with(|options| options.f16 = f16)).unwrap();
        assert_eq!(device.target().f16, f16 && adapter.features.f16, "{}", adapter.label());
        device.create_state(&StateLayout::apart([400, 400])).unwrap();
        device.load(&half).map(drop)
    };
    for adapter in all() {
        assert!(loads(&adapter, false).is_err(), "{}", adapter.label());
        assert_eq!(loads(&adapter, true).is_ok(), adapter.features.f16, "{}", adapter.label());
    }
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let options = Options::default().with(|options| options.deadline = Duration::ZERO);
    let mut device = Device::open_with(&select::<&str>(&[]).unwrap()[0], options).unwrap();
    // Opening it took no notice of the deadline.
    let mut executable = device.load(&plan(100)).unwrap();
    let run = device.run(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 100)), &mut |_, _| {});
    assert!(matches!(run, Err(GpuError::Timeout { .. })), "{run:?}");
}

/// A device with f16 has converted the smallest halves, and none is lost. On the CPU the kernel shows.
#[test]
fn devices_with_f16_keep_its_smallest_numbers() {
    for adapter in all().iter().filter(|adapter| adapter.features.f16) {
        let compiled = [false, true].map(|f16| {
            let shared = SharedKernels::default();
            let options = Options::default().with(|options| {
                (options.f16, options.shared) = (f16, Some(shared.clone()));
            });
            let device = Device::open_with(adapter, options).unwrap();
            assert_eq!(device.target().f16, f16);
            shared.compiled()
        });
        let more = u64::from(adapter.backend == Backend::Cpu);
        assert_eq!(compiled[1] - compiled[0], more, "the kernel that looks at halves has run");
    }
}

/// Plans whose kernels differ in a number leave none of them behind once they are dropped, but for those that
/// somebody keeps.
#[test]
fn kernels_that_nobody_uses_can_be_dropped() {
    let mut device = Device::open(&select::<&str>(&[]).unwrap()[0]).unwrap();
    let of = |number: usize| {
        let mut plan = plan(64);
        plan.kernels[0].wgsl += &format!("\nconst NUMBER: u32 = {number}u;");
        plan
    };
    let mut last = None;
    for number in 0..20 {
        last = Some(device.load(&of(number)).unwrap());
        device.drop_unused_kernels();
        assert_eq!((device.kernels(), device.counters().kernels), (2, 2));
    }
    let kept = last.take().unwrap().kernels();
    device.drop_unused_kernels();
    assert_eq!(device.kernels(), 2);
    let mut again = device.load(&of(19)).unwrap();
    assert_eq!((device.kernels(), device.counters().loads), (2, 21));
    step(&device, &mut again, 64);
    drop((kept, again));
    device.drop_unused_kernels();
    assert_eq!(device.kernels(), 0);
}
