//! Measures where a training step's time goes on the device. Each launch is run alone, many times in one
//! submission.

use std::io::{Write, stdout};
use std::time::Duration;

use unisono::gpu::{Adapter, Device, Options};
use unisono::graph::plan::{Command, Segment, Work};
use unisono::graph::{Plan, Program, Run};
use unisono_examples::{Error, table};

/// The number of times that a launch runs in one submission.
const TIMES: u32 = 10;
/// The number of submissions. The fastest counts, because other work of the machine can only add to a
/// launch's time.
const SUBMISSIONS: usize = 10;

/// Prints a line for every launch of a step on one replica: milliseconds, share, the rates at which it
/// computes and moves the least that it has to, name, grid.
pub fn measure(program: &Program, run: &Run, adapter: &Adapter) -> Result<(), Error> {
    let mut device =
        Device::open_with(adapter, Options::default().with(|options| options.f16 = program.stores_f16()))?;
    let plan = program.plan(run, &device.target())?;
    let commands = plan.segments.iter().flat_map(|s| &s.commands);
    let times: Vec<(String, Work, Alone)> = commands
        .filter_map(|command| match command {
            Command::Launch(launch) => {
                let name = format!("{} {:?}", plan.kernels[launch.kernel].name, launch.grid);
                Some(alone(&mut device, &plan, command).map(|time| (name, launch.work, time)))
            }
            _ => None,
        })
        .collect::<Result<_, _>>()?;
    let all: Duration = times.iter().map(|t| t.2.host).sum();
    let on_device: Option<Duration> = times.iter().map(|t| t.2.device).sum();
    let milliseconds = |time: Duration| format!("{:.3}", 1e3 * time.as_secs_f64());
    let rate =
        |count: u64, time: Duration, unit: f64| format!("{:.3}", count as f64 / time.as_secs_f64() / unit);
    let head = ["ms", "share", "TFLOP/s", "GB/s", "launch"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(times.into_iter().map(|(name, work, Alone { host: time, .. })| {
        let share = format!("{:.1}%", 100.0 * time.as_secs_f64() / all.as_secs_f64());
        let (computed, moved) = (rate(work.flops, time, 1e12), rate(work.bytes, time, 1e9));
        vec![milliseconds(time), share, computed, moved, name]
    }));
    rows.push(vec![milliseconds(all), "100%".into(), String::new(), String::new(), "all".into()]);
    writeln!(stdout(), "{}", table(&rows))?;
    let whole = whole(&mut device, &plan)?;
    let each = |took: Duration| 1e6 * took.as_secs_f64() / whole.launches.max(1) as f64;
    let (launches, record) = (whole.launches, each(whole.record));
    writeln!(stdout(), "recording the step's {launches} launches takes the host {record:.2} us a launch")?;
    match whole.device.zip(on_device) {
        Some((step, alone)) => Ok(writeln!(
            stdout(),
            "by the device's clock: {} ms from the first launch to the end of the last, {} ms for its launches \
             one by one, so gaps of {:.2} us a launch",
            milliseconds(step),
            milliseconds(alone),
            each(step.saturating_sub(alone))
        )?),
        None => Ok(writeln!(stdout(), "gaps between launches: the device has no clock")?),
    }
}

/// What a whole step takes.
struct Whole {
    /// The number of its launches.
    launches: usize,
    /// The time in which the host records it.
    record: Duration,
    /// The time from the beginning of its first launch to the end of its last one, by the device's clock.
    device: Option<Duration>,
}

/// Returns the fastest times of a whole step. What the step computes does not matter.
fn whole(device: &mut Device, plan: &Plan) -> Result<Whole, Error> {
    let mut executable = device.load(plan)?;
    let mut whole = Whole { launches: executable.launches(), record: Duration::MAX, device: None };
    for _ in 0..SUBMISSIONS {
        let step = device.submit_all(&mut executable, 0, &mut |transfer, to| {
            to.write(&vec![0; transfer.slice.bytes as usize]);
        })?;
        let timing = device.collect(&mut executable, step, &mut |_, _| {})?;
        whole.record = whole.record.min(timing.record);
        whole.device = whole.device.into_iter().chain(timing.device.map(|own| own.to - own.from)).min();
    }
    Ok(whole)
}

/// The time of one launch.
#[derive(Clone, Copy)]
struct Alone {
    /// What the host waits for it.
    host: Duration,
    /// What it takes by the device's clock.
    device: Option<Duration>,
}

/// Returns the time of one launch. What its buffers contain does not matter.
fn alone(device: &mut Device, plan: &Plan, command: &Command) -> Result<Alone, Error> {
    let commands = vec![command.clone(); TIMES as usize];
    let segment = Segment { commands, ..Segment::default() };
    let mut executable = device.load(&Plan { segments: vec![segment], ..plan.clone() })?;
    let mut fastest = Alone { host: Duration::MAX, device: None };
    for _ in 0..SUBMISSIONS {
        let timing = device.run(&mut executable, 0, &mut |_, _| {}, &mut |_, _| {})?;
        fastest.host = fastest.host.min(timing.total() / TIMES);
        let own = timing.device.map(|own| (own.to - own.from) / TIMES);
        fastest.device = fastest.device.into_iter().chain(own).min();
    }
    Ok(fastest)
}
