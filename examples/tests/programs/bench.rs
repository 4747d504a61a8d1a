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
