//! The programs that fine-tune a model of a directory: in the same bytes on any number of replicas, and after
//! they were killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use unisono::checkpoint::read_tensors;

use crate::err;

/// Runs `program` on one and on three replicas, and on two with a kill in between, and compares what it saves
/// with all other files of the base.
fn ends_in_the_same_bytes(program: &str, base: &str, frozen: &str) {
    let dir = tempfile::tempdir().unwrap();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(base);
    let run = |name: &str, flags: &[&str]| {
        let [out, save] = ["out", "saved"].map(|what| dir.path().join(format!("{name} {what}")));
        let mut command = Command::new(program);
        command.arg("--out").arg(&out).arg("--save").arg(&save).args(["--epochs", "3"]).args(flags);
        (command, out, save)
    };
    let saved = |name: &str, flags: &[&str]| {
        let (mut command, _, save) = run(name, flags);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {}", err(&output));
        assert!(err(&output).contains("validation: accuracy "), "{}", err(&output));
        fs::read(save.join("model.safetensors")).unwrap()
    };
    let one = saved("one", &["--replicas", "1"]);
    assert!(saved("three", &["--replicas", "3"]) == one, "three replicas");

    let (mut command, out, _) = run("killed", &["--replicas", "2", "--checkpoint-every", "5"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let is_saved = || unisono::checkpoint::list(&out).is_ok_and(|all| !all.is_empty());
    while !is_saved() && process.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(600), "it saves nothing");
        sleep(Duration::from_millis(5));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(is_saved(), "it ended before it saved");
    assert!(saved("killed", &["--replicas", "1", "--resume"]) == one, "killed and resumed");

    // The directory is like the base's, and what is frozen has its bytes.
    let (_, _, save) = run("one", &[]);
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&save), names(&base));
    let [old, new] = [&base, &save].map(|dir| read_tensors(dir.join("model.safetensors")).unwrap());
    assert!(old.keys().eq(new.keys()));
    for (name, tensor) in &old {
        assert_eq!(new[name] == *tensor, name.starts_with(frozen), "{name}");
    }
}

#[test]
fn fine_tune_text_ends_in_the_same_bytes() {
    let program = env!("CARGO_BIN_EXE_fine_tune_text");
    ends_in_the_same_bytes(program, "distilbert", "distilbert.embeddings.position");
}

#[test]
fn fine_tune_image_ends_in_the_same_bytes() {
    ends_in_the_same_bytes(env!("CARGO_BIN_EXE_fine_tune_image"), "vit", "vit.embeddings.");
}

#[test]
fn a_base_of_another_kind_is_named() {
    let gpt2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/gpt2");
    for program in [env!("CARGO_BIN_EXE_fine_tune_text"), env!("CARGO_BIN_EXE_fine_tune_image")] {
        let output = Command::new(program).arg("--model").arg(&gpt2).output().unwrap();
        assert!(!output.status.success());
        assert!(err(&output).contains("model_type is \"gpt2\", and "), "{}", err(&output));
    }
}

/// The first of its two trainers computes as the flags say, too: the state is the one that is written down.
#[test]
fn both_trainers_of_fine_tune_have_the_arithmetic_of_the_flags() {
    let states = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/STATES.md");
    let states = fs::read_to_string(states).unwrap();
    let row = states.lines().find(|line| line.starts_with("| `fine_tune` |")).unwrap();
    let hashes: Vec<&str> = row.split('`').filter(|word| word.len() == 64).collect();
    for (arithmetic, hash) in ["fused", "split"].into_iter().zip(hashes) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fine_tune"));
        command.args(["--adapter", "cpu", "--replicas", "1", "--arithmetic", arithmetic]);
        let output = command.output().unwrap();
        assert!(err(&output).contains(&format!("state {hash}")), "{arithmetic}: {}", err(&output));
    }
}
