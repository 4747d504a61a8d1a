//! What a report comes to, in a few lines.

use serde_json::{Value, json};

use super::parts::{Group, Record, Report};

/// Returns the parts that did not end as they have to, and are not only told.
pub fn failed(report: &Report) -> Vec<String> {
    let is_bad = |record: &&Record| !record.is_right && record.group != Group::Told;
    let parts = report.records.iter().filter(is_bad).map(|record| record.name.clone());
    let states = report.states.iter().filter(|(_, states)| !is_one(states));
    parts.chain(states.map(|(program, _)| format!("{program}: not one state"))).collect()
}

/// Returns whether all runs of a program ended in one state. With an adapter of another class than the CPU's
/// the CPU's runs are not compared.
fn is_one(states: &[(String, String)]) -> bool {
    states.windows(2).all(|pair| pair[0].1 == pair[1].1) && states.iter().all(|(_, state)| state != "none")
}

/// Returns the verdict.
pub fn of(report: &Report) -> Value {
    let machine = &report.facts.get("machine").cloned().unwrap_or_default();
    let speed = report.facts.get("speed").cloned().unwrap_or_default();
    let best = |kind: &str| {
        let of = |product: &Value| product["tflop_per_s"].as_f64().filter(|_| product["kind"] == kind);
        speed["products"].as_array()?.iter().filter_map(of).max_by(f64::total_cmp)
    };
    let failed = failed(report);
    json!({
        "is_right": failed.is_empty(), "failed": failed,
        "left_out": report.records.iter().filter(|record| record.ended == super::process::Ended::LeftOut)
            .map(|record| &record.name).collect::<Vec<_>>(),
        "class": machine["class"], "same_as": machine["cpus_of_the_same_class"],
        "f32_tflop_per_s": best("f32"), "mixed_tflop_per_s": best("mixed"),
        "fma_tflop_per_s": speed["fma_tflop_per_s"],
        "copy_gb_per_s": speed["copy_gb_per_s"]["kernel"],
    })
}
