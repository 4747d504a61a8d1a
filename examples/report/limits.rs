//! The part `limits`: a device that takes too long is given up at its deadline, and what does not fit is an
//! error that says what does.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use unisono::data::Memory;
use unisono::gpu::{Adapter, Device, GpuError, Options, select};
use unisono::graph::plan::{Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Work};
use unisono::{AdamW, Dense, Sequential, Trainer};
use unisono_examples::{Error, program};

#[derive(Parser)]
pub struct Flags {
    /// The adapter
    #[arg(long, value_name = "NAME")]
    adapter: String,
}

const DEADLINE: Duration = Duration::from_millis(500);

/// Each invocation computes for a while.
const BUSY: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = y[id.x];
    for (var i = 0u; i < params.x; i++) { x = fma(x, 0.999, 1.0 / fma(x, x, 1.0)); }
    y[id.x] = x;
}";

pub fn main() -> ExitCode {
    program(check)
}

fn check(flags: Flags) -> Result<(), Error> {
    let adapter = select(&[&flags.adapter])?.swap_remove(0);
    let too_large = too_large(&flags.adapter)?;
    let given_up = hang(&adapter)?;
    writeln!(stdout(), "{}", json!({ "too_large": too_large, "given_up_after_ms": given_up }))?;
    // The device may still be at work: nothing waits for it.
    std::process::exit(0)
}

/// Returns the error of a model of 4 TiB.
fn too_large(adapter: &str) -> Result<String, Error> {
    const WIDE: usize = 1 << 20;
    let data = Memory::labelled(vec![0.0; WIDE], [WIDE], vec![0])?;
    let model = Sequential::new().add(Dense::new(WIDE));
    let builder = Trainer::builder(model).optimizer(AdamW::new(1e-3)).adapter(adapter).replicas(1);
    match builder.global_batch(1).shards(1).build(&unisono::data::Loader::new(data).fields()?) {
        Ok(_) => Err("a model of 4 TiB was built".into()),
        Err(error) => Ok(error.to_string()),
    }
}

/// Returns after how many milliseconds a device was given up that works for longer than its deadline.
fn hang(adapter: &Adapter) -> Result<f64, Error> {
    let mut rounds = 1 << 12;
    let mut took = run(adapter, rounds, Duration::from_secs(60))??;
    while took < DEADLINE / 4 && rounds < 1 << 28 {
        rounds *= 4;
        took = run(adapter, rounds, Duration::from_secs(60))??;
    }
    let rounds = (f64::from(rounds) * 6.0 * DEADLINE.as_secs_f64() / took.as_secs_f64()) as u32;
    let began = Instant::now();
    match run(adapter, rounds, DEADLINE)? {
        Err(GpuError::Timeout { .. }) => Ok(1e3 * began.elapsed().as_secs_f64()),
        Err(error) => Err(error.into()),
        Ok(took) => Err(format!("a deadline of {DEADLINE:?} let work of {took:?} pass").into()),
    }
}

fn run(adapter: &Adapter, rounds: u32, deadline: Duration) -> Result<Result<Duration, GpuError>, Error> {
    let options = Options::default().with(|options| options.deadline = deadline);
    let mut device = Device::open_with(adapter, options)?;
    let whole = Slice { buffer: 0, offset: 0, bytes: 4 * 64 * 256 };
    let launch = Launch {
        kernel: 0,
        bindings: vec![whole],
        params: vec![rounds, 0, 0, 0],
        grid: [256, 1, 1],
        work: Work::default(),
    };
    let kernel = Kernel { name: "busy".into(), wgsl: BUSY.into(), bindings: vec![Access::ReadWrite] };
    let plan = Plan {
        kernels: vec![kernel],
        buffers: vec![Buffer { bytes: whole.bytes, role: Role::Scratch }],
        segments: vec![Segment { commands: vec![Command::Launch(launch)], ..Segment::default() }],
    };
    let mut executable = device.load(&plan)?;
    let result = device.run(&mut executable, 0, &mut |_, _| {}, &mut |_, _| {}).map(|timing| timing.total());
    if result.is_err() {
        // Closing a device that is at work could take as long as the work.
        std::mem::forget((device, executable));
    }
    Ok(result)
}
