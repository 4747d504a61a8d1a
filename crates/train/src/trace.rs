//! A run's timeline in Chrome's trace format: a lane a replica, a slice for each thing it did.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use unisono_replica::{Interval, ReplicaReport};

/// Writes a trace; open it in Perfetto (ui.perfetto.dev) or at `chrome://tracing`.
pub(crate) fn write(path: &Path, replicas: &[ReplicaReport], timeline: &[Interval]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut separator = "[\n";
    for event in replicas.iter().map(lane).chain(timeline.iter().map(slice)) {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
    }
    out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    out.flush()
}

fn lane(replica: &ReplicaReport) -> Value {
    let name = format!("replica {} ({})", replica.replica, replica.adapter);
    json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": replica.replica, "args": {"name": name}})
}

/// Times are in microseconds, with nanoseconds behind the point.
fn slice(interval: &Interval) -> Value {
    let [from, to] = [interval.from, interval.to].map(|time| time.as_nanos() as f64 / 1e3);
    json!({
        "ph": "X", "name": interval.activity.name(), "cat": "replica", "pid": 0, "tid": interval.replica,
        "ts": from, "dur": to - from, "args": {"step": interval.step},
    })
}
