//! Runs that make their own samples: what cannot be saved, what is interrupted, and what is resumed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::err;

/// Returns the command of `dqn` with an epoch of few samples, after the commands of a shell.
fn dqn(before: &str, out: &Path, flags: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_dqn")]);
    shell.args(["--replicas", "1", "--global-batch", "16", "--out"]).arg(out).args(flags);
    shell
}

fn ended(mut command: Command) -> Output {
    command.output().unwrap()
}

/// No file may be longer than 32 KiB, which is less than the replay buffer.
#[test]
#[cfg(target_os = "linux")]
fn a_checkpoint_that_cannot_be_written_does_not_end_the_run_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "2", "--checkpoint-every", "250"];
    let output = ended(dqn("ulimit -f 64; ", dir.path(), &flags));
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("warning: step 250 is not saved: ") && said.contains("the run continues"),
        "{said}"
    );
    assert!(said.contains("epoch 2") && said.contains("the last step, 500, is not saved"), "{said}");

    let required =
        ended(dqn("ulimit -f 64; ", dir.path(), &[&flags[..], &["--require-checkpoints"]].concat()));
    assert_eq!(required.status.code(), Some(1), "{}", err(&required));
}

#[test]
fn a_run_that_is_interrupted_writes_its_trace_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, out) = (dir.path().join("trace.json"), dir.path().join("out"));
    let flags = ["--epochs", "4000", "--trace", trace.to_str().unwrap()];
    let mut process = dqn("", &out, &flags).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("epoch 1") && lines.read_line(&mut said).unwrap() > 0 {}
    assert!(Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap().success());
    lines.read_to_string(&mut said).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(143), "{said}");
    let events: Vec<serde_json::Value> = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X" && event["name"] == "compute"), "{said}");

    // The history is that of the whole run.
    let done = unisono::checkpoint::list(&out).unwrap()[0].0 / 250;
    let resumed = ended(dqn("", &out, &["--epochs", &(done + 1).to_string(), "--resume", "--json"]));
    assert!(resumed.status.success(), "{}", err(&resumed));
    let history = String::from_utf8_lossy(&resumed.stdout).into_owned();
    assert_eq!(history.matches("\"event\":\"epoch\"").count() as u64, done + 1, "{history}");
}
