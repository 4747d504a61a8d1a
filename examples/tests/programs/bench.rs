use std::fs;
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
