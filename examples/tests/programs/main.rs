//! Tests of the programs from outside: they set flags and check files, output and exit codes.

mod adapters;
mod bad_input;
mod bench;
mod checkpoint;
mod early_stopping;
mod fine_tune;
mod generate;
mod gpu_report;
mod killed;
mod loggers;
mod mnist_cnn;
mod one_screen;
mod onnx;
#[cfg(unix)]
mod own_data;
mod places;
mod precision;
#[cfg(unix)]
mod relaunch;
mod resume;
mod same_bits;
mod saving;
mod several;
mod stopped;
mod texts;
mod vendors;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Says on stderr what a test leaves out and why, also where the test passes: the harness catches what
/// `eprintln!` writes. `cargo xtask test` lists it from the file that `UNISONO_LEFT_OUT` names.
fn left_out(what: &str) {
    let line = format!("left out: {what}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Runs `digits`.
fn digits<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_digits")).args(args).output().unwrap()
}

/// Trains on small data into `out` with more flags, and returns standard output.
fn trained(data: &Path, out: &Path, flags: &[&str]) -> String {
    let paths = ["--data".as_ref(), data.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let output = digits(paths.into_iter().chain(flags.iter().map(OsStr::new)).chain(["--json".as_ref()]));
    assert!(output.status.success(), "{flags:?}: {}", err(&output));
    assert_covered(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// The run's identity covers all that decides its result: each transform has a version.
fn assert_covered(output: &Output) {
    let said = err(output);
    assert!(said.contains("identity  ") && !said.contains("identity does not cover"), "{said}");
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the value of a field in the last line.
fn done(stdout: &str, field: &str) -> serde_json::Value {
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "done");
    last[field].clone()
}

/// Returns the first lines of the digits.
fn lines(count: usize) -> Vec<String> {
    let packed = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv.gz")).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*packed).read_to_string(&mut text).unwrap();
    text.lines().take(count).map(str::to_owned).collect()
}

/// Returns a file with these lines.
fn csv(dir: &Path, lines: &[String]) -> PathBuf {
    let path = dir.join("data.csv");
    fs::write(&path, lines.join("\n")).unwrap();
    path
}
