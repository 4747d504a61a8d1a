//! What each machine of a run did, for the report.

use std::fmt;
use std::time::Duration;

use unisono_cluster::Cluster;
use unisono_replica::ReplicaReport;

/// A shorter wait for a machine is not named.
const NOTABLE: Duration = Duration::from_millis(100);

/// What one machine of a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineReport {
    /// The number of its rank.
    pub rank: usize,
    /// The rank with the name of its host: `rank 2 (hostb)`.
    pub name: String,
    /// The number of its replicas, including those that left.
    pub replicas: u64,
    /// The number of shards that it ran.
    pub shards: u64,
    /// The number of samples that it ran.
    pub samples: u64,
    /// The time that its devices computed, summed over its replicas.
    pub compute: Duration,
    /// The time that it waited for other machines. The slowest machine waits least.
    pub waited: Duration,
    /// The part of it within steps, for sums and before a step commits.
    pub waited_in_steps: Duration,
    /// The messages from other machines that came one after another, each the answer to the one before:
    /// four a step, and those before and after the steps.
    pub messages_in_a_row: u64,
    /// The time that a message takes to the farthest machine, as measured at the start. Zero where it was not
    /// measured.
    pub latency: Duration,
    /// The bytes that it sent to sum gradients.
    pub sent: u64,
}

impl MachineReport {
    /// Returns the numbers of this machine, for other ranks.
    pub(crate) fn numbers(cluster: &Cluster, replicas: &[ReplicaReport]) -> Vec<u8> {
        let compute: Duration = replicas.iter().map(|report| report.compute).sum();
        let micros = |time: Duration| time.as_micros() as u64;
        [
            replicas.len() as u64,
            replicas.iter().map(|report| report.shards).sum(),
            replicas.iter().map(|report| report.samples).sum(),
            micros(compute),
            micros(cluster.waited()),
            cluster.bytes_sent(),
            micros(cluster.waited_in_steps()),
            cluster.messages_in_a_row(),
            micros(cluster.latency()),
        ]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect()
    }

    /// Returns the report of a rank from its numbers.
    pub(crate) fn of(cluster: &Cluster, rank: usize, numbers: &[u8]) -> Option<Self> {
        let words: Vec<u64> =
            numbers.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [replicas, shards, samples, compute, waited, sent, in_steps, messages_in_a_row, latency] =
            words[..]
        else {
            return None;
        };
        let [compute, waited, waited_in_steps, latency] =
            [compute, waited, in_steps, latency].map(Duration::from_micros);
        let name = cluster.name(rank);
        Some(Self {
            rank,
            name,
            replicas,
            shards,
            samples,
            compute,
            waited,
            waited_in_steps,
            messages_in_a_row,
            latency,
            sent,
        })
    }
}

/// What machines waited for each other, in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Network {
    /// The time in which messages were on their way, one after another.
    pub latency: Duration,
    /// The time in which the bytes of sums were moved: what the machine that waits least waits beyond that.
    pub rate: Duration,
    /// The time that this machine waits longer than the one that waits least: it waits for its work.
    pub uneven: Duration,
}

impl Network {
    /// Divides what the machine `own` has waited: the machine that waits least is the slowest one, and waits
    /// for the network alone.
    pub fn of(machines: &[MachineReport], own: usize) -> Option<Self> {
        let own = machines.iter().find(|machine| machine.rank == own)?;
        let least = machines.iter().map(|machine| machine.waited).min()?;
        let rows = u32::try_from(own.messages_in_a_row).unwrap_or(u32::MAX);
        let latency = own.latency.saturating_mul(rows).min(least);
        Some(Self { latency, rate: least - latency, uneven: own.waited - least })
    }
}

/// Names the machine for which the others waited, if that held the run up: it waited least itself.
pub(crate) fn slowest(machines: &[MachineReport]) -> Option<String> {
    let slowest = machines.iter().min_by_key(|machine| machine.waited)?;
    let others = machines.iter().filter(|machine| machine.rank != slowest.rank);
    let least = others.map(|machine| machine.waited).min()?;
    let lost = least.saturating_sub(slowest.waited);
    let is_notable = lost > NOTABLE.max(slowest.compute / 10);
    let seconds = lost.as_secs_f64();
    is_notable.then(|| format!("{} was the slowest: all others waited {seconds:.2} s for it", slowest.name))
}

impl fmt::Display for MachineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, replicas, shards, samples, compute, waited, sent, .. } = self;
        write!(
            f,
            "{name}: {replicas} replicas, {shards} shards, {samples} samples; devices worked {:.2} s, waited {:.2} s for other \
             machines, sent {:.1} MB of sums",
            compute.as_secs_f64(),
            waited.as_secs_f64(),
            *sent as f64 * 1e-6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_that_all_others_wait_for_is_named() {
        let machine = |rank: usize, waited: u64| MachineReport {
            rank,
            name: format!("rank {rank} (host{rank})"),
            replicas: 1,
            shards: 8,
            samples: 64,
            compute: Duration::from_secs(2),
            waited: Duration::from_millis(waited),
            waited_in_steps: Duration::ZERO,
            messages_in_a_row: 0,
            latency: Duration::ZERO,
            sent: 0,
        };
        let named =
            |waits: [u64; 3]| slowest(&[machine(0, waits[0]), machine(1, waits[1]), machine(2, waits[2])]);
        let wanted = "rank 1 (host1) was the slowest: all others waited 1.90 s for it";
        assert_eq!(named([2000, 100, 2400]).as_deref(), Some(wanted));
        assert_eq!(named([500, 400, 450]), None);
        assert_eq!(slowest(&[]), None);
    }
}
