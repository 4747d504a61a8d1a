//! Models of several fields and outputs from outside, and a run that ends early.

use std::process::Command;

use crate::{assert_covered, digits, done, err};

/// Runs a program and returns its standard output.
fn run(program: &str, flags: &[&str]) -> String {
    let output = Command::new(program).args(flags).arg("--json").output().unwrap();
    assert!(output.status.success(), "{program} {flags:?}: {}", err(&output));
    // An identity does not cover the batches of one's own loop.
    if !program.ends_with("dqn") {
        assert_covered(&output);
    }
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn models_of_several_fields_have_one_answer() {
    for program in [
        env!("CARGO_BIN_EXE_two_inputs"),
        env!("CARGO_BIN_EXE_siamese"),
        env!("CARGO_BIN_EXE_gan"),
        env!("CARGO_BIN_EXE_tabular"),
        env!("CARGO_BIN_EXE_fine_tune"),
        env!("CARGO_BIN_EXE_image_folder"),
        env!("CARGO_BIN_EXE_text_classify"),
        env!("CARGO_BIN_EXE_resnet"),
        env!("CARGO_BIN_EXE_mobilenet"),
        env!("CARGO_BIN_EXE_unet"),
        env!("CARGO_BIN_EXE_vit"),
        env!("CARGO_BIN_EXE_bert"),
        env!("CARGO_BIN_EXE_gpt2"),
        env!("CARGO_BIN_EXE_audio"),
        env!("CARGO_BIN_EXE_dqn"),
        env!("CARGO_BIN_EXE_grad_cam"),
        env!("CARGO_BIN_EXE_quantize"),
        env!("CARGO_BIN_EXE_recommend"),
        env!("CARGO_BIN_EXE_segment"),
    ] {
        // The others take a while on a CPU.
        let is_short =
            ["two_inputs", "siamese", "gan", "tabular", "fine_tune", "audio", "quantize", "recommend"]
                .iter()
                .any(|name| program.ends_with(name));
        if !is_short && std::env::var_os("UNISONO_LONG").is_none() {
            continue;
        }
        let states = ["1", "3"].map(|replicas| {
            let lines = run(program, &["--epochs", "2", "--replicas", replicas]);
            (done(&lines, "state_sha256"), lines)
        });
        assert_eq!(states[0], states[1], "{program}");
    }
}

/// The programs check what they claim of whole runs.
#[test]
fn whole_runs_keep_what_they_claim() {
    if std::env::var_os("UNISONO_LONG").is_some() {
        run(env!("CARGO_BIN_EXE_siamese"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_image_folder"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_text_classify"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_resnet"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_mobilenet"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_unet"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_vit"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_bert"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_gpt2"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_dqn"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_grad_cam"), &["--replicas", "2"]);
        run(env!("CARGO_BIN_EXE_segment"), &["--replicas", "2"]);
    }
    run(env!("CARGO_BIN_EXE_audio"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_recommend"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_tabular"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_fine_tune"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_export_predict"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_quantize"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_two_inputs"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_gan"), &["--replicas", "2"]);
}

#[test]
fn a_run_ends_early_and_is_over_when_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let flags = |more: &[&'static str]| {
        let own = ["--epochs", "500", "--early-stopping", "2", "--replicas", "2", "--json", "--out"];
        let all = own.into_iter().chain([out]).chain(more.iter().copied()).map(str::to_owned);
        all.collect::<Vec<String>>()
    };
    let first = digits(flags(&[]));
    assert!(first.status.success(), "{}", err(&first));
    assert!(err(&first).contains("by early stopping: 2 epochs were no better"), "{}", err(&first));
    let again = digits(flags(&["--resume"]));
    assert!(again.status.success(), "{}", err(&again));
    assert!(err(&again).contains("nothing to do: the run was ended after step"), "{}", err(&again));
    let text = |output: &std::process::Output| String::from_utf8(output.stdout.clone()).unwrap();
    let [first, again] = [&first, &again].map(text);
    assert_eq!(done(&first, "state_sha256"), done(&again, "state_sha256"));
    assert_eq!(done(&first, "steps"), done(&again, "steps"));
}

/// A run that makes its own samples goes on with its buffer, and says which flags it cannot follow.
#[test]
fn a_run_that_makes_its_own_samples_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let dqn = |out: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dqn"));
        command.args(["--json", "--out"]).arg(dir.path().join(out)).args(flags).output().unwrap()
    };
    let state = |output: std::process::Output| {
        assert!(output.status.success(), "{}", err(&output));
        done(&String::from_utf8(output.stdout).unwrap(), "state_sha256")
    };
    let whole = state(dqn("whole", &["--epochs", "3", "--checkpoint-every", "250", "--keep-last", "1"]));
    let first = state(dqn("parts", &["--epochs", "1"]));
    assert_ne!(first, whole);
    assert_eq!(state(dqn("parts", &["--epochs", "3", "--resume", "--replicas", "3"])), whole);
    // The buffer is a part of every checkpoint, and lies nowhere else.
    for out in ["whole", "parts"] {
        let kept = unisono::checkpoint::list(dir.path().join(out)).unwrap();
        assert_eq!(kept.first().map(|(step, _)| *step), Some(750), "{out}: {kept:?}");
        let mut beside = std::fs::read_dir(dir.path().join(out)).unwrap();
        assert!(!beside.any(|file| file.unwrap().file_name().to_string_lossy().contains("replay")), "{out}");
    }
    for (flags, message) in [
        (&["--checkpoint-every", "100"][..], "give a multiple of 250"),
        (&["--early-stopping", "1"], "--early-stopping needs a validation set"),
        (&["--keep-best", "loss"], "--keep-best needs a validation set"),
        (&["--onnx", "onnx"], "--onnx needs a validation set"),
    ] {
        let refused = dqn("refused", flags);
        assert_eq!(refused.status.code(), Some(2), "{}", err(&refused));
        assert!(err(&refused).contains(message), "{}", err(&refused));
    }
}
