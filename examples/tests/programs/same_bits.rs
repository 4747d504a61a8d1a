use std::fs;

use crate::{csv, done, lines, trained};

/// There are 200 samples to train on: three full steps and a ragged one of 8 samples, which only some shards
/// see.
#[test]
fn replicas_and_loader_threads_do_not_show() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(250));
    let mut first = None;
    for replicas in ["1", "2", "3", "7"] {
        for threads in ["1", "4"] {
            let out = dir.path().join(format!("{replicas}-{threads}"));
            let flags = ["--epochs", "2", "--replicas", replicas, "--loader-threads", threads];
            let stdout = trained(&data, &out, &flags);
            let model = fs::read(out.join("model.safetensors")).unwrap();
            let (lines, bytes) = first.get_or_insert_with(|| (stdout.clone(), model.clone()));
            assert_eq!(&stdout, lines, "{replicas} replicas, {threads} loader threads");
            assert!(&model == bytes, "{replicas} replicas, {threads} loader threads: other weights");
        }
    }
    let (stdout, _) = first.unwrap();
    assert_eq!(stdout.lines().count(), 3, "{stdout}");
    assert!(stdout.starts_with(r#"{"event":"epoch","epoch":1,"steps":4,"train_loss":"#), "{stdout}");
    assert_eq!(done(&stdout, "steps"), 8);
    assert_eq!(done(&stdout, "state_sha256").as_str().map(str::len), Some(64));
}

#[test]
fn what_belongs_to_the_run_does_show() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(100));
    let state = |name: &str, flags: &[&str]| {
        let flags = [&["--epochs", "1"], flags].concat();
        done(&trained(&data, &dir.path().join(name), &flags), "state_sha256").to_string()
    };
    let default = state("default", &[]);
    assert_eq!(default, state("same", &["--seed", "42", "--global-batch", "64", "--shards", "8"]));
    assert_ne!(default, state("seed", &["--seed", "43"]));
    assert_ne!(default, state("batch", &["--global-batch", "32"]));
}
