//! The report of a run on several machines finds what of the network holds it up.

use std::time::Duration;

use unisono::cluster::{Fault, Script};
use unisono::{Cluster, Report};
use unisono_tests::{loader, on_ranks, perceptron};

/// Trains an epoch on three ranks. Returns the report of each, with the number of its messages in a row.
fn reports(samples: usize, faults: Vec<Fault>) -> Vec<(Report, u64)> {
    let run = |cluster: Cluster| {
        let data = loader(samples, 5).unwrap();
        let builder = perceptron(16).global_batch(8).shards(4).digest_every(1000);
        let mut trainer = builder.cluster(cluster.clone()).build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        let report = trainer.report();
        let own = report.machines.iter().find(|machine| machine.rank == cluster.rank()).unwrap();
        assert!(own.waited_in_steps <= own.waited, "{own:?}");
        let in_a_row = own.messages_in_a_row;
        (report, in_a_row)
    };
    on_ranks(3, Script { seed: 1, faults }, run)
}

/// The model in docs/BENCHMARKS.md counts four for each step.
#[test]
fn a_step_has_four_messages_in_a_row() {
    let [many, few] = [160, 80].map(|samples| reports(samples, vec![]));
    // Ten steps more.
    let more: Vec<u64> = many.iter().zip(&few).map(|((_, many), (_, few))| many - few).collect();
    assert_eq!(more, [40; 3]);
}

/// The time of the network is virtual, and replicas measure none of it: they book what their machine waited,
/// as on a network.
#[test]
fn the_report_tells_latency_and_rate_apart() {
    let says = |faults: Vec<Fault>, what: &str| {
        for (mut report, _) in reports(80, faults) {
            let own = report.machines.iter().find(|machine| machine.rank == report.rank).unwrap().clone();
            for replica in &mut report.replicas {
                replica.input += own.waited - own.waited_in_steps;
                replica.exchange += own.waited_in_steps;
            }
            let said = report.diagnosis().unwrap_or_default();
            assert!(said.starts_with(what), "rank {}: {said}", report.rank);
            assert!(report.to_string().contains(&said));
        }
    };
    let slow = |by: Duration| (0..3).map(move |rank| Fault::Slow { rank, after: 0, by });
    let narrow = |rate: u64| (0..3).map(move |rank| Fault::Narrow { rank, after: 0, rate });
    says(slow(Duration::from_secs(5)).collect(), "latency-bound: ");
    // Messages have some hundred bytes.
    says(narrow(50).collect(), "network-bound: ");
    // Where both are slow, the larger part is named.
    says(narrow(50).chain(slow(Duration::from_millis(10))).collect(), "network-bound: ");
    says(narrow(1_000_000).chain(slow(Duration::from_secs(5))).collect(), "latency-bound: ");
}
