//! Runs every reference case on every adapter, as the program `conformance` does for any directory.

mod spread;

use std::collections::BTreeSet;
use std::path::Path;

use unisono_gpu::Adapter;
use unisono_graph::Precision;
use unisono_tests::conformance::{Runner, Suite};

#[test]
fn every_case_passes_on_every_adapter() {
    let adapters = unisono_testkit::adapters();
    assert!(!adapters.is_empty(), "no adapter found");
    let suites = Suite::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle")).unwrap();
    assert!(suites.iter().map(|s| s.cases.len()).sum::<usize>() >= 143);
    let outcomes = suites.iter().flat_map(|suite| adapters.iter().map(move |a| (suite, a)));
    let outcomes: Vec<_> = outcomes.map(|(suite, a)| Runner::open(a).unwrap().suite(suite)).collect();
    let failed: Vec<String> =
        outcomes.iter().filter(|o| !o.failures.is_empty()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Products, convolutions, attention and whatever has them, forward and backward, by the matrix units that
/// the CPU computes and those that drivers list.
#[test]
fn every_case_passes_by_matrix_units() {
    let hopper = Adapter::cpu("hopper".parse().unwrap());
    let adapters = unisono_testkit::adapters().into_iter().chain(hopper);
    let by_unit = adapters.filter(|adapter| adapter.with_matrix_units().is_ok());
    let opened: Vec<_> = by_unit.map(|adapter| Runner::open_in(&adapter, Precision::MatrixUnits)).collect();
    assert!(opened.len() >= 2, "the CPU computes two units");
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let suites =
        ["ops", "layers", "losses"].map(|name| Suite::read(&oracle.join(name).with_extension("json")));
    for mut runner in opened.into_iter().map(Result::unwrap) {
        for suite in &suites {
            let outcome = runner.suite(suite.as_ref().unwrap());
            assert!(outcome.failures.is_empty(), "{outcome}");
        }
    }
}

#[test]
fn wrong_numbers_and_unknown_cases_fail() {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let mut suite = Suite::read(&oracle.join("optimizers.json")).unwrap();
    suite.cases.truncate(2);
    suite.cases[0].expect.get_mut("y").unwrap().data[0] += 0.01;
    suite.cases[1].op = "quantum_descent".into();
    let adapter = &unisono_testkit::adapters()[0];
    let failures = Runner::open(adapter).unwrap().suite(&suite).failures;
    assert!(failures[0].contains("times its tolerance"), "{failures:?}");
    assert!(failures[1].contains("no recipe for op \"quantum_descent\""), "{failures:?}");
}

/// Returns the names that lines such as `pub use sgd::Sgd;` and `pub use hinge::{Hinge, MultiMargin};` export
/// from other modules than these.
fn exported(source: &str, without: &[&str]) -> Vec<String> {
    let flat = source.replace(['\n', ' '], "");
    let uses = flat.split(';').filter_map(|item| item.rsplit_once("pubuse").map(|(_, path)| path.to_owned()));
    let mut names = Vec::new();
    for path in uses {
        let Some((module, list)) = path.split_once("::") else { continue };
        if !without.contains(&module) {
            names.extend(list.trim_matches(['{', '}']).split(',').map(str::to_owned));
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Returns the names of the layers in the list of layers: `"relu"` of `activations::Relu = "relu": Relu,`.
fn layers(source: &str) -> Vec<String> {
    let list = source.split_once("layers! {").unwrap().1;
    let named = list.split(" = \"").skip(1).filter_map(|rest| rest.split_once("\":"));
    named.map(|(name, _)| name.to_owned()).collect()
}

/// Every layer, loss, metric and optimizer has a case, under its name or the other program's.
#[test]
fn everything_that_computes_has_a_case() {
    macro_rules! facade {
        ($path:literal) => {
            include_str!(concat!("../../../crates/unisono/src/", $path, "/mod.rs"))
        };
    }
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let suites = Suite::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle")).unwrap();
    let ops: BTreeSet<String> = suites.iter().flat_map(|suite| &suite.cases).map(|c| plain(&c.op)).collect();
    // L-BFGS is no rule for one element: its module has cases of its own beside PyTorch.
    let of_rules = ["chain", "described", "groups", "lbfgs", "plateau", "schedule", "transform", "update"];
    let all = [
        (layers(facade!("model/layers")), 50),
        (exported(facade!("objective/losses"), &[]), 17),
        (exported(facade!("objective/metrics"), &["reduction"]), 15),
        (exported(facade!("optimizers"), &of_rules), 13),
    ];
    // What the cases call otherwise.
    let other = [
        ("BinaryCrossEntropyWithLogits", "bce_with_logits"),
        ("MeanAbsoluteError", "l1"),
        ("PrecisionScore", "precision"),
        ("RecallScore", "recall"),
        ("F1", "fbeta"),
        ("TopKAccuracy", "top_k"),
        ("dense", "linear"),
        ("simple_rnn", "rnn"),
        ("upsample2d", "upsample"),
        ("zero_pad2d", "border"),
        ("cropping2d", "border"),
    ];
    // They only hold other layers, move numbers or draw them.
    let without = [
        "branches",
        "residual",
        "sequential",
        "time_distributed",
        "flatten",
        "dropout",
        "drop_path",
        "gaussian_noise",
    ];
    for (names, least) in all {
        assert!(names.len() >= least, "{names:?}");
        for name in names.iter().filter(|name| !without.contains(&name.as_str())) {
            let named = other.iter().find(|(own, _)| own == name).map_or(name.as_str(), |(_, op)| op);
            assert!(ops.contains(&plain(named)), "{name} has no reference case");
        }
    }
}
