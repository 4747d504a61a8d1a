//! Runs that end in the same state and print the same history, whatever the number of ranks.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{RUN, alone, digest, digits, is_long, mpirun, one_at_a_time};

/// The numbers of ranks, each with the replicas of a rank.
fn ranks() -> Vec<(usize, &'static str)> {
    if is_long() {
        (1..=4).flat_map(|ranks| [(ranks, "1"), (ranks, "2")]).collect()
    } else {
        vec![(1, "1"), (2, "2"), (3, "1"), (4, "2")]
    }
}

/// Compares a program's digest and history on several ranks with those of one process.
fn is_the_same(program: &str, args: &[&str], ranks: &[(usize, &str)]) {
    let args = [&["--json", "--adapter", "llvmpipe", "--cluster-deadline", "120"], args].concat();
    let one = Command::new(program).args(&args).output().unwrap();
    let wanted = digest(&one);
    for (ranks, replicas) in ranks {
        let ran = mpirun(*ranks, program).args(&args).args(["--replicas", replicas]).output().unwrap();
        let told = format!("{program} {args:?}: {ranks} ranks with {replicas} replicas");
        assert_eq!(digest(&ran), wanted, "{told}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&ran.stdout), text(&one.stdout), "{told}");
    }
}

#[test]
fn digits_ends_in_the_same_state_on_any_number_of_ranks() {
    let _alone = one_at_a_time();
    assert_eq!(alone(digits(), &RUN), alone(digits(), &RUN));
    is_the_same(digits(), &["--epochs", "3"], &ranks());
}

/// Mixed precision; many shards one after another in little memory; a ragged last batch. A batch of 8,192
/// shards is larger than the data, so each sample is a shard of its own.
#[test]
fn other_settings_of_digits_too() {
    let _alone = one_at_a_time();
    let ranks = if is_long() { ranks() } else { vec![(3, "2")] };
    for args in [
        &["--epochs", "2", "--precision", "mixed", "--global-batch", "50", "--shards", "5"][..],
        &["--epochs", "2", "--memory-limit", "1", "--global-batch", "256", "--shards", "32"],
        &["--epochs", "2", "--shards", "8192", "--global-batch", "8192"],
    ] {
        is_the_same(digits(), args, &ranks);
    }
}

/// Writes MNIST's files with a few images of bars and some noise.
fn images(dir: &Path) {
    for (part, count) in [("train", 50_usize), ("t10k", 20)] {
        let pixel = |i: usize, at: usize| {
            let bar = at / 28 == 2 * (i % 10) + 4;
            ((at * 31 + i * 17) % 60) as u8 + if bar { 190 } else { 0 }
        };
        let head = |magic: u8, sizes: &[usize]| {
            let sizes = sizes.iter().flat_map(|size| (*size as u32).to_be_bytes());
            [0, 0, 8, magic].into_iter().chain(sizes).collect::<Vec<u8>>()
        };
        let pixels = (0..count).flat_map(|i| (0..28 * 28).map(move |at| pixel(i, at)));
        let labels = (0..count).map(|i| (i % 10) as u8);
        let images: Vec<u8> = head(3, &[count, 28, 28]).into_iter().chain(pixels).collect();
        let labels: Vec<u8> = head(1, &[count]).into_iter().chain(labels).collect();
        fs::write(dir.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        fs::write(dir.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

/// Convolutions with batch norm, an LSTM with carries, attention.
#[test]
fn other_programs_too() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    images(dir.path());
    let text = dir.path().join("text.txt");
    fs::write(&text, "And God said, Let there be light: and there was light. ".repeat(70)).unwrap();
    let (images, text) = (dir.path().to_str().unwrap(), text.to_str().unwrap());
    let ranks = if is_long() { ranks() } else { vec![(3, "1")] };
    let cnn = ["--data", images, "--epochs", "2", "--global-batch", "16", "--shards", "8"];
    is_the_same(env!("CARGO_BIN_EXE_mnist_cnn"), &cnn, &ranks);
    let of_text = ["--data", text, "--epochs", "2", "--train-characters", "700", "--shards", "3"];
    let lstm = [&of_text[..], &["--global-batch", "6"]].concat();
    is_the_same(env!("CARGO_BIN_EXE_text_lstm"), &lstm, &ranks);
    let gpt = [&of_text[..], &["--global-batch", "4", "--write", "0"]].concat();
    is_the_same(env!("CARGO_BIN_EXE_tiny_gpt"), &gpt, &ranks);
}
