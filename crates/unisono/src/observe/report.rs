//! The report of where the time went: replica by replica, and in the input pipeline.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use unisono_data::Seen;
use unisono_replica::{AuditReport, ReplicaReport, WitnessReport};

use crate::Scaling;
use crate::compile::memory::bytes;
use crate::observe::machines::{MachineReport, Network, slowest};

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
    /// The rank of the machine whose replicas these are. 0 where there is one machine.
    pub rank: usize,
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
            rank: 0,
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
        let replicas = self.apart_from_machines();
        let sum = |of: &dyn Fn(&Times) -> Duration| replicas.iter().map(of).sum::<Duration>();
        let (idle, peers) = (sum(&|r| r.input), sum(&|r| r.peers));
        let (moved, loading) = (sum(&|r| r.upload + r.exchange), sum(&|r| r.loading));
        let (compute, driver) = (sum(&|r| r.compute), sum(&|r| r.driver));
        let machines: Duration = replicas.iter().map(|r| r.machines).sum();
        let all = (idle + peers + moved + loading + compute + driver + machines).as_secs_f64();
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
        if machines > worst && percent(machines) >= NOTABLE {
            return self.machines_diagnosis(percent(machines));
        }
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

    /// Returns the replicas' times with what this machine waited for others on its own. Replicas book such
    /// waits as ones for input between steps, and as exchange or ones for peers within steps.
    fn apart_from_machines(&self) -> Vec<Times> {
        let own = self.machines.iter().find(|machine| machine.rank == self.rank);
        let within = own.map_or(Duration::ZERO, |own| own.waited_in_steps);
        let between = own.map_or(Duration::ZERO, |own| own.waited.saturating_sub(within));
        let of = |report: &ReplicaReport| {
            let between = between.min(report.input);
            // Sums are waited for where they are added, and agreements where peers are waited for.
            let of_sums = within.min(report.exchange);
            let of_peers = (within - of_sums).min(report.peers);
            Times {
                upload: report.upload,
                driver: report.driver,
                compute: report.compute,
                exchange: report.exchange - of_sums,
                input: report.input - between,
                peers: report.peers - of_peers,
                loading: report.loading,
                machines: of_sums + of_peers + between,
            }
        };
        self.replicas.iter().map(of).collect()
    }

    /// Says what of the network, or which machine, this one waited for. `percent` is the share of its time.
    fn machines_diagnosis(&self, percent: f64) -> Option<String> {
        let network = Network::of(&self.machines, self.rank)?;
        let own = self.machines.iter().find(|machine| machine.rank == self.rank)?;
        let Network { latency, rate, uneven } = network;
        let sent = own.sent as f64 * 1e-6;
        let more = "a larger --global-batch needs fewer steps (this starts a new run)";
        Some(if latency >= rate && latency >= uneven {
            format!(
                "latency-bound: {percent}% of the time went into waiting for other machines, most of it for messages on \
                 their way: {} of them one after another, {:.1} ms each; {more}",
                own.messages_in_a_row,
                1e3 * own.latency.as_secs_f64()
            )
        } else if rate >= uneven {
            format!(
                "network-bound: {percent}% of the time went into waiting for other machines, most of it for the bytes of \
                 sums: {sent:.1} MB at {:.1} MB/s; a faster network helps, and {more}",
                sent / rate.as_secs_f64().max(f64::MIN_POSITIVE)
            )
        } else {
            let slowest = self.machines.iter().min_by_key(|machine| machine.waited)?;
            format!(
                "uneven machines: {percent}% of the time went into waiting for other machines, most for {}",
                slowest.name
            )
        })
    }
}

/// Where a replica's time went, with its machine's waits for others on their own.
struct Times {
    upload: Duration,
    driver: Duration,
    compute: Duration,
    exchange: Duration,
    input: Duration,
    peers: Duration,
    loading: Duration,
    machines: Duration,
}

/// How long each replica was busy, waited for input and waited for peers, up to the last epoch.
#[derive(Default)]
pub(super) struct EpochTimes(BTreeMap<usize, [Duration; 3]>);

impl EpochTimes {
    /// Returns these times of a replica in the epoch that has ended, in seconds.
    pub fn next(&mut self, report: &ReplicaReport) -> [f64; 3] {
        let busy = report.upload + report.compute + report.driver + report.exchange;
        let now = [busy, report.input, report.peers];
        let before = self.0.insert(report.replica, now).unwrap_or_default();
        [0, 1, 2].map(|i| now[i].saturating_sub(before[i]).as_secs_f64())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters: Vec<String> = self.replicas.iter().map(|r| r.adapter.clone()).collect();
        let wide = adapters.iter().map(|a| a.chars().count()).max().unwrap_or(0).max(7);
        write!(f, "replica  {:wide$}  {:>7}  {:>9}", "adapter", "shards", "samples")?;
        write!(f, "  {:>8}  {:>8}  {:>8}  {:>8}", "upload", "driver", "compute", "exchange")?;
        write!(f, "  {:>9}  {:>9}  {:>8}", "for input", "for peers", "loading")?;
        let has_machines = !self.machines.is_empty();
        if has_machines {
            write!(f, "  {:>12}", "for machines")?;
        }
        let times = self.apart_from_machines();
        for ((report, adapter), times) in self.replicas.iter().zip(&adapters).zip(&times) {
            write!(
                f,
                "\n{:<7}  {adapter:wide$}  {:>7}  {:>9}",
                report.replica, report.shards, report.samples
            )?;
            let [upload, driver] = [times.upload, times.driver].map(seconds);
            let [compute, exchange] = [times.compute, times.exchange].map(seconds);
            let [input, peers, loading] = [times.input, times.peers, times.loading].map(seconds);
            write!(
                f,
                "  {upload:>8}  {driver:>8}  {compute:>8}  {exchange:>8}  {input:>9}  {peers:>9}  {loading:>8}"
            )?;
            if has_machines {
                write!(f, "  {:>12}", seconds(times.machines))?;
            }
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
            write!(f, "\ngradient sums: {each} to each replica")?;
            if early > 0 {
                let early = (100.0 * early as f64 / received as f64).round();
                write!(f, ", {early}% of it during computation")?;
            }
        }
        if let Some(Scaling { scale, skipped, .. }) = &self.scaling {
            let scale = f64::from(*scale);
            write!(f, "\nmixed precision: a loss scale of {scale}, {skipped} steps skipped because of it")?;
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
            uploaded: 0,
            downloaded: 0,
            resident: 0,
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

    /// A report of two machines of which this one has waited `own` seconds and the other one `other`, with
    /// messages that take this many milliseconds.
    fn of_machines(own: u64, other: u64, latency: u64) -> Report {
        let seconds = Duration::from_secs;
        // Half of the waits are within steps, where replicas book them as exchange or as ones for peers.
        let machine = |rank: usize, waited: u64| MachineReport {
            rank,
            name: format!("rank {rank} (host{rank})"),
            replicas: 1,
            shards: 8,
            samples: 64,
            compute: seconds(10),
            waited: seconds(waited),
            waited_in_steps: seconds(waited) / 2,
            messages_in_a_row: 500,
            latency: Duration::from_millis(latency),
            sent: 400_000_000,
        };
        let mut replica = ReplicaReport { compute: seconds(10), ..replica() };
        replica.input = seconds(own) / 2 + seconds(1);
        // A fifth of it where sums are added.
        replica.exchange = seconds(own) / 5;
        replica.peers = seconds(own) * 3 / 10;
        let mut report = Report::new(vec![replica], None);
        report.machines = vec![machine(0, own), machine(1, other)];
        report
    }

    #[test]
    fn what_machines_wait_for_is_told_apart() {
        let says = |report: &Report, what: &str| {
            let said = report.diagnosis().unwrap();
            assert!(said.starts_with(what), "{said}");
        };
        let report = of_machines(52, 50, 100);
        says(
            &report,
            "latency-bound: 83% of the time went into waiting for other machines, most of it for messages on their \
             way: 500 of them one after another, 100.0 ms each",
        );
        // What a machine waits for others is no wait for input.
        let text = report.to_string();
        assert!(text.lines().next().unwrap().ends_with("loading  for machines"), "{text}");
        assert!(
            text.lines().nth(1).unwrap().ends_with("1.00 s     0.00 s    0.00 s       52.00 s"),
            "{text}"
        );
        says(&of_machines(50, 40, 1), "network-bound: 82% of the time went into waiting for other machines");
        assert!(of_machines(50, 40, 1).diagnosis().unwrap().contains("400.0 MB at 10.1 MB/s"));
        says(
            &of_machines(50, 2, 1),
            "uneven machines: 82% of the time went into waiting for other machines, most for rank 1 (host1)",
        );
        says(&of_machines(1, 1, 1), "compute-bound: devices worked 83% of the time");
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
