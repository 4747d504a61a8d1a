//! Mutated checkpoints: no panic, nothing accepted that is not what was saved, unless its hash was forged to match.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::contents;
use sha2::{Digest, Sha256};
use unisono_checkpoint::{Store, load};

const FILES: [&str; 4] = ["model.safetensors", "optimizer.safetensors", "trainer.json", "manifest.json"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// One to four changes: a byte, a bit, a cut, an insertion, a run copied elsewhere, a digit.
    fn mutate(&mut self, file: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(file.len() + 1).min(file.len().saturating_sub(1));
            match self.below(6) {
                0 if !file.is_empty() => file[at] = self.below(256) as u8,
                1 if !file.is_empty() => file[at] ^= 1 << self.below(8),
                2 => file.truncate(at),
                3 => file.insert(at, b"0[{\"}],:\\\xff"[self.below(10)]),
                4 => {
                    let end = at + self.below(file.len() - at + 1);
                    let run = file[at..end].to_vec();
                    let to = self.below(file.len() + 1);
                    file.splice(to..to, run);
                }
                _ => {
                    let digits: Vec<usize> = (0..file.len()).filter(|&i| file[i].is_ascii_digit()).collect();
                    if !digits.is_empty() {
                        file[digits[self.below(digits.len())]] = b'0' + self.below(10) as u8;
                    }
                }
            }
        }
    }
}

/// The manifest's text with the sizes and hashes of other files.
fn forge(manifest: &str, name: &str, old: &[u8], new: &[u8]) -> String {
    let sha =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let at = manifest.find(name).unwrap();
    let (before, after) = manifest.split_at(at);
    let size = |bytes: &[u8]| format!("\"bytes\": {},", bytes.len());
    format!("{before}{}", after.replacen(&size(old), &size(new), 1).replacen(&sha(old), &sha(new), 1))
}

fn saved(dir: &Path) -> (PathBuf, Vec<Vec<u8>>) {
    let path = Store::open(dir).unwrap().save(5, &contents(5)).unwrap().path;
    let files = FILES.map(|name| fs::read(path.join(name)).unwrap()).to_vec();
    (path, files)
}

#[test]
fn no_mutated_checkpoint_is_taken_for_the_one_that_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (path, files) = saved(dir.path());
    let mut random = Random(1);
    for round in 0..5_000 {
        let which = random.below(FILES.len());
        let mut file = files[which].clone();
        random.mutate(&mut file);
        fs::write(path.join(FILES[which]), &file).unwrap();
        // Spaces in a manifest, or its step, which the directory's name decides, may change. The contents may not.
        match load(&path) {
            Ok((_, found)) => {
                assert_eq!(found, contents(5), "round {round}");
                assert!(
                    which == 3 || file == files[which],
                    "round {round}: a changed {} was accepted",
                    FILES[which]
                );
            }
            Err(error) => assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}"),
        }
        fs::write(path.join(FILES[which]), &files[which]).unwrap();
    }
    assert_eq!(load(&path).unwrap(), (5, contents(5)));
}

#[test]
fn forged_hashes_reach_the_parser_and_harm_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, files) = saved(dir.path());
    let manifest = String::from_utf8(files[3].clone()).unwrap();
    let mut random = Random(2);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..5_000 {
        let which = random.below(3);
        let mut file = files[which].clone();
        random.mutate(&mut file);
        fs::write(path.join(FILES[which]), &file).unwrap();
        fs::write(path.join("manifest.json"), forge(&manifest, FILES[which], &files[which], &file)).unwrap();
        match load(&path) {
            Ok((_, found)) => {
                accepted += 1;
                for (name, tensor) in found.model.iter().chain(&found.optimizer) {
                    let elements: usize = tensor.shape().iter().product();
                    assert_eq!(elements * tensor.dtype().size(), tensor.bytes().len(), "{name}");
                }
            }
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains("SHA-256") && !text.contains("manifest"), "not forged: {text}");
                refused += 1;
            }
        }
        fs::write(path.join(FILES[which]), &files[which]).unwrap();
    }
    assert!(refused > 1_000 && accepted > 100, "{refused} refused, {accepted} accepted");
}
