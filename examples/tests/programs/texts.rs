use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{done, err};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// Returns a small text. Its last tenth has 380 characters.
fn text(dir: &Path) -> String {
    let path = dir.join("text.txt");
    fs::write(&path, "And God said, Let there be light: and there was light. ".repeat(70)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs the program. Returns its standard output, its standard error from the last line of the report on, and
/// the model.
fn trained(program: &str, text: &str, out: &Path, flags: &[&str]) -> (String, String, Vec<u8>) {
    let own = ["--json", "--data", text, "--out", out.to_str().unwrap(), "--shards", "3"];
    let output = run(program, &[&own, flags].concat());
    assert!(output.status.success(), "{program} {flags:?}: {}", err(&output));
    let model = fs::read(out.join("model.safetensors")).unwrap();
    let shown = err(&output);
    let end = shown.find(" steps, state ").unwrap();
    (String::from_utf8(output.stdout).unwrap(), shown[end..].to_owned(), model)
}

#[test]
fn replicas_do_not_show_in_texts() {
    for (program, batch, flags) in [
        (env!("CARGO_BIN_EXE_text_lstm"), "6", &[][..]),
        (env!("CARGO_BIN_EXE_tiny_gpt"), "4", &["--write", "12"][..]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let text = text(dir.path());
        let with = |name: &str, more: &[&str]| {
            let flags = [&["--train-characters", "700", "--global-batch", batch], flags, more].concat();
            trained(program, &text, &dir.path().join(name), &flags)
        };
        let one = with("1", &["--replicas", "1"]);
        for replicas in ["2", "3"] {
            let more = with(replicas, &["--replicas", replicas]);
            assert!(one == more, "{program}, {replicas} replicas: {one:?} and {more:?}");
        }
        assert!(one.1.contains("nats per character; a bigram model: "), "{}", one.1);
        assert!(done(&one.0, "steps").as_u64().unwrap() >= 3);
        let other = with("seed", &["--seed", "7"]);
        assert!(one.2 != other.2);
        assert_eq!(one.1.contains("And God said, "), program.ends_with("tiny_gpt"), "{}", one.1);
    }
}

#[test]
fn no_text_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = text(dir.path());
    let refused = |program: &str, args: &[&str], words: &str| {
        let output = run(program, args);
        assert!(
            matches!(output.status.code(), Some(1 | 2)) && err(&output).contains(words),
            "{}",
            err(&output)
        );
    };
    for program in [env!("CARGO_BIN_EXE_text_lstm"), env!("CARGO_BIN_EXE_tiny_gpt")] {
        refused(program, &[], "--data <PATH>");
        refused(program, &["--data", "/no/such/text"], "/no/such/text");
        refused(program, &["--data", &text, "--train-characters", "20"], "hold no window");
    }
}
