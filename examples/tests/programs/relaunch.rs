//! The program `relaunch` with an mpirun that only notes how it was called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::err;

/// Runs `relaunch` on a program with these flags. mpirun ends with the codes, one a start.
fn relaunch(dir: &Path, codes: &[i32], flags: &[&str]) -> (Output, Vec<String>) {
    let (calls, mpirun) = (dir.join("calls"), dir.join("mpirun"));
    let _ = fs::remove_file(&calls);
    let cases: String =
        codes.iter().enumerate().map(|(at, code)| format!("{}) exit {code};; ", at + 1)).collect();
    let script = "#!/bin/sh\necho \"$@\" >> CALLS\ncase $(wc -l < CALLS) in CASES esac\nexit 77\n";
    let script = script.replace("CALLS", calls.to_str().unwrap()).replace("CASES", &cases);
    fs::write(&mpirun, script).unwrap();
    fs::set_permissions(&mpirun, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = dir.join("hosts");
    fs::write(&hosts, "localhost slots=2\n").unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    command.env("PATH", path).arg("--hostfile").arg(hosts).args(["--pause", "0", "--retries", "2", "--"]);
    let output = command.arg("program").args(flags).output().unwrap();
    let calls = fs::read_to_string(calls).unwrap_or_default();
    (output, calls.lines().map(str::to_owned).collect())
}

#[test]
fn a_run_that_was_lost_is_started_again_and_one_that_is_refused_or_asked_to_end_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for (codes, starts, ended) in [
        (&[0][..], 1, 0),
        (&[1, 137, 0], 3, 0),
        (&[1, 1, 1], 3, 1),
        (&[2], 1, 2),
        (&[1, 2], 2, 2),
        (&[129], 1, 129),
        (&[130], 1, 130),
        (&[143], 1, 143),
    ] {
        let (output, calls) = relaunch(dir.path(), codes, &["--out", "run"]);
        assert_eq!((calls.len(), output.status.code()), (starts, Some(ended)), "{codes:?}: {}", err(&output));
        let resumes: Vec<bool> = calls.iter().map(|call| call.ends_with(" --resume")).collect();
        assert!(!resumes[0] && resumes[1..].iter().all(|resumes| *resumes), "{calls:?}");
    }
}

#[test]
fn a_directory_of_an_earlier_run_is_not_taken_for_the_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut store = unisono::checkpoint::Store::open(&out).unwrap();
    store.save(3, &unisono::checkpoint::Contents::default()).unwrap();
    let out = out.to_str().unwrap();
    for flags in [&["--out", out][..], &[&format!("--out={out}")]] {
        let (output, calls) = relaunch(dir.path(), &[1, 0], flags);
        assert!(err(&output).contains("holds the checkpoints of an earlier run"), "{}", err(&output));
        assert_eq!((calls.len(), output.status.code()), (0, Some(1)));
    }
    let (output, calls) = relaunch(dir.path(), &[1, 0], &["--resume", "--out", out]);
    assert_eq!((calls.len(), output.status.code()), (2, Some(0)), "{}", err(&output));
}
