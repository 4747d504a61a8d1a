//! What each machine of a run did, for the report.

use std::fmt;
use std::time::Duration;

use unisono_replica::ReplicaReport;
use unisono_world::World;

/// What a machine of a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineReport {
    /// The number of its rank.
    pub rank: usize,
    /// The rank with the name of its host: `rank 2 (hostb)`.
    pub name: String,
    /// The number of its replicas, those that left included.
    pub replicas: u64,
    /// The number of shards that it ran.
    pub shards: u64,
    /// The number of samples that it ran.
    pub samples: u64,
    /// The time that its devices worked, added up over its replicas.
    pub compute: Duration,
    /// The time that it waited for other machines: the slowest one waits least.
    pub waited: Duration,
    /// The bytes that it sent to add up sums.
    pub sent: u64,
}

impl MachineReport {
    /// Returns the numbers of this machine, for other ranks.
    pub(crate) fn numbers(world: &World, replicas: &[ReplicaReport]) -> Vec<u8> {
        let compute: Duration = replicas.iter().map(|report| report.compute).sum();
        let micros = |time: Duration| time.as_micros() as u64;
        [
            replicas.len() as u64,
            replicas.iter().map(|report| report.shards).sum(),
            replicas.iter().map(|report| report.samples).sum(),
            micros(compute),
            micros(world.waited()),
            world.bytes_sent(),
        ]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect()
    }

    /// Returns the report of a rank from its numbers.
    pub(crate) fn of(world: &World, rank: usize, numbers: &[u8]) -> Option<Self> {
        let words: Vec<u64> =
            numbers.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [replicas, shards, samples, compute, waited, sent] = words[..] else { return None };
        let [compute, waited] = [compute, waited].map(Duration::from_micros);
        Some(Self { rank, name: world.name(rank), replicas, shards, samples, compute, waited, sent })
    }
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
