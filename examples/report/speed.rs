//! The part `speed`: what a device does at best, as JSON. Launches that wait for each other, multiply-adds
//! in registers, copies, transfers from and to the host, and products of whole matrices.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use unisono::gpu::{Device, Options, Timing, select};
use unisono::graph::plan::{
    Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer, Work, WorkKind,
};
use unisono::graph::{Program, Run};
use unisono::{Tape, Type};
use unisono_examples::{Error, program};

#[derive(Parser)]
pub struct Flags {
    /// The adapter
    #[arg(long, value_name = "NAME")]
    adapter: String,
    /// Take less time
    #[arg(long)]
    short: bool,
}

/// The number of runs, of which the fastest counts.
const RUNS: usize = 5;
/// The number of launches that wait for each other.
const LAUNCHES: usize = 1000;
/// A product that takes longer is the last one.
pub const LONG: Duration = Duration::from_millis(700);
const MIB: u64 = 1 << 20;

/// One invocation adds one to a number.
const COUNT: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { if id.x == 0u { y[0] += 1u; } }";

/// Copies vectors of four numbers; the grid has two dimensions, since one may have 65,535 workgroups.
const COPY: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.x + id.x;
    y[i] = x[i];
}";

/// Thirty-two chains of multiply-adds in each invocation.
const FMA: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = y[id.x];
    var s = array<vec4<f32>, 8>(a, a + 1.0, a + 2.0, a + 3.0, a + 4.0, a + 5.0, a + 6.0, a + 7.0);
    for (var i = 0u; i < params.x; i++) {
        s[0] = fma(s[0], a, a); s[1] = fma(s[1], a, a); s[2] = fma(s[2], a, a); s[3] = fma(s[3], a, a);
        s[4] = fma(s[4], a, a); s[5] = fma(s[5], a, a); s[6] = fma(s[6], a, a); s[7] = fma(s[7], a, a);
    }
    y[id.x] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}";

pub fn main() -> ExitCode {
    program(measure)
}

fn measure(flags: Flags) -> Result<(), Error> {
    let adapter = select(&[flags.adapter])?.swap_remove(0);
    let mut device =
        Device::open_with(&adapter, Options::default().with(|options| options.f16 = adapter.features.f16))?;
    let most = adapter.limits.storage_binding_bytes.min(adapter.limits.buffer_bytes);
    let bytes = most.min(if flags.short { 16 * MIB } else { 256 * MIB });
    let (launch_us, launch_us_by_its_clock) = launches(&mut device)?;
    let facts = json!({
        "launch_us": launch_us, "launch_us_by_its_clock": launch_us_by_its_clock,
        "copy_gb_per_s": copies(&mut device, bytes)?,
        "fma_tflop_per_s": multiply_adds(&mut device)?,
        "transfer_bytes": bytes.min(64 * MIB),
        "upload_gb_per_s": upload(&mut device, bytes.min(64 * MIB))?,
        "read_back_gb_per_s": read_back(&mut device, bytes.min(64 * MIB))?,
        "products": products(&mut device, if flags.short { 1024 } else { 8192 })?,
    });
    Ok(writeln!(stdout(), "{facts}")?)
}

/// Returns the fastest of several runs of a plan of one segment. What is read back is dropped.
fn fastest(device: &mut Device, plan: &Plan, upload: &[u8]) -> Result<Timing, Error> {
    let mut executable = device.load(plan)?;
    let mut best: Option<Timing> = None;
    for _ in 0..RUNS {
        let timing = device.run(&mut executable, 0, &mut |_, to| to.write(upload), &mut |_, data| {
            std::hint::black_box(data.iter().step_by(4096).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        })?;
        best = Some(best.filter(|best| best.total() <= timing.total()).unwrap_or(timing));
    }
    best.ok_or_else(|| "nothing ran".into())
}

fn plan(kernel: &str, buffers: &[u64], params: [u32; 4], grid: [u32; 3], times: usize) -> Plan {
    let slice = |(buffer, &bytes): (usize, &u64)| Slice { buffer, offset: 0, bytes };
    let access =
        if buffers.len() > 1 { vec![Access::Read, Access::ReadWrite] } else { vec![Access::ReadWrite] };
    let launch = Launch {
        kernel: 0,
        bindings: buffers.iter().enumerate().map(slice).collect(),
        params: params.to_vec(),
        grid,
        work: Work::default(),
    };
    Plan {
        kernels: vec![Kernel { name: "measured".into(), wgsl: kernel.into(), bindings: access }],
        buffers: buffers.iter().map(|&bytes| Buffer { bytes, role: Role::Scratch }).collect(),
        segments: vec![Segment { commands: vec![Command::Launch(launch); times], ..Segment::default() }],
    }
}

/// Returns the microseconds from one launch to the next that waits for it: by the host, with those for
/// recording both, and by the device's clock, if it has one. The launches compute next to nothing, so the
/// latter is the gap between launches.
fn launches(device: &mut Device) -> Result<(f64, Option<f64>), Error> {
    let timing = fastest(device, &plan(COUNT, &[256], [0; 4], [1, 1, 1], LAUNCHES), &[])?;
    let each = |time: Duration| 1e6 * time.as_secs_f64() / LAUNCHES as f64;
    Ok((each(timing.total()), timing.device.map(|stretch| each(stretch.to - stretch.from))))
}

/// Returns the rates of copies by a kernel and by commands: bytes read and written.
fn copies(device: &mut Device, bytes: u64) -> Result<Value, Error> {
    const TIMES: usize = 10;
    let groups = (bytes / 16 / 256) as u32;
    let width = groups.min(32768);
    let params = [256 * width, 0, 0, 0];
    let mut plan = plan(COPY, &[bytes, bytes], params, [width, groups / width, 1], TIMES);
    let moved = 2.0 * bytes as f64 * TIMES as f64;
    let kernel = moved / fastest(device, &plan, &[])?.total().as_secs_f64() / 1e9;
    let [from, to] = [0, 1].map(|buffer| Slice { buffer, offset: 0, bytes });
    plan.kernels.clear();
    plan.segments[0].commands = vec![Command::Copy { from, to }; TIMES];
    let command = moved / fastest(device, &plan, &[])?.total().as_secs_f64() / 1e9;
    Ok(json!({ "bytes": bytes, "kernel": kernel, "command": command }))
}

/// Returns the rate of multiply-adds in registers, each of which is two operations.
fn multiply_adds(device: &mut Device) -> Result<f64, Error> {
    const GROUPS: u32 = 1 << 12;
    let mut rounds = 16;
    loop {
        let bytes = 16 * 256 * u64::from(GROUPS);
        let plan = plan(FMA, &[bytes], [rounds, 0, 0, 0], [GROUPS, 1, 1], 1);
        let took = fastest(device, &plan, &[])?.total();
        if took > Duration::from_millis(15) || rounds > 1 << 20 {
            let operations = 2.0 * 32.0 * 256.0 * f64::from(GROUPS) * f64::from(rounds);
            return Ok(operations / took.as_secs_f64() / 1e12);
        }
        rounds *= 4;
    }
}

/// Returns the rates at which the host fills memory of uploads, and at which all of an upload is done.
fn upload(device: &mut Device, bytes: u64) -> Result<Value, Error> {
    let slice = Slice { buffer: 0, offset: 0, bytes };
    let data = vec![7; bytes as usize];
    let timing = fastest(device, &transfer(slice, true), &data)?;
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    Ok(json!({ "filling": rate(timing.upload), "all": rate(timing.total()) }))
}

/// Returns the rates at which the host reads memory of read-backs, and at which all of a read-back is done.
fn read_back(device: &mut Device, bytes: u64) -> Result<Value, Error> {
    let slice = Slice { buffer: 0, offset: 0, bytes };
    let timing = fastest(device, &transfer(slice, false), &[])?;
    Ok(json!({ "all": bytes as f64 / timing.total().as_secs_f64() / 1e9 }))
}

fn transfer(slice: Slice, up: bool) -> Plan {
    let transfers = vec![Transfer { slot: 0, slice }];
    let none = Vec::new();
    let (uploads, downloads) = if up { (transfers, none) } else { (none, transfers) };
    Plan {
        kernels: Vec::new(),
        buffers: vec![Buffer { bytes: slice.bytes, role: Role::Scratch }],
        segments: vec![Segment { uploads, commands: Vec::new(), downloads }],
    }
}

/// Returns the rates of products of two n x n matrices, in f32 and of numbers that f16 holds.
fn products(device: &mut Device, most: usize) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for kind in ["f32", "mixed"].into_iter().take(if device.target().f16 { 2 } else { 1 }) {
        let mut n = 1024;
        while n <= most {
            // A matrix may be larger than what a kernel may bind.
            let Ok(took) = product(device, n, kind == "mixed") else { break };
            let flops = 2.0 * (n as f64).powi(3);
            all.push(json!({ "n": n, "kind": kind, "ms": 1e3 * took.as_secs_f64(),
                "tflop_per_s": flops / took.as_secs_f64() / 1e12 }));
            if took > LONG {
                break;
            }
            n *= 2;
        }
    }
    Ok(all)
}

/// Returns the time of a product of two n x n matrices, of numbers that f16 holds if `halves`.
pub fn product(device: &mut Device, n: usize, halves: bool) -> Result<Duration, Error> {
    let tape = Tape::new();
    let [a, b] = ["a", "b"].map(|name| tape.input(name, Type::global(&[n, n])));
    let [a, b] = if halves { [a.round_half(), b.round_half()] } else { [a, b] };
    tape.output("c", &a.matmul(&b));
    let program = Program::compile(&tape.finish()?)?;
    let plan = program.plan(&Run { first: 0, sizes: vec![1], shards: 1 }, &device.target())?;
    let is_product = |command: &&Command| matches!(command, Command::Launch(launch) if launch.work.kind == WorkKind::Product);
    let commands: Vec<Command> =
        plan.segments.iter().flat_map(|segment| &segment.commands).filter(is_product).cloned().collect();
    let segment = Segment { commands, ..Segment::default() };
    Ok(fastest(device, &Plan { segments: vec![segment], ..plan }, &[])?.total())
}
