//! A run's timeline in Chrome's trace format. Each replica has a lane with a slice for each thing it did, and
//! below it a lane for its device with a slice for each submission by the device's own clock, where the
//! device has one. On several machines each bucket of sums has a lane for the time that it is on its way.

use std::collections::BTreeSet;
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
    let buckets: BTreeSet<usize> = timeline.iter().filter(|i| is_exchange(i)).map(|i| i.replica).collect();
    let lanes = lanes.chain(buckets.into_iter().map(exchange_lane));
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

/// The number of the lane of the first bucket of sums between machines, behind those of all replicas.
const EXCHANGES: usize = 100_000;

fn is_exchange(interval: &Interval) -> bool {
    interval.activity == Activity::Machines
}

fn exchange_lane(bucket: usize) -> Value {
    let name = format!("bucket {bucket} of sums between machines");
    json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": EXCHANGES + bucket, "args": {"name": name}})
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
    let category = match interval.activity {
        Activity::Device => "device",
        Activity::Machines => "machines",
        _ => "replica",
    };
    let lane = match is_exchange(interval) {
        true => EXCHANGES + interval.replica,
        false => thread(interval.replica, is_device(interval)),
    };
    json!({
        "ph": "X", "name": interval.activity.name(), "cat": category, "pid": 0, "tid": lane,
        "ts": from, "dur": to - from, "args": {"step": interval.step},
    })
}
