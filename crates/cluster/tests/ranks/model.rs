//! The model of what sums over machines cost, which docs/BENCHMARKS.md shows as a table: volumes are those
//! that `bytes_sent` computes, times are not measured.

use unisono_cluster::{bytes_sent, cuts};
use unisono_graph::tree;

/// Bytes a second: 100 Gb/s.
const BANDWIDTH: f64 = 12.5e9;
/// Seconds a message.
const LATENCY: f64 = 3e-6;
/// The messages of a step that come one after another: blocks, sums, outputs, and what ranks say between
/// steps.
const IN_A_ROW: u32 = 4;
/// The numbers of a model's gradients: 100 million parameters.
const PARAMETERS: usize = 100_000_000;

/// Returns a row of the table: machines, shards, blocks a machine on average, bytes that the machine that
/// sends most sends, and seconds a step in buckets of 25 MB and in buckets of 256 MB.
fn row(machines: usize, shards: usize) -> String {
    let runs = cuts(shards, &vec![1; machines]);
    let blocks: usize = runs.iter().map(|run| tree::blocks(run.clone(), shards).len()).sum();
    let sent = |bucket: usize| {
        let whole = PARAMETERS / bucket;
        let rest = PARAMETERS - whole * bucket;
        let of = |len: usize| (0..machines).map(|place| bytes_sent(len, shards, &runs, place)).max();
        (whole as u64 * of(bucket).unwrap_or(0) + of(rest).unwrap_or(0), whole + usize::from(rest > 0))
    };
    let seconds = |bucket: usize| {
        let (bytes, buckets) = sent(bucket);
        let messages = 2 * (machines - 1) * buckets;
        bytes as f64 / BANDWIDTH + messages as f64 * LATENCY
    };
    let mean = blocks as f64 / machines as f64;
    let megabytes = sent(25_000_000 / 4).0 as f64 * 1e-6;
    let [small, large] = [25_000_000, 256_000_000].map(|bytes| seconds(bytes / 4));
    format!("| {machines} | {shards} | {mean:.1} | {megabytes:.0} MB | {small:.3} s | {large:.3} s |")
}

/// A step takes at least the time of four messages on their way, however little they say.
/// `tests/tests/machines` counts those of a trainer.
#[test]
fn the_chain_in_the_documentation_is_what_the_model_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/BENCHMARKS.md");
    let text = std::fs::read_to_string(path).unwrap();
    for (way, far) in [("0.05", 0.05), ("1", 1.0), ("10", 10.0), ("100", 100.0)] {
        let row = format!("| {way} ms | {} ms |", f64::from(IN_A_ROW) * far);
        assert!(text.contains(&row), "docs/BENCHMARKS.md lacks this row: {row}");
    }
}

#[test]
fn the_table_in_the_documentation_is_what_the_model_says() {
    let cases =
        [(2, 64), (4, 64), (3, 64), (16, 1024), (100, 1024), (100, 12_800), (1000, 8192), (1000, 64_000)];
    let table: Vec<String> = cases.into_iter().map(|(machines, shards)| row(machines, shards)).collect();
    let table = table.join("\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/BENCHMARKS.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&table), "docs/BENCHMARKS.md lacks these rows:\n{table}");
}
