//! A run's timeline in Chrome's trace format. Each replica has a lane with a slice for each thing it did, and
//! below it a lane for its device with a slice for each submission by the device's own clock, where the
//! device has one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use unisono_replica::{Activity, Interval, ReplicaReport};

/// Writes a trace, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.
pub(crate) fn write(path: &Path, replicas: &[ReplicaReport], timeline: &[Interval]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut separator = "[\n";
    let devices = replicas.iter().filter(|r| timeline.iter().any(|i| is_device(i) && i.replica == r.replica));
    let lanes = replicas.iter().map(|r| lane(r, false)).chain(devices.map(|r| lane(r, true)));
    for event in lanes.chain(timeline.iter().map(slice)) {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
    }
    out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    out.flush()
}

fn is_device(interval: &Interval) -> bool {
    interval.activity == Activity::Device
}

/// Two numbers for each replica: one for what it did, one for its device.
fn thread(replica: usize, device: bool) -> usize {
    2 * replica + usize::from(device)
}

fn lane(replica: &ReplicaReport, device: bool) -> Value {
    let what = if device { "device of replica" } else { "replica" };
    let name = format!("{what} {} ({})", replica.replica, replica.adapter);
    let thread = thread(replica.replica, device);
    json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": name}})
}

/// Times are in microseconds, with nanoseconds behind the point.
fn slice(interval: &Interval) -> Value {
    let [from, to] = [interval.from, interval.to].map(|time| time.as_nanos() as f64 / 1e3);
    json!({
        "ph": "X", "name": interval.activity.name(), "cat": if is_device(interval) { "device" } else { "replica" },
        "pid": 0, "tid": thread(interval.replica, is_device(interval)),
        "ts": from, "dur": to - from, "args": {"step": interval.step},
    })
}
