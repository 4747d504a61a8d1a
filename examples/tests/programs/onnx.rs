//! The models of the programs as ONNX: onnxruntime answers what they answer.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::err;
use crate::mnist_cnn::idx;

/// A program, more flags of it, and whether it takes a while on a CPU.
const PROGRAMS: [(&str, &[&str], bool); 23] = [
    (env!("CARGO_BIN_EXE_digits"), &[], false),
    (env!("CARGO_BIN_EXE_two_inputs"), &[], false),
    (env!("CARGO_BIN_EXE_siamese"), &[], false),
    (env!("CARGO_BIN_EXE_gan"), &[], false),
    (env!("CARGO_BIN_EXE_tabular"), &[], false),
    (env!("CARGO_BIN_EXE_fine_tune"), &[], false),
    (env!("CARGO_BIN_EXE_export_predict"), &[], false),
    (env!("CARGO_BIN_EXE_quantize"), &[], false),
    (env!("CARGO_BIN_EXE_text_lstm"), TEXT, false),
    (env!("CARGO_BIN_EXE_image_folder"), &[], true),
    (env!("CARGO_BIN_EXE_text_classify"), &[], true),
    (env!("CARGO_BIN_EXE_resnet"), &[], true),
    (env!("CARGO_BIN_EXE_mobilenet"), &[], true),
    (env!("CARGO_BIN_EXE_unet"), &[], true),
    (env!("CARGO_BIN_EXE_vit"), &[], true),
    (env!("CARGO_BIN_EXE_bert"), &[], true),
    (env!("CARGO_BIN_EXE_gpt2"), &[], true),
    (env!("CARGO_BIN_EXE_tiny_gpt"), TEXT, true),
    (env!("CARGO_BIN_EXE_mnist_cnn"), IMAGES, false),
    (env!("CARGO_BIN_EXE_mnist_hierarchical_rnn"), IMAGES, true),
    (env!("CARGO_BIN_EXE_audio"), &[], false),
    (env!("CARGO_BIN_EXE_segment"), &[], true),
    (env!("CARGO_BIN_EXE_recommend"), &[], false),
];

const TEXT: &[&str] = &["--data", "TEXT", "--train-characters", "4096"];
const IMAGES: &[&str] = &["--data", "IMAGES", "--global-batch", "16"];

/// Trains each program for an epoch and lets onnxruntime run its model, where Python has it.
/// `UNISONO_PYTHON` names another Python than `python3`.
#[test]
fn onnxruntime_answers_what_the_programs_answer() {
    let python = std::env::var("UNISONO_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import onnxruntime, numpy"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        let packages = "pip install onnxruntime numpy";
        crate::left_out(&format!("onnxruntime: {python} does not have this package (install: {packages})"));
        return;
    }
    let is_long = std::env::var_os("UNISONO_LONG").is_some();
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    // The start of what `tiny_gpt` writes, and the like.
    std::fs::write(&text, "And God said, let there be light: and there was light. ".repeat(200)).unwrap();
    idx(dir.path(), "train", 60);
    idx(dir.path(), "t10k", 20);
    let programs = PROGRAMS.iter().filter(|(.., takes_long)| is_long || !takes_long);
    for (program, flags, _) in programs {
        let given = |flag: &&str| match *flag {
            "TEXT" => text.display().to_string(),
            "IMAGES" => dir.path().display().to_string(),
            flag => flag.to_owned(),
        };
        let models = dir.path().join("models").join(Path::new(program).file_stem().unwrap());
        let mut command = Command::new(program);
        command.args(["--epochs", "1", "--replicas", "2", "--onnx"]).arg(models);
        let output = command.args(flags.iter().map(given)).output().unwrap();
        assert!(output.status.success(), "{program}: {}", err(&output));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/unisono/tests/onnx/compare.py");
    let compared = Command::new(&python).arg(script).arg(dir.path().join("models")).output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&compared.stdout));
    assert!(compared.status.success(), "{}", err(&compared));
}

/// The hash is that of the run, which predictions for a file have no part in: a stateful model carries on.
#[test]
fn a_file_of_a_stateful_model_changes_no_hash() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "And God said, let there be light: and there was light. ".repeat(200)).unwrap();
    let last_line = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_text_lstm"));
        command.args(["--json", "--epochs", "1", "--replicas", "1", "--train-characters", "4096"]);
        let output = command.arg("--data").arg(&text).args(more).output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().find(|line| line.contains("\"done\"")).unwrap().to_owned()
    };
    let models = dir.path().join("models").display().to_string();
    assert_eq!(last_line(&["--onnx", &models]), last_line(&[]));
}
