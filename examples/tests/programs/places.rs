//! Places of files: those that a run would spoil or cannot write are refused, and nothing stays behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{csv, digits, err, lines};

/// Returns the error of a program that is refused before its first step.
fn refusal(output: &Output) -> String {
    let said = err(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(!said.contains("epoch 1"), "{said}");
    said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default().to_owned()
}

/// Both are called `model.json`: the description of a run's model, and the answers beside an ONNX file.
#[test]
fn onnx_does_not_replace_the_description_of_another_runs_model() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(60));
    let out = dir.path().join("run");
    let [data, out] = [&data, &out].map(|path| path.to_str().unwrap());
    let trained = digits(["--data", data, "--epochs", "1", "--out", out]);
    assert!(trained.status.success(), "{}", err(&trained));
    let description = fs::read(Path::new(out).join("model.json")).unwrap();
    let error = refusal(&digits(["--data", data, "--epochs", "1", "--onnx", out]));
    assert!(error.contains("--onnx: ") && error.contains("describes the model of an earlier run"), "{error}");
    assert_eq!(fs::read(Path::new(out).join("model.json")).unwrap(), description);
    // Answers of an earlier export are replaced.
    let onnx = dir.path().join("onnx");
    for _ in 0..2 {
        let exported = digits(["--data", data, "--epochs", "1", "--onnx", onnx.to_str().unwrap()]);
        assert!(exported.status.success(), "{}", err(&exported));
    }
}

#[test]
fn a_place_of_save_is_refused_before_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let [file, out] = ["file", "out"].map(|name| dir.path().join(name));
    fs::write(&file, "").unwrap();
    let [file, out] = [&file, &out].map(|path| path.to_str().unwrap());
    for program in [env!("CARGO_BIN_EXE_fine_tune_image"), env!("CARGO_BIN_EXE_lora")] {
        let error = refusal(&Command::new(program).args(["--save", file]).output().unwrap());
        assert!(error.starts_with(&format!("error: --save {file}")), "{error}");
    }
    let program = env!("CARGO_BIN_EXE_fine_tune_text");
    let error = refusal(&Command::new(program).args(["--out", out, "--save", out]).output().unwrap());
    assert!(error.contains("--out and --save both write") && error.contains("model.safetensors"), "{error}");
}

/// The network that a program fine-tunes is in a file when the error comes.
#[test]
#[cfg(unix)]
fn files_of_a_program_do_not_outlive_its_errors() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fine_tune"));
    command.env("TMPDIR", dir.path()).args(["--replicas", "1", "--trace", "/dev/full"]);
    let error = refusal(&command.output().unwrap());
    assert!(error.contains("--trace /dev/full"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
