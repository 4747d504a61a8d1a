//! Random changes to files.

use sha2::{Digest, Sha256};

use super::random::Random;

/// The files of a checkpoint. The manifest is the last.
pub const FILES: [&str; 4] = ["model.safetensors", "optimizer.safetensors", "trainer.json", "manifest.json"];

impl Random {
    /// Makes one to four changes: a byte, a bit, a cut, an insertion, a run copied elsewhere, a digit.
    pub fn mutate(&mut self, file: &mut Vec<u8>) {
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

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a manifest's text with the right checksum of itself.
pub fn seal(manifest: &str) -> String {
    let at = manifest.rfind("\"sha256\": \"").unwrap() + 11;
    let (before, after) = (&manifest[..at], &manifest[at + 64..]);
    let checksum = sha(format!("{before}{}{after}", "0".repeat(64)).as_bytes());
    format!("{before}{checksum}{after}")
}

/// Returns the manifest's text with the sizes and hashes of other files.
pub fn forge(manifest: &str, name: &str, old: &[u8], new: &[u8]) -> String {
    let at = manifest.find(name).unwrap();
    let (before, after) = manifest.split_at(at);
    let size = |bytes: &[u8]| format!("\"bytes\": {},", bytes.len());
    let after = after.replacen(&size(old), &size(new), 1).replacen(&sha(old), &sha(new), 1);
    seal(&format!("{before}{after}"))
}
