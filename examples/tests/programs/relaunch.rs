//! The program `relaunch` with an mpirun that only notes how it was called.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::err;
use crate::saving::hangups_are_ignored;

/// Runs `relaunch` on a program with these flags. mpirun ends with the codes, one a start, or of a signal if
/// the number is negative.
fn relaunch(dir: &Path, codes: &[i32], flags: &[&str]) -> (Output, Vec<String>) {
    let end = |code: i32| if code < 0 { format!("kill {code} $$") } else { format!("exit {code}") };
    let cases: String =
        codes.iter().enumerate().map(|(at, code)| format!("{}) {};; ", at + 1, end(*code))).collect();
    let mut command = command(dir, &format!("case $(wc -l < CALLS) in {cases} esac"));
    let output = command.args(flags).output().unwrap();
    (output, calls(dir))
}

/// Returns the lines that mpirun has noted, one a start.
fn calls(dir: &Path) -> Vec<String> {
    let calls = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

/// Returns the command of `relaunch` on a program, with an mpirun that notes its flags in the file CALLS and
/// runs a script.
fn command(dir: &Path, script: &str) -> Command {
    let (calls, mpirun) = (dir.join("calls"), dir.join("mpirun"));
    let _ = fs::remove_file(&calls);
    let script = format!("#!/bin/sh\necho \"$@\" >> CALLS\n{script}\nexit 77\n");
    fs::write(&mpirun, script.replace("CALLS", calls.to_str().unwrap())).unwrap();
    fs::set_permissions(&mpirun, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = dir.join("hosts");
    fs::write(&hosts, "localhost slots=2\n").unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    command.env("PATH", path).arg("--hostfile").arg(hosts).args(["--pause", "0", "--retries", "2", "--"]);
    command.arg("program");
    command
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
        (&[-15], 1, 143),
        (&[-9, 0], 2, 0),
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

/// The script waits for a signal, so that it ends by what it was sent.
#[test]
fn a_signal_goes_on_to_mpirun_and_starts_nothing_again() {
    let dir = tempfile::tempdir().unwrap();
    let signals = [("TERM", 143), ("INT", 130), ("HUP", 129)];
    for (signal, code) in signals.into_iter().filter(|(signal, _)| *signal != "HUP" || !hangups_are_ignored())
    {
        let script = format!("trap 'echo got {signal} >> CALLS; kill $!; exit 1' {signal}");
        let script = format!("{script}\nsleep 600 &\necho ready >&2\nwait");
        let mut command = command(dir.path(), &script);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "ready"));
        let id = process.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        assert_eq!(process.wait().unwrap().code(), Some(code), "{:?}", calls(dir.path()));
        let calls = calls(dir.path());
        assert!(calls.len() == 2 && calls[1] == format!("got {signal}"), "{calls:?}");
    }
}

/// Nobody may read what it says, as when the `tee` behind it is gone.
#[test]
#[cfg(target_os = "linux")]
fn a_run_is_started_again_where_standard_error_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let script = "case $(wc -l < CALLS) in 1) exit 1;; 2) exit 0;; esac";
    let status = command(dir.path(), script).stderr(full).status().unwrap();
    assert_eq!((calls(dir.path()).len(), status.code()), (2, Some(0)));
}
