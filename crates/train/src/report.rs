//! Where the time went, replica by replica.

use std::fmt;
use std::time::Duration;

use unisono_replica::ReplicaReport;

/// What each replica did; prints as a table.
#[derive(Clone, Debug)]
pub struct Report {
    replicas: Vec<ReplicaReport>,
}

impl Report {
    /// Of these replicas, for example [`crate::Trainer::reports`].
    pub fn new(replicas: Vec<ReplicaReport>) -> Self {
        Self { replicas }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters: Vec<String> = self.replicas.iter().map(|r| r.adapter.clone()).collect();
        let wide = adapters.iter().map(|a| a.chars().count()).max().unwrap_or(0).max(7);
        write!(f, "replica  {:wide$}  {:>7}  {:>9}", "adapter", "shards", "samples")?;
        write!(f, "  {:>8}  {:>8}  {:>8}", "upload", "compute", "exchange")?;
        write!(f, "  {:>9}  {:>9}  {:>8}", "for input", "for peers", "loading")?;
        for (report, adapter) in self.replicas.iter().zip(&adapters) {
            write!(
                f,
                "\n{:<7}  {adapter:wide$}  {:>7}  {:>9}",
                report.replica, report.shards, report.samples
            )?;
            let [upload, compute, exchange] = [report.upload, report.compute, report.exchange].map(seconds);
            let [input, peers, loading] = [report.input, report.peers, report.loading].map(seconds);
            write!(f, "  {upload:>8}  {compute:>8}  {exchange:>8}  {input:>9}  {peers:>9}  {loading:>8}")?;
            if let Some(left) = &report.left {
                write!(f, "\n         left at step {}: {}", left.step, left.why)?;
            }
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
