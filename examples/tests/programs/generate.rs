use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::err;

fn generate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_generate")).args(args).output().unwrap()
}

/// The model that transformers made, with the tokens that it writes.
fn model() -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/models/tests/cases/llama_long");
    dir.to_str().unwrap().to_owned()
}

#[test]
fn a_line_a_prompt_with_transformers_tokens() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let expected = fs::read_to_string(Path::new(&model).join("generated.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let all = |key: &str| expected[key].as_array().unwrap().clone();
    let prompts = dir.path().join("prompts.txt");
    fs::write(&prompts, all("prompts").iter().map(|ids| format!("{ids}\n")).collect::<String>()).unwrap();
    let lines: String = all("greedy").iter().map(|ids| format!("{{\"tokens\":{ids}}}\n")).collect();
    let args = ["--model", &model, "--prompts", prompts.to_str().unwrap(), "--most", "24", "--json"];
    for more in [&["--replicas", "2"][..], &["--no-cache", "--replicas", "1"]] {
        let output = generate(&[&args, more].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), lines, "{more:?}: {}", err(&output));
    }
    let drawn = || generate(&[&args, &["--top-p", "0.9", "--seed", "3"][..]].concat()).stdout;
    let first = drawn();
    assert!(first == drawn() && first != lines.as_bytes());
}

#[test]
fn what_is_no_prompt_or_no_decoder_is_named() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let prompts = dir.path().join("prompts.txt");
    let refused = |model: &str, words: &str| {
        let output = generate(&["--model", model, "--prompts", prompts.to_str().unwrap()]);
        assert!(!output.status.success() && err(&output).contains(words), "{}", err(&output));
    };
    refused(&model, "prompts.txt: No such file");
    fs::write(&prompts, "\n \n").unwrap();
    refused(&model, "prompts.txt: it has no prompts");
    fs::write(&prompts, "[1, 2]\nTo be, or\n").unwrap();
    refused(&model, "prompts.txt: line 2: ");
    fs::write(&prompts, "[1, 2]\n[3, 48]\n").unwrap();
    refused(&model, "id 48 at x[1] is not in 0..48");
    refused(&model.replace("llama_long", "bert"), "\"bert\" is no decoder");
    refused(dir.path().to_str().unwrap(), "config.json");
}
