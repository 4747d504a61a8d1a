//! A wait for a device does not count time in which the process was stopped.

use std::process::{Command, id};
use std::time::{Duration, Instant};

use unisono_gpu::{Device, Executable, Options, select};

pub fn a_stopped_process_loses_no_device() {
    /// How long the process is stopped: longer than the deadline.
    const STOP: Duration = Duration::from_secs(11);
    const DEADLINE: Duration = Duration::from_secs(10);
    /// How long the work takes at least in the middle of which the process is stopped.
    const WORK: Duration = Duration::from_secs(1);

    let options = Options::default().with(|options| options.deadline = DEADLINE);
    let mut device = Device::open_with(&select::<&str>(&[]).unwrap()[0], options).unwrap();
    let run = |device: &mut Device, executable: &mut Executable| {
        let start = Instant::now();
        device.run(executable, 0, &mut |_, _| {}, &mut |_, _| {}).map(|_| start.elapsed())
    };
    let measured = |device: &mut Device, launches: usize| {
        let mut executable = device.load(&work(launches)).unwrap();
        run(device, &mut executable).unwrap()
    };
    measured(&mut device, 1);
    let mut launches = 4;
    while measured(&mut device, launches) < WORK / 2 {
        launches *= 2;
    }
    let stopped_within = (0..3).any(|_| {
        // If the work was done before the stop came, twice as much is done: it was measured while it was
        // disturbed, or the shell was late.
        launches *= 2;
        let mut executable = device.load(&work(launches)).unwrap();
        let stop = format!("sleep 0.3; kill -STOP {0}; sleep {1}; kill -CONT {0}", id(), STOP.as_secs());
        let mut shell = Command::new("sh").args(["-c", &stop]).spawn().unwrap();
        let took = run(&mut device, &mut executable);
        assert!(shell.wait().unwrap().success());
        took.unwrap() > STOP
    });
    assert!(stopped_within, "the work was always done before the stop, and should take {WORK:?}");
}

/// Returns a plan of so many launches, one after another, each of 65,536 threads.
fn work(launches: usize) -> unisono_graph::plan::Plan {
    use unisono_graph::plan::{Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Work};

    let wgsl = "
        @group(0) @binding(0) var<uniform> rounds: vec4<u32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            var x = y[id.x];
            for (var i = 0u; i < rounds.x; i++) { x = fma(x, 0.999, 1.0 / fma(x, x, 1.0)); }
            y[id.x] = x;
        }";
    let whole = Slice { buffer: 0, offset: 0, bytes: 4 << 16 };
    let launch = Launch {
        kernel: 0,
        bindings: vec![whole],
        params: vec![2000, 0, 0, 0],
        grid: [1 << 10, 1, 1],
        work: Work::default(),
    };
    Plan {
        kernels: vec![Kernel {
            name: "work".to_owned(),
            wgsl: wgsl.to_owned(),
            bindings: vec![Access::ReadWrite],
        }],
        buffers: vec![Buffer { bytes: 4 << 16, role: Role::Scratch }],
        segments: vec![Segment { commands: vec![Command::Launch(launch); launches], ..Segment::default() }],
    }
}
