//! Measures the kernels of an embedding's gradient beside each other for tables of different sizes, with ids
//! as they are in a batch: what they cost depends on them.

use std::io::{Write, stdout};
use std::time::Duration;

use unisono::data::Draws;
use unisono::gpu::{Adapter, Device, Writer};
use unisono::graph::plan::{Command, Segment, Transfer};
use unisono::graph::{DType, Plan, Program, Run, Slot, StateKind, Tape, Type};
use unisono_examples::{Error, table};

/// The features of a row.
const WIDTH: usize = 512;
/// The ids of a sample.
const PLACES: usize = 128;
/// The samples of each of eight shards.
const SHARD: usize = 8;
/// The number of times that a command runs in one submission.
const TIMES: u32 = 10;
/// The number of submissions, of which the fastest counts.
const SUBMISSIONS: usize = 10;

/// Prints the milliseconds of each command of the gradient, and the factor to the smallest table.
pub fn measure(rows: &[u32], adapter: &Adapter) -> Result<(), Error> {
    writeln!(
        stdout(),
        "embedding of {PLACES} ids, width {WIDTH}, batch {} in 8 shards, {}\n",
        8 * SHARD,
        adapter.label()
    )?;
    let mut lines = vec![["rows", "ms", "of the smallest", "command"].map(str::to_owned).to_vec()];
    let mut least = None;
    for &rows in rows {
        let times = commands(rows, adapter)?;
        let kernels: Duration =
            times.iter().filter(|(_, _, is_kernel)| *is_kernel).map(|(_, time, _)| *time).sum();
        let least = least.get_or_insert(kernels.as_secs_f64());
        let milliseconds = |time: Duration| format!("{:.3}", 1e3 * time.as_secs_f64());
        for (name, time, _) in times {
            lines.push(vec![rows.to_string(), milliseconds(time), String::new(), name]);
        }
        let factor = format!("{:.2}", kernels.as_secs_f64() / *least);
        lines.push(vec![rows.to_string(), milliseconds(kernels), factor, "the gradient's kernels".into()]);
    }
    Ok(writeln!(stdout(), "{}", table(&lines))?)
}

/// Returns each command of the gradient with its time, and whether it is one of its kernels: clearing the
/// result and looking whether it is finite take what a table of this size takes anyway.
fn commands(rows: u32, adapter: &Adapter) -> Result<Vec<(String, Duration, bool)>, Error> {
    let tape = Tape::new();
    let weight = tape.state("weight", &[rows as usize, WIDTH], StateKind::Parameter);
    let ids = tape.input("ids", Type::sample(&[PLACES]).of(DType::I32));
    let slopes = tape.input("slopes", Type::sample(&[PLACES, WIDTH]));
    let loss = (weight.embed(&ids) * slopes).sum_all().sum_shards();
    tape.output("gradient", &tape.gradients(&loss, std::slice::from_ref(&weight))[0]);
    let program = Program::compile(&tape.finish()?)?;
    let mut device = Device::open(adapter)?;
    let plan = program.plan(&Run::whole(&[SHARD; 8]), &device.target())?;
    let mut found = Vec::new();
    for command in plan.segments.iter().flat_map(|segment| &segment.commands) {
        let (name, is_kernel) = match command {
            Command::Launch(launch) => {
                let name = &plan.kernels[launch.kernel].name;
                (format!("{name} {:?}", launch.grid), name != "finite")
            }
            Command::Clear(slice) => (format!("clear {} bytes", slice.bytes), false),
            Command::Copy { .. } => continue,
        };
        found.push((name, alone(&mut device, &plan, command, (&program, rows))?, is_kernel));
    }
    Ok(found)
}

/// Returns the time of one command after all commands of its step.
fn alone(
    device: &mut Device,
    plan: &Plan,
    command: &Command,
    (program, rows): (&Program, u32),
) -> Result<Duration, Error> {
    let Some(step) = plan.segments.first() else { return Ok(Duration::ZERO) };
    let first = Segment { downloads: vec![], ..step.clone() };
    let again = Segment { commands: vec![command.clone(); TIMES as usize], ..Segment::default() };
    let mut executable = device.load(&Plan { segments: vec![first, again], ..plan.clone() })?;
    let mut draws = Draws::of(0, "bench", "embedding", 0, 0);
    let upload = &mut |transfer: &Transfer, writer: &mut Writer<'_>| {
        let Slot::Input(input) = Slot::decode(transfer.slot) else { return };
        for _ in 0..transfer.slice.bytes / 4 {
            match program.inputs()[input].ty.dtype {
                DType::F32 => writer.write(&draws.range(-1.0, 1.0).to_le_bytes()),
                _ => writer.write(&draws.below(rows).to_le_bytes()),
            }
        }
    };
    device.run(&mut executable, 0, upload, &mut |_, _| {})?;
    let mut fastest = Duration::MAX;
    for _ in 0..SUBMISSIONS {
        let timing = device.run(&mut executable, 1, &mut |_, _| {}, &mut |_, _| {})?;
        fastest = fastest.min(timing.total() / TIMES);
    }
    Ok(fastest)
}
