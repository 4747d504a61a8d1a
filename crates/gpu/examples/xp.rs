use std::time::Duration;
use unisono_gpu::{Adapter, Device, Options, Timing, select};
use unisono_graph::ops::MatMul;
use unisono_graph::plan::{Command, Plan, Segment, WorkKind};
use unisono_graph::{Layout, Program, Run, Slot, Tape, Type, half::round_half};
type Error = Box<dyn std::error::Error>;
const RUNS: usize = 5;
fn main() -> Result<(), Error> {
    unisono_gpu::prepare_environment();
    let args: Vec<String> = std::env::args().collect();
    let adapter = select(&[&args[1]])?.swap_remove(0).with_matrix_units()?;
    if args[2] != "-" {
        dump(&adapter, std::path::Path::new(&args[2]))?;
    }
    let most: usize = args.get(3).map_or(0, |n| n.parse().unwrap());
    let mut device = Device::open_with(&adapter, Options::default().with(|options| options.f16 = true))?;
    for n in [1024, 2048, 4096, 8192].into_iter().filter(|n| *n <= most) {
        for (ta, tb) in [(false, false), (false, true), (true, false)] {
            let took = product_of(&mut device, n, ta, tb)?.as_secs_f64();
            println!(
                "{n} {ta} {tb}: {:.3} ms {:.1} TFLOP/s",
                1e3 * took,
                2.0 * (n as f64).powi(3) / took / 1e12
            );
        }
    }
    Ok(())
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

/// Returns the time of a product of two n x n matrices, of numbers that f16 holds if `halves`.
fn product_of(
    device: &mut Device,
    n: usize,
    transpose_a: bool,
    transpose_b: bool,
) -> Result<Duration, Error> {
    let tape = Tape::new();
    let [a, b] = ["a", "b"].map(|name| tape.input(name, Type::global(&[n, n])));
    let [a, b] = [a.round_half(), b.round_half()];
    tape.output("c", &tape.apply(MatMul { transpose_a, transpose_b }, &[&a, &b]));
    let program = Program::compile_with(&tape.finish()?, Layout { f16: true, ..Layout::default() })?;
    let plan = program.plan(&Run { first: 0, sizes: vec![1], shards: 1 }, &device.target())?;
    let is_product = |command: &&Command| matches!(command, Command::Launch(launch) if launch.work.kind == WorkKind::Product);
    let commands: Vec<Command> =
        plan.segments.iter().flat_map(|segment| &segment.commands).filter(is_product).cloned().collect();
    let segment = Segment { commands, ..Segment::default() };
    Ok(fastest(device, &Plan { segments: vec![segment], ..plan }, &[])?.total())
}
fn dump(adapter: &Adapter, dir: &std::path::Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir)?;
    let mut device = Device::open_with(adapter, Options::default().with(|options| options.f16 = true))?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut word = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    };
    for (k, m, n) in [
        (16, 128, 128),
        (32, 128, 128),
        (48, 128, 128),
        (64, 128, 128),
        (2120, 200, 136),
        (1100, 260, 300),
        (40, 1024, 1032),
    ] {
        for kind in 0..5 {
            let mut value = |i: usize| {
                let w = word();
                let sign = if w & 1 == 0 { 1.0 } else { -1.0 };
                let fraction = 1.0 + (w >> 8 & 0x3ff) as f32 / 1024.0;
                let e = (w >> 20) as i32;
                let x = match kind {
                    0 => sign * fraction,
                    1 => sign * fraction * 2f32.powi(e % 12 - 6),
                    2 => sign * fraction * 2f32.powi(e % 29 - 14),
                    // Many zeros beside large and small numbers.
                    4 if e % 3 > 0 => sign * 0.0,
                    4 if e % 7 > 2 => sign * fraction * 2f32.powi(e % 4 - 13),
                    4 => sign * fraction * 2f32.powi(e % 15),
                    _ if e % 5 == 0 => sign * ((w >> 8 & 0x3ff) as f32) / (1 << 24) as f32,
                    // One large product, the rest are small.
                    _ if i % k == (i / k) % k => sign * fraction * 256.0,
                    _ => fraction * 2f32.powi(e % 10 - 10) * sign,
                };
                round_half(x)
            };
            let a: Vec<f32> = (0..m * k).map(&mut value).collect();
            let b: Vec<f32> = (0..n * k).map(&mut value).collect();
            let turned = |x: &[f32], rows: usize| -> Vec<f32> {
                (0..k).flat_map(|p| (0..rows).map(move |r| (r, p))).map(|(r, p)| x[r * k + p]).collect()
            };
            let mut first: Option<Vec<u8>> = None;
            for (transpose_a, transpose_b) in [(false, true), (false, false), (true, true), (true, false)] {
                let tape = Tape::new();
                let dims = |rows: usize, turned: bool| if turned { [k, rows] } else { [rows, k] };
                let x = tape.input("a", Type::global(&dims(m, transpose_a))).round_half();
                let y = tape.input("b", Type::global(&dims(n, !transpose_b))).round_half();
                tape.output("c", &tape.apply(MatMul { transpose_a, transpose_b }, &[&x, &y]));
                let layout = Layout { f16: true, ..Default::default() };
                let program = Program::compile_with(&tape.finish()?, layout)?;
                let plan = program.plan(&Run { first: 0, sizes: vec![1], shards: 1 }, &device.target())?;
                let names: Vec<&str> = plan.kernels.iter().map(|kernel| &kernel.name[..]).collect();
                let text = plan.kernels.iter().find(|kernel| kernel.name.contains("unit"));
                let text = text.map(|kernel| kernel.wgsl.clone()).unwrap_or_default();
                let lies = ["a", "b"].map(|x| text.contains(&format!("{x}: array<vec4<u32>>")));
                let mut executable = device.load(&plan)?;
                let bytes = |all: &[f32]| -> Vec<u8> { all.iter().flat_map(|x| x.to_le_bytes()).collect() };
                let a = bytes(&if transpose_a { turned(&a, m) } else { a.clone() });
                let b = bytes(&if transpose_b { b.clone() } else { turned(&b, n) });
                let inputs: Vec<&Vec<u8>> =
                    program.inputs().iter().map(|input| if input.name == "a" { &a } else { &b }).collect();
                let mut result = Vec::new();
                for segment in 0..plan.segments.len() {
                    device.run(
                        &mut executable,
                        segment,
                        &mut |slot, to| match Slot::decode(slot.slot) {
                            Slot::Input(i) => to.write(inputs[i]),
                            _ => to.write(&[]),
                        },
                        &mut |slot, data| {
                            if let Slot::Output(0) = Slot::decode(slot.slot) {
                                result = data.to_vec();
                            }
                        },
                    )?;
                }
                let other = first.get_or_insert_with(|| result.clone()) != &result;
                if other || kind == 0 {
                    let tile = text.find("const TILE").map(|at| text[at..at + 24].replace('\n', " "));
                    println!(
                        "{k} {m} {n} {kind} {transpose_a} {transpose_b}: {names:?} {lies:?} {tile:?} differs: {other}"
                    );
                }
                if !transpose_a && transpose_b && k < 100 && m == 128 {
                    for (name, data) in [("a", a), ("b", b), ("c", result)] {
                        std::fs::write(dir.join(format!("{k}_{kind}.{name}")), data)?;
                    }
                }
            }
            let digest = first.unwrap().iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            println!("{k} {m} {n} {kind}: {digest:016x}");
        }
    }
    Ok(())
}
