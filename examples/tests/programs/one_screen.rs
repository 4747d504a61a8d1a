//! The programs that fit on a screen each, with data that they make.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{assert_covered, done, err};

/// Each program with flags for a short run, and a line that it shows at its end.
const PROGRAMS: [(&str, &[&str], &str); 5] = [
    (env!("CARGO_BIN_EXE_diffusion"), &["--global-batch", "2048"], "% in its emptiest eighth"),
    (env!("CARGO_BIN_EXE_forecast"), &["--global-batch", "512"], "of the last hour's temperature: "),
    (env!("CARGO_BIN_EXE_simclr"), &["--global-batch", "180"], "validation: probe accuracy "),
    (env!("CARGO_BIN_EXE_translate"), &["--global-batch", "512"], "new numbers are right in every word"),
    (env!("CARGO_BIN_EXE_vae"), &["--global-batch", "180"], "distance to the nearest digit trained on: "),
];

/// Runs a program. Returns its history, the line that it shows at its end, and its model.
fn trained(program: usize, out: &Path, flags: &[&str]) -> (String, String, Vec<u8>) {
    let (program, own, shows) = PROGRAMS[program];
    let paths = ["--json", "--out", out.to_str().unwrap(), "--shards", "3"];
    let output = Command::new(program).args([&paths, own, flags].concat()).output().unwrap();
    let shown = err(&output);
    assert!(output.status.success(), "{program} {flags:?}: {shown}");
    assert_covered(&output);
    // Schedules are made for the run as it is, however short.
    assert!(!shown.contains("note: the learning rate"), "{program} {flags:?}: {shown}");
    let line = shown.lines().find(|line| line.contains(shows));
    let line = line.unwrap_or_else(|| panic!("{program} does not say {shows:?}: {shown}")).to_owned();
    let model = fs::read(out.join("model.safetensors")).unwrap();
    (String::from_utf8(output.stdout).unwrap(), line, model)
}

/// Each ends in the same bytes and says the same on 1, 2 and 3 replicas, and after it was stopped in the
/// middle of an epoch and resumed on another number of them. Batches are ragged at the end of an epoch.
#[test]
fn replicas_and_a_resume_do_not_show() {
    for (program, (name, ..)) in PROGRAMS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let out = |name: &str| dir.path().join(name);
        let one = trained(program, &out("1"), &["--epochs", "2", "--replicas", "1"]);
        assert!(done(&one.0, "steps").as_u64().unwrap() > 3, "{name}: {}", one.0);
        for replicas in ["2", "3"] {
            let more = trained(program, &out(replicas), &["--epochs", "2", "--replicas", replicas]);
            assert!(
                one == more,
                "{name}, {replicas} replicas: {} {} and {} {}",
                one.0,
                one.1,
                more.0,
                more.1
            );
        }
        let saves = ["--epochs", "2", "--replicas", "2", "--checkpoint-every", "3", "--keep-every", "3"];
        trained(program, &out("resumed"), &saves);
        // What a kill in the middle of the second epoch leaves.
        let checkpoints = out("resumed").join("checkpoints");
        let entries = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path());
        let last = entries.filter(|entry| entry.is_dir()).max().unwrap();
        fs::write(last.join("model.safetensors"), "half a fi").unwrap();
        let resumed = trained(program, &out("resumed"), &["--epochs", "2", "--replicas", "1", "--resume"]);
        assert!(one == resumed, "{name}, resumed: {} {} and {} {}", one.0, one.1, resumed.0, resumed.1);
    }
}
