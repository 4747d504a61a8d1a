//! Runs every reference case on every adapter, as the program `conformance` does for any directory.

use std::path::Path;

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
