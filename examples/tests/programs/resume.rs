use std::fs;
use std::path::Path;

use crate::{csv, digits, err, lines, trained};

/// The number of samples of a run: 4 steps in an epoch.
const SAMPLES: usize = 250;

fn same_model(one: &Path, other: &Path) -> bool {
    let model = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
    model(one) == model(other)
}

#[test]
fn a_resumed_run_is_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let expected = trained(&data, &whole, &["--epochs", "3", "--replicas", "1", "--seed", "7"]);
    trained(&data, &parts, &["--epochs", "1", "--replicas", "3", "--seed", "7"]);
    let resumed = trained(&data, &parts, &["--epochs", "3", "--replicas", "2", "--resume"]);
    assert_eq!(resumed, expected);
    assert!(same_model(&whole, &parts));
}

/// If the newest checkpoint is broken, the run goes on from the one before, in the middle of an epoch.
#[test]
fn a_run_goes_on_in_the_middle_of_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let expected = trained(&data, &whole, &["--epochs", "2", "--replicas", "2"]);
    // However slow the disk is, steps 3 and 6 are saved.
    let saves = ["--checkpoint-every", "3", "--keep-every", "3"];
    trained(&data, &parts, &[&["--epochs", "2", "--replicas", "2"][..], &saves].concat());
    fs::write(parts.join("checkpoints/step-00000008/model.safetensors"), "half a fi").unwrap();
    let resumed = trained(&data, &parts, &["--epochs", "2", "--replicas", "3", "--resume"]);
    assert_eq!(resumed, expected);
    assert!(same_model(&whole, &parts));
}

#[test]
fn nothing_to_resume_is_a_fresh_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(60));
    let plain = trained(&data, &dir.path().join("plain"), &["--epochs", "1"]);
    assert_eq!(trained(&data, &dir.path().join("resumed"), &["--epochs", "1", "--resume"]), plain);
}

#[test]
fn a_run_is_neither_mixed_with_another_nor_changed() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(60));
    let out = dir.path().join("out");
    trained(&data, &out, &["--epochs", "1", "--seed", "7"]);
    let refused = |flags: &[&str], message: &str| {
        let paths = ["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let output = digits(paths.iter().chain(flags));
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(err(&output).contains(message), "{flags:?}: {}", err(&output));
    };
    refused(&[], "holds the checkpoints of an earlier run; continue it with --resume");
    refused(&["--resume", "--seed", "8"], "--seed 8: the run to resume was started with 7");
    refused(
        &["--resume", "--global-batch", "32"],
        "--global-batch 32: the run to resume was started with 64",
    );
    refused(&["--resume", "--shards", "4"], "--shards 4: the run to resume was started with 8");
    csv(dir.path(), &lines(61));
    refused(&["--resume", "--epochs", "2"], "data: the run was on data with fingerprint");
}
