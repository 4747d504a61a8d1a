//! What a report comes to, in a few lines.

use serde_json::{Value, json};

use super::parts::{Group, Record, Report, States};
use super::process::Ended;

/// The parts without which nobody knows whether an adapter computes correctly. One of each line is enough.
const CHECKS: [&[&str]; 3] = [&["conformance"], &["vendors", "random graphs"], &["digits, 1 replica"]];

/// How the runs are called that the CPU has a part in.
pub const BY_CPU: [&str; 2] = ["CPU", "with the CPU"];

/// Returns the parts that did not end as they have to, and are not only told.
pub fn failed(report: &Report) -> Vec<String> {
    let is_bad = |record: &&Record| !record.is_right && record.group != Group::Told;
    let parts = report.records.iter().filter(is_bad).map(|record| record.name.clone());
    parts.chain(differing(&report.states, report.is_class_of_cpu())).collect()
}

/// Returns the programs whose runs did not all end in one state. With an adapter of another class than the
/// CPU's, the CPU's runs are not compared.
fn differing(states: &States, is_class_of_cpu: bool) -> Vec<String> {
    let differs = |(program, states): (&String, &Vec<(String, String)>)| {
        // The CPU that computes what a matrix unit does is chosen by the unit's class.
        let compares_cpu = is_class_of_cpu || program.ends_with("units");
        let compared = states.iter().filter(|(how, _)| compares_cpu || !BY_CPU.contains(&how.as_str()));
        let mut ends = compared.map(|(_, state)| state);
        let first = ends.next()?;
        let is_one = first != "none" && ends.all(|state| state == first);
        (!is_one).then(|| format!("{program}: not one state"))
    };
    states.iter().filter_map(differs).collect()
}

/// Returns the parts that an adapter has to pass to be right, and that did not end well in a report, as
/// report.json has it.
pub fn unchecked(report: &Value) -> Vec<String> {
    let parts = report["parts"].as_array().map_or(&[][..], Vec::as_slice);
    let passed = |name: &&str| parts.iter().any(|part| part["name"] == **name && part["ended"] == "well");
    let missing = CHECKS.iter().filter(|any| !any.iter().any(&passed));
    missing.map(|any| any.join(" or ")).collect()
}

/// Returns the verdict.
pub fn of(report: &Report) -> Value {
    let machine = &report.facts.get("machine").cloned().unwrap_or_default();
    let speed = report.facts.get("speed").cloned().unwrap_or_default();
    let best = |kind: &str| {
        let of = |product: &Value| product["tflop_per_s"].as_f64().filter(|_| product["kind"] == kind);
        speed["products"].as_array()?.iter().filter_map(of).max_by(f64::total_cmp)
    };
    let (failed, unchecked) = (failed(report), unchecked(&json!({ "parts": report.records })));
    json!({
        "is_right": failed.is_empty() && unchecked.is_empty(), "failed": failed, "unchecked": unchecked,
        "left_out": report.records.iter().filter(|record| record.ended == Ended::LeftOut)
            .map(|record| &record.name).collect::<Vec<_>>(),
        "class": machine["class"], "same_as": machine["cpus_of_the_same_class"],
        "f32_tflop_per_s": best("f32"), "mixed_tflop_per_s": best("mixed"),
        "fma_tflop_per_s": speed["fma_tflop_per_s"],
        "copy_gb_per_s": speed["copy_gb_per_s"]["kernel"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_right_only_if_results_were_checked() {
        let report = |names: &[&str], ended: &str| {
            let parts: Vec<Value> =
                names.iter().map(|name| json!({ "name": name, "ended": ended })).collect();
            unchecked(&json!({ "parts": parts }))
        };
        let all = ["conformance", "vendors or random graphs", "digits, 1 replica"];
        assert_eq!(report(&["machine", "matrix units", "step gpt100m mixed"], "well"), all);
        assert_eq!(report(&["conformance", "vendors", "digits, 1 replica"], "left_out"), all);
        assert!(report(&["conformance", "random graphs", "digits, 1 replica"], "well").is_empty());
        assert_eq!(report(&["conformance", "vendors", "digits, CPU"], "well"), all[2..]);
    }

    #[test]
    fn the_cpu_is_compared_where_it_is_of_the_same_class() {
        let states = |program: &str, ends: &[(&str, &str)]| -> States {
            let ends = ends.iter().map(|(how, state)| ((*how).to_owned(), (*state).to_owned()));
            [(program.to_owned(), ends.collect())].into()
        };
        let other = [("CPU", "a"), ("1 replica", "b"), ("2 replicas", "b"), ("with the CPU", "none")];
        let wrong = ["digits: not one state"];
        assert_eq!(differing(&states("digits", &other), true), wrong);
        assert!(differing(&states("digits", &other), false).is_empty());
        assert!(differing(&states("digits", &other[1..3]), true).is_empty());
        assert_eq!(differing(&states("digits", &[("1 replica", "b"), ("2 replicas", "c")]), false), wrong);
        assert_eq!(differing(&states("digits", &[("1 replica", "none")]), false), wrong);
        let units = [("CPU", "a"), ("1 replica", "b")];
        assert_eq!(differing(&states("digits, mixed+units", &units), false).len(), 1);
    }
}
