//! Where the time went: replica by replica, and in the input pipeline.

use std::fmt;
use std::time::Duration;

use unisono_data::Seen;
use unisono_replica::ReplicaReport;

/// What each replica did, as a table, and a line on whether the input kept up and which of its stages is the slowest.
#[derive(Clone, Debug)]
pub struct Report {
    /// The replicas, those that left included.
    pub replicas: Vec<ReplicaReport>,
    /// The input pipeline, where there was one.
    pub input: Option<Seen>,
}

impl Report {
    /// Of these replicas and this input; [`crate::Trainer::report`] is that of a run.
    pub fn new(replicas: Vec<ReplicaReport>, input: Option<Seen>) -> Self {
        Self { replicas, input }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters: Vec<String> = self.replicas.iter().map(|r| r.adapter.clone()).collect();
        let wide = adapters.iter().map(|a| a.chars().count()).max().unwrap_or(0).max(7);
        write!(f, "replica  {:wide$}  {:>7}  {:>9}", "adapter", "shards", "samples")?;
        write!(f, "  {:>8}  {:>10}  {:>10}  {:>8}", "compute", "for input", "for peers", "moving")?;
        for (report, adapter) in self.replicas.iter().zip(&adapters) {
            write!(
                f,
                "\n{:<7}  {adapter:wide$}  {:>7}  {:>9}",
                report.replica, report.shards, report.samples
            )?;
            let [compute, input, peers, moving] =
                [report.compute, report.idle, report.peers, report.moving].map(seconds);
            write!(f, "  {compute:>8}  {input:>10}  {peers:>10}  {moving:>8}")?;
            if let Some(left) = &report.left {
                write!(f, "\n         left at step {}: {}", left.step, left.why)?;
            }
        }
        match &self.input {
            Some(input) => write!(f, "\n{}", input.verdict()),
            None => Ok(()),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
