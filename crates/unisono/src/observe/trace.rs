//! A run's timeline in Chrome's trace format. Each replica has a lane with a slice for each thing it did, and
//! below it a lane for its device with a slice for each submission by the device's own clock, where the
//! device has one. On several machines each bucket of sums has a lane for the time that it is on its way.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use unisono_replica::{Activity, Interval, ReplicaReport};

use crate::observe::file;

/// Writes the events of all machines, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.
pub(crate) fn write(path: &Path, machines: &[Vec<u8>]) -> std::io::Result<()> {
    let mut parts: Vec<&[u8]> = vec![b"[\n"];
    for (at, events) in machines.iter().filter(|events| !events.is_empty()).enumerate() {
        parts.extend([if at == 0 { &b""[..] } else { b",\n" }, events]);
    }
    parts.push(b"\n]\n");
    file::replace(path, &parts)
}

/// Returns the events of a machine, with commas between them. On several machines each is a process of the
/// trace, which has the number of the rank and its `name`.
pub(crate) fn events(
    rank: usize,
    name: Option<String>,
    replicas: &[ReplicaReport],
    timeline: &[Interval],
) -> Vec<u8> {
    let devices = replicas.iter().filter(|r| timeline.iter().any(|i| is_device(i) && i.replica == r.replica));
    let lanes = replicas.iter().map(|r| lane(r, false)).chain(devices.map(|r| lane(r, true)));
    let buckets: BTreeSet<usize> = timeline.iter().filter(|i| is_exchange(i)).map(|i| i.replica).collect();
    let lanes = lanes.chain(buckets.into_iter().map(exchange_lane));
    let process = name.map(|name| json!({"ph": "M", "name": "process_name", "args": {"name": name}}));
    let all = process.into_iter().chain(lanes).chain(timeline.iter().map(slice)).map(|mut event| {
        event["pid"] = rank.into();
        event.to_string()
    });
    all.collect::<Vec<_>>().join(",\n").into_bytes()
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
    json!({"ph": "M", "name": "thread_name", "tid": EXCHANGES + bucket, "args": {"name": name}})
}

/// Two numbers for each replica: one for what it did, one for its device.
fn thread(replica: usize, device: bool) -> usize {
    2 * replica + usize::from(device)
}

fn lane(replica: &ReplicaReport, device: bool) -> Value {
    let what = if device { "device of replica" } else { "replica" };
    let name = format!("{what} {} ({})", replica.replica, replica.adapter);
    let thread = thread(replica.replica, device);
    json!({"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": name}})
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
    let steps = match interval.steps {
        1 => json!({"step": interval.step}),
        steps => json!({"step": interval.step, "steps summed up": steps}),
    };
    json!({
        "ph": "X", "name": interval.activity.name(), "cat": category, "tid": lane,
        "ts": from, "dur": to - from, "args": steps,
    })
}
