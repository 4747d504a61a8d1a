//! Models of several fields and outputs from outside, and a run that ends early.

use std::process::Command;

use crate::{digits, done, err};

/// Runs a program and returns its standard output.
fn run(program: &str, flags: &[&str]) -> String {
    let output = Command::new(program).args(flags).arg("--json").output().unwrap();
    assert!(output.status.success(), "{program} {flags:?}: {}", err(&output));
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
    ] {
        // The others take a while on a CPU.
        let is_short =
            ["two_inputs", "siamese", "gan", "tabular", "fine_tune"].iter().any(|n| program.ends_with(n));
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
    }
    run(env!("CARGO_BIN_EXE_tabular"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_fine_tune"), &["--replicas", "2"]);
    run(env!("CARGO_BIN_EXE_export_predict"), &["--replicas", "2"]);
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
