use std::path::Path;
use std::process::Command;

use serde_json::Value;
use unisono::gpu::{Backend, adapters};

/// Runs the report without any variable and in an empty folder, and returns whether it passed, with
/// report.json and report.md.
fn report(dir: &Path, args: &[&str]) -> (bool, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu_report"));
    command.env_clear().current_dir(dir).args(["--out", "out"]).args(args);
    let output = command.output().unwrap();
    let read = |name: &str| std::fs::read(dir.join("out").join(name));
    let json = read("report.json").unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let page = String::from_utf8(read("report.md").unwrap()).unwrap();
    (output.status.success(), serde_json::from_slice(&json).unwrap(), page)
}

/// Parts that take little time in a build for tests.
const QUICK: [&str; 8] =
    ["--only", "conformance", "--only", "digits", "--only", "limits", "--only", "random graphs"];

#[test]
fn a_report_tells_that_an_adapter_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let args = [&["--short", "--adapter", "cpu"], &QUICK[..]].concat();
    let (passed, json, page) = report(dir.path(), &args);
    assert!(passed, "{page}");
    assert_eq!(json["verdict"]["is_right"], true);
    assert_eq!(json["verdict"]["same_as"][0], "cpu:fused");
    let states = json["states"]["digits"].as_array().unwrap();
    assert_eq!(states.len(), 7, "{states:?}");
    assert!(states.iter().all(|state| state[1] == states[0][1] && state[1] != "none"), "{states:?}");
    assert!(page.contains("**Right**: no part failed."), "{page}");
    let parts = json["parts"].as_array().unwrap();
    assert!(parts.iter().all(|part| part["is_right"] == true), "{parts:?}");
    let limits = &json["facts"]["limits"];
    assert!(limits["too_large"].as_str().unwrap().contains("does not fit"), "{limits}");
    assert!(limits["given_up_after_ms"].as_f64().unwrap() > 400.0, "{limits}");
}

/// A part that says nothing about results does not make an adapter right, and a second report of some parts
/// does not replace the first.
#[test]
fn a_report_without_checks_says_so_and_is_not_replaced_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let (passed, json, page) = report(dir.path(), &["--short", "--adapter", "cpu", "--only", "machine"]);
    assert!(passed, "{page}");
    assert_eq!(json["verdict"]["is_right"], false);
    assert_eq!(json["verdict"]["failed"], serde_json::json!([]));
    assert!(page.contains("**Not checked**: ") && page.contains("takes conformance, vendors or"), "{page}");

    let mut again = Command::new(env!("CARGO_BIN_EXE_gpu_report"));
    again.env_clear().current_dir(dir.path()).args(["--out", "out", "--adapter", "cpu", "--only", "limits"]);
    let output = again.output().unwrap();
    let said = crate::err(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--out out: holds an earlier report, which --only would replace"), "{said}");
    let kept: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("out/report.json")).unwrap()).unwrap();
    assert_eq!(kept, json);

    let mut table = Command::new(env!("CARGO_BIN_EXE_gpu_report"));
    let table = table.arg("--table").arg(dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("| not checked |"), "{table:?}");
}

/// A resume alone would have no checkpoint, and would say that a whole run was killed and resumed.
#[test]
fn a_run_is_resumed_only_after_it_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let only = ["--short", "--adapter", "cpu", "--only", "digits, resumed"];
    let (passed, json, page) = report(dir.path(), &only);
    assert!(passed, "{page}");
    let names: Vec<&str> =
        json["parts"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["machine", "digits, killed", "digits, resumed"]);
    let said = std::fs::read_to_string(dir.path().join("out/parts/digits__resumed.err")).unwrap();
    assert!(said.contains("resumed at step "), "{said}");
}

/// The kernel is named, and the report is no success.
#[test]
fn a_wrong_kernel_is_named_by_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--short", "--adapter", "vulkan:llvmpipe", "--only", "random graphs", "--plant", "division"];
    let has = unisono::gpu::select(&["vulkan:llvmpipe"]).is_ok();
    if !has {
        let install = if cfg!(target_os = "linux") { " (install: mesa-vulkan-drivers)" } else { "" };
        return crate::left_out(&format!("a planted fault on lavapipe, which is not there{install}"));
    }
    let (passed, json, page) = report(dir.path(), &args);
    assert!(!passed);
    assert_eq!(json["verdict"]["is_right"], false);
    assert_eq!(json["verdict"]["failed"][0], "random graphs");
    assert!(page.contains("**Failed**: random graphs"), "{page}");
    assert!(page.contains("fn main"), "the WGSL of the first kernel that differs: {page}");
    // What the driver compiled is kept beside the report, and not in a home directory.
    let kept = std::fs::read_dir(dir.path().join("out/cache")).unwrap().flatten();
    let kept: Vec<String> = kept.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(kept.iter().any(|name| name.starts_with("mesa_shader_cache")), "{kept:?}");
}

/// Such a part counts as failed, and not as left out, because nothing is known of what it would have shown.
#[test]
fn a_part_that_cannot_be_started_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    // The part's output cannot be kept, so it is not started.
    std::fs::create_dir_all(dir.path().join("out/parts/limits.out")).unwrap();
    let (passed, json, page) = report(dir.path(), &["--short", "--adapter", "cpu", "--only", "limits"]);
    assert!(!passed, "{page}");
    assert_eq!(json["verdict"]["failed"], serde_json::json!(["limits"]));
    assert_eq!(json["verdict"]["left_out"], serde_json::json!([]));
    let part = json["parts"].as_array().unwrap().iter().find(|part| part["name"] == "limits").unwrap();
    assert_eq!(part["ended"], "not_started");
    assert!(page.contains("**Failed**: limits."), "{page}");
    assert!(page.contains("| limits | **failed** | 0.0 | could not be run: "), "{page}");
    assert!(page.contains("## limits"), "{page}");
}

/// Otherwise a report on nothing would say that all is right.
#[test]
fn a_part_that_does_not_exist_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu_report"));
    command.env_clear().current_dir(dir.path()).args(["--short", "--adapter", "cpu", "--only", "digit,"]);
    let output = command.output().unwrap();
    let said = crate::err(&output);
    assert!(!output.status.success());
    assert!(said.contains("no part of this report begins with digit,. Its parts are: machine; "), "{said}");
}

/// The folder of the report is named, and how to choose another one.
#[test]
fn a_report_that_cannot_be_written_says_where() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("taken"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu_report"));
    command.env_clear().current_dir(dir.path()).args(["--adapter", "cpu", "--out", "taken/report"]);
    let output = command.output().unwrap();
    let said = crate::err(&output);
    assert!(!output.status.success());
    assert!(said.contains("cannot be written to taken/report: "), "{said}");
    assert!(said.contains("--out DIR"), "{said}");
}

/// An adapter without f16 is right if it refuses mixed precision.
#[test]
fn mixed_precision_is_trained_or_refused() {
    for adapter in adapters(&[Backend::Vulkan, Backend::Gl, Backend::Cpu]) {
        let dir = tempfile::tempdir().unwrap();
        let name = match adapter.arithmetic {
            Some(_) => "cpu".to_owned(),
            None => format!("{}:{}", adapter.backend, adapter.label()),
        };
        let (passed, json, page) = report(dir.path(), &["--adapter", &name, "--only", "mixed"]);
        assert!(passed, "{page}");
        let parts = json["parts"].as_array().unwrap();
        let part = parts.iter().find(|part| part["name"] == "mixed precision").unwrap();
        let (ended, said) = (part["ended"].as_str().unwrap(), part["last_line"].as_str().unwrap());
        match adapter.features.f16 {
            true => assert_eq!(ended, "well", "{name}: {said}"),
            false => assert!(ended == "failed" && said.contains("has no 16-bit floats"), "{name}: {said}"),
        }
    }
}
