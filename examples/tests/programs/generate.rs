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

/// Texts are read and written by the tokenizer of the model's directory.
#[test]
fn a_prompt_may_be_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let model = model().replace("llama_long", "gpt2_text");
    let expected = fs::read_to_string(Path::new(&model).join("texts.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let all = |key: &str| -> Vec<String> { serde_json::from_value(expected[key].clone()).unwrap() };
    let prompts = dir.path().join("prompts.txt");
    fs::write(&prompts, all("prompts").join("\n")).unwrap();
    let output =
        generate(&["--model", &model, "--prompts", prompts.to_str().unwrap(), "--most", "16", "--json"]);
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    let text = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].clone();
    assert!(lines.lines().map(text).eq(all("written")), "{lines}{}", err(&output));
}

/// Tokenizers as Llama's drop the space before the first word of a text, which a continuation is not.
#[test]
fn a_continuation_keeps_the_space_before_it() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(Path::new(&model()).join(file), dir.path().join(file)).unwrap();
    }
    let words: serde_json::Map<String, serde_json::Value> =
        (0..48).map(|id| (format!("\u{2581}w{id}"), id.into())).collect();
    let space = serde_json::json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true,
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": space, "post_processor": null, "decoder": space,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "\u{2581}w0" },
    });
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let prompts = dir.path().join("prompts");
    fs::write(&prompts, "w3 w7\n").unwrap();
    let args = ["--model", dir.path().to_str().unwrap(), "--prompts", prompts.to_str().unwrap(), "--json"];
    let output = generate(&[&args[..], &["--most", "4"]].concat());
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let written: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", err(&output)));
    let text: String =
        written["tokens"].as_array().unwrap().iter().map(|token| format!(" w{token}")).collect();
    assert_eq!(written["text"], text, "{line}");
}

#[test]
fn what_is_no_prompt_or_no_decoder_is_named() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let prompts = dir.path().join("prompts.txt");
    let refused = |model: &str, words: &str| {
        let output = generate(&["--model", model, "--prompts", prompts.to_str().unwrap()]);
        assert!(!output.status.success() && err(&output).contains(words), "{}", err(&output));
    };
    // In the system's own words.
    let reason = fs::read(&prompts).unwrap_err();
    refused(&model, &format!("prompts.txt: {reason}"));
    fs::write(&prompts, "\n \n").unwrap();
    refused(&model, "prompts.txt: it has no prompts");
    fs::write(&prompts, "[1, 2]\nTo be, or\n").unwrap();
    refused(&model, "prompts.txt: line 2: the model's directory has no tokenizer.json: give ids");
    fs::write(&prompts, "[1, 2]\n[3, 48]\n").unwrap();
    refused(&model, "id 48 at x[1] is not in 0..48");
    refused(&model.replace("llama_long", "bert"), "\"bert\" is not a decoder");
    refused(dir.path().to_str().unwrap(), "config.json");
}

/// The program lora trains beside a base that keeps its bytes: in the same bytes on any number of replicas,
/// and after it was resumed.
#[test]
fn lora_ends_in_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name);
    let lora = |name: &str, flags: &[&str]| {
        let (own, save) = (out(name), out(&format!("{name} saved")));
        let paths = ["--out", own.to_str().unwrap(), "--save", save.to_str().unwrap()];
        let args = [&paths[..], &["--global-batch", "128"], flags].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_lora")).args(&args).output().unwrap();
        assert!(output.status.success(), "{flags:?}: {}", err(&output));
        let files = ["adapter/adapter_model.safetensors", "merged/model.safetensors", "merged/config.json"];
        (files.map(|file| fs::read(save.join(file)).unwrap()), err(&output))
    };
    let (one, shown) = lora("1", &["--epochs", "2", "--replicas", "1"]);
    assert!(shown.contains(" nats per character; the base: "), "{shown}");
    let (three, _) = lora("3", &["--epochs", "2", "--replicas", "3"]);
    assert!(one == three, "three replicas");
    lora("resumed", &["--epochs", "1", "--replicas", "2"]);
    let args = ["--epochs", "2", "--replicas", "1", "--resume"];
    assert!(lora("resumed", &args).0 == one, "resumed");
    let merged = out("1 saved").join("merged");
    let prompts = out("prompts");
    fs::write(&prompts, "[3, 4]\n").unwrap();
    let written = generate(&[
        "--model",
        merged.to_str().unwrap(),
        "--prompts",
        prompts.to_str().unwrap(),
        "--most",
        "8",
    ]);
    assert!(written.status.success(), "{}", err(&written));
}
