use std::fs;
use std::path::Path;
use std::process::Command;

use crate::err;

/// The directory of `--dir` is somebody's: a benchmark removes what it has made there, and nothing else.
#[test]
fn a_directory_to_be_measured_keeps_what_was_in_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    for name in ["precious", "run/precious"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    bench.args(["checkpoint", "--adapter", "no-such-adapter", "--dir"]).arg(dir.path());
    let output = bench.output().unwrap();
    assert!(!output.status.success() && err(&output).contains("no-such-adapter"), "{}", err(&output));
    for name in ["precious", "run/precious"] {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), name);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// The launches of a step are measured on a device that has what the step's precision needs.
#[test]
fn kernels_are_measured_in_every_precision() {
    for precision in ["f32", "mixed", "mixed+units"] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
        bench.args(["kernels", "--model", "mlp", "--batch", "8", "--shards", "2", "--adapter", "cpu"]);
        let output = bench.args(["--precision", precision]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{precision}: {}", err(&output));
        assert!(shown.contains(&format!("2 shards, {precision}, AdamW")), "{shown}");
        let stored = shown.lines().filter(|line| line.contains("round_half")).count();
        assert_eq!(stored > 0, precision != "f32", "{shown}");
        assert!(shown.contains("recording the step's"), "{shown}");
    }
}

/// The other programs have batches of their own and no other precision, so the rates would not be comparable.
#[test]
fn a_comparison_refuses_what_the_other_program_cannot_follow() {
    for (flags, word) in [
        (&["--batch", "512"][..], "--batch"),
        (&["--precision", "mixed"], "--precision"),
        (&["--keras", "python3", "--batch", "512"], "--batch"),
        (&["--torch", "python3", "--precision", "mixed"], "--precision"),
        (&["--torch", "python3", "--replicas", "2"], "--replicas"),
    ] {
        let bench = Command::new(env!("CARGO_BIN_EXE_bench")).arg("peers").args(flags).output().unwrap();
        let said = err(&bench);
        assert_eq!(bench.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(&format!("error: {word}: ")) && said.contains("cannot follow it"), "{said}");
    }
}

/// A BERT with a head for words has an output for each token, and one with a head for texts only one.
#[test]
fn models_with_outputs_for_tokens_or_samples_are_measured() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/models/tests/cases");
    for model in ["bert_masked", "bert"] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
        bench.args(["known", "--batch", "2", "--length", "8", "--shards", "2", "--steps", "2"]);
        bench.args(["--warmup", "0", "--adapter", "cpu", "--known"]).arg(cases.join(model));
        let output = bench.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains("bert, batch 2"), "{model}: {}", err(&output));
    }
}

/// What `trust` and `uneven` train is what the flags describe.
#[test]
fn precision_holds_for_every_measurement() {
    for what in ["trust", "scaling", "uneven"] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
        bench.args([what, "--batch", "64", "--steps", "5", "--warmup", "0", "--replicas", "1"]);
        let output = bench.args(["--adapter", "cpu", "--precision", "mixed"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && shown.contains("shards, mixed, AdamW"),
            "{what}: {}",
            err(&output)
        );
    }
}
