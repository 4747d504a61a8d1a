//! The report of where the time went: replica by replica, and in the input pipeline.

use std::fmt;
use std::time::Duration;

use unisono_data::Seen;
use unisono_replica::{AuditReport, ReplicaReport, WitnessReport};

use crate::Scaling;
use crate::compile::memory::bytes;
use crate::observe::machines::{MachineReport, slowest};

/// The share of the time in percent from which a wait is named.
const NOTABLE: f64 = 20.0;

/// What each replica did, what slowed the run down, whether the input kept up, and which stage of the input
/// is the slowest. Prints as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The reports of the replicas, including those that left.
    pub replicas: Vec<ReplicaReport>,
    /// The reports of the machines at the end of the last fit. Empty if there is only one.
    pub machines: Vec<MachineReport>,
    /// What the input pipeline did. `None` if there was none.
    pub input: Option<Seen>,
    /// The loss scale. `None` without mixed precision.
    pub scaling: Option<Scaling>,
    /// Results and cost of the audits of training steps. `None` if there were none.
    pub audits: Option<AuditReport>,
    /// What the witness did, if the run has one ([`crate::Builder::witness`]).
    pub witness: Option<WitnessReport>,
    /// How many of its shards a replica computed at once, and why. `None` if it computed all of them at once.
    pub shards_at_once: Option<String>,
}

impl Report {
    /// Makes a report of some replicas and an input pipeline. [`crate::Trainer::report`] returns that of a
    /// run.
    pub fn new(replicas: Vec<ReplicaReport>, input: Option<Seen>) -> Self {
        Self {
            replicas,
            machines: Vec::new(),
            input,
            scaling: None,
            audits: None,
            witness: None,
            shards_at_once: None,
        }
    }

    /// Says in a line what held the run up, such as `input-bound: replicas waited 41% of the time for data;
    /// try --loader-threads 8`. Returns `None` where nothing was done.
    pub fn diagnosis(&self) -> Option<String> {
        let sum = |of: &dyn Fn(&ReplicaReport) -> Duration| self.replicas.iter().map(of).sum::<Duration>();
        let (idle, peers) = (sum(&|r| r.input), sum(&|r| r.peers));
        let (moved, loading) = (sum(&|r| r.upload + r.exchange), sum(&|r| r.loading));
        let (compute, driver) = (sum(&|r| r.compute), sum(&|r| r.driver));
        let all = (idle + peers + moved + loading + compute + driver).as_secs_f64();
        if all == 0.0 {
            return None;
        }
        // Replicas wait between steps for other things than input too: for the caller and for checkpoints.
        let kept_up = self
            .input
            .as_ref()
            .is_some_and(|seen| seen.waited.as_secs_f64() < 0.05 * seen.elapsed.as_secs_f64());
        let input = if kept_up { Duration::ZERO } else { idle };
        let percent = |time: Duration| (100.0 * time.as_secs_f64() / all).round();
        let worst = [input, peers, moved, loading, driver].into_iter().max().unwrap_or_default();
        Some(if percent(worst) < NOTABLE {
            format!("compute-bound: devices worked {}% of the time", percent(compute))
        } else if worst == input {
            let more = self.input.as_ref().map_or(8, |seen| 2 * seen.threads.max(1));
            let waited = percent(input);
            format!(
                "input-bound: replicas waited {waited}% of the time for data; try --loader-threads {more}"
            )
        } else if worst == peers {
            let slowest = self.replicas.iter().max_by_key(|r| r.compute).map_or(0, |r| r.replica);
            format!(
                "load imbalance: replicas waited {}% of the time for others, mostly for replica {slowest}; try more --shards \
                 (this starts a new run)",
                percent(peers)
            )
        } else if worst == moved {
            format!(
                "exchange-bound: {}% of the time went into exchanging gradients; try a larger --global-batch (this starts a \
                 new run)",
                percent(moved)
            )
        } else if worst == driver {
            format!(
                "driver-bound: {}% of the time went into launching kernels; try a larger --global-batch (this starts a new \
                 run)",
                percent(driver)
            )
        } else {
            format!("short run: {}% of the time went into compiling and loading", percent(loading))
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters: Vec<String> = self.replicas.iter().map(|r| r.adapter.clone()).collect();
        let wide = adapters.iter().map(|a| a.chars().count()).max().unwrap_or(0).max(7);
        write!(f, "replica  {:wide$}  {:>7}  {:>9}", "adapter", "shards", "samples")?;
        write!(f, "  {:>8}  {:>8}  {:>8}  {:>8}", "upload", "driver", "compute", "exchange")?;
        write!(f, "  {:>9}  {:>9}  {:>8}", "for input", "for peers", "loading")?;
        for (report, adapter) in self.replicas.iter().zip(&adapters) {
            write!(
                f,
                "\n{:<7}  {adapter:wide$}  {:>7}  {:>9}",
                report.replica, report.shards, report.samples
            )?;
            let [upload, driver] = [report.upload, report.driver].map(seconds);
            let [compute, exchange] = [report.compute, report.exchange].map(seconds);
            let [input, peers, loading] = [report.input, report.peers, report.loading].map(seconds);
            write!(
                f,
                "  {upload:>8}  {driver:>8}  {compute:>8}  {exchange:>8}  {input:>9}  {peers:>9}  {loading:>8}"
            )?;
            if let Some(left) = &report.left {
                write!(f, "\n         left at step {}: {}", left.step, left.why)?;
            }
        }
        for machine in &self.machines {
            write!(f, "\n{machine}")?;
        }
        if let Some(slowest) = slowest(&self.machines) {
            write!(f, "\n{slowest}")?;
        }
        if let Some(diagnosis) = self.diagnosis() {
            write!(f, "\n{diagnosis}")?;
        }
        let sums = |of: &dyn Fn(&ReplicaReport) -> u64| self.replicas.iter().map(of).sum::<u64>();
        let (received, early) = (sums(&|r| r.received), sums(&|r| r.received_early));
        if received > 0 {
            let each = bytes(self.replicas.iter().map(|r| r.received).max().unwrap_or_default());
            write!(f, "\nsums: {each} to each replica")?;
            if early > 0 {
                let early = (100.0 * early as f64 / received as f64).round();
                write!(f, ", {early}% of it during computation")?;
            }
        }
        if let Some(Scaling { scale, skipped, .. }) = &self.scaling {
            let scale = f64::from(*scale);
            write!(f, "\nmixed precision: a loss scale of {scale}, {skipped} steps skipped for it")?;
        }
        if let Some(how) = &self.shards_at_once {
            write!(f, "\nmemory: {how}")?;
        }
        if let Some(audits) = &self.audits {
            let share = audits.auditing.as_secs_f64() / audits.stepping.as_secs_f64().max(f64::MIN_POSITIVE);
            write!(
                f,
                "\naudits: {} of {} steps were recomputed and agreed ({:.1}% more time); a replica that is always wrong is found \
                 within {} steps",
                audits.passed,
                audits.steps,
                100.0 * share,
                audits.interval.saturating_mul(2).saturating_sub(1)
            )?;
        }
        if let Some(WitnessReport { adapter, agreed, waited, left, .. }) = &self.witness {
            write!(f, "\nwitness: {adapter} recomputed {agreed} of the steps and agreed")?;
            write!(f, "; the run waited {} for it", seconds(*waited))?;
            if let Some(why) = left {
                write!(f, "; it left: {why}")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that made a step, which took no time.
    fn replica() -> ReplicaReport {
        let zero = Duration::ZERO;
        ReplicaReport {
            replica: 0,
            adapter: "a".into(),
            thread: std::thread::current().id(),
            shards: 1,
            samples: 1,
            steps: 1,
            overlapped: 0,
            received: 0,
            received_early: 0,
            submissions: 1,
            waits: 1,
            loads: 1,
            kernels: 1,
            input: zero,
            upload: zero,
            compute: zero,
            driver: zero,
            exchange: zero,
            peers: zero,
            loading: zero,
            state_bytes: 0,
            left: None,
        }
    }

    /// Diagnoses a run with these seconds of input, peers, exchange, loading, compute and the driver.
    fn diagnosis(seconds: [u64; 6]) -> Option<String> {
        let [input, peers, exchange, loading, compute, driver] = seconds.map(Duration::from_secs);
        let replica = ReplicaReport { input, compute, driver, exchange, peers, loading, ..replica() };
        Report::new(vec![replica], None).diagnosis()
    }

    #[test]
    fn the_part_of_the_sums_that_went_early_is_told() {
        let some = |received, received_early| ReplicaReport { received, received_early, ..replica() };
        let told = |replicas| Report::new(replicas, None).to_string();
        assert!(!told(vec![some(0, 0)]).contains("sums"));
        assert!(told(vec![some(1 << 20, 0)]).ends_with("sums: 1.0 MiB to each replica"));
        let two = told(vec![some(3 << 20, 1 << 20), some(1 << 20, 1 << 20)]);
        assert!(two.contains("sums: 3.0 MiB to each replica, 50% of it during computation"), "{two}");
    }

    #[test]
    fn the_largest_wait_is_named() {
        let says = |seconds, what: &str| {
            let said = diagnosis(seconds).unwrap();
            assert!(said.starts_with(what), "{said}");
        };
        assert_eq!(diagnosis([0; 6]), None);
        says(
            [41, 9, 0, 0, 40, 10],
            "input-bound: replicas waited 41% of the time for data; try --loader-threads 8",
        );
        says(
            [5, 30, 0, 0, 55, 10],
            "load imbalance: replicas waited 30% of the time for others, mostly for replica 0",
        );
        says([5, 5, 40, 0, 40, 10], "exchange-bound: 40%");
        says([0, 0, 0, 60, 30, 10], "short run: 60%");
        says([5, 5, 0, 0, 50, 40], "driver-bound: 40%");
        says([5, 5, 5, 5, 70, 10], "compute-bound: devices worked 70% of the time");
    }

    #[test]
    fn audits_of_any_interval_are_told() {
        for (interval, steps) in [(u64::MAX, u64::MAX - 1), (3, 5), (0, 0)] {
            let mut report = Report::new(Vec::new(), None);
            let mut audits = AuditReport::default();
            audits.interval = interval;
            report.audits = Some(audits);
            let text = report.to_string();
            assert!(text.ends_with(&format!("is found within {steps} steps")), "{text}");
        }
    }
}
