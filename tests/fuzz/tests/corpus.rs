//! Every input that is kept goes through its reader again: the seeds, and all that once made one fail.
//!
//! Alone in its process, because its allocator limits what the whole process allocates.

use std::fs;
use std::path::Path;

use unisono_fuzz::{Limited, READERS, Scratch};

#[global_allocator]
static LIMITED: Limited = Limited;

#[test]
fn every_input_that_is_kept_is_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let scratch = Scratch::new();
    for reader in READERS {
        let inputs = fs::read_dir(corpus.join(reader.name)).expect("each reader has inputs");
        let mut inputs: Vec<_> = inputs.map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(inputs.len() > 1, "{} has {} inputs", reader.name, inputs.len());
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            // This is shown when the test fails.
            println!("{}", input.display());
            (reader.read)(&scratch, &bytes);
        }
    }
    // Readers behind a feature have their inputs either way.
    let left_out = if cfg!(feature = "more-pictures") { 0 } else { 4 };
    let left_out = left_out + usize::from(!cfg!(feature = "columnar"));
    let left_out = if cfg!(feature = "run") { left_out } else { left_out + 2 };
    let kept = fs::read_dir(&corpus).unwrap().count();
    assert_eq!(kept, READERS.len() + left_out, "a directory of inputs has no reader");
}

/// Weights of other programs, changed at random: an error or tensors, and never a panic or more memory than
/// [`LIMIT`]. In the long tests 100,000 times each.
#[test]
fn changed_weights_of_other_programs_are_read() {
    let rounds = if std::env::var_os("UNISONO_LONG").is_some() { 100_000 } else { 1_000 };
    let scratch = Scratch::new();
    for name in ["torch", "keras"] {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut paths: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let (reader, mut random) = (unisono_fuzz::reader(name).unwrap(), Random(1));
        Limited::reset();
        for round in 0..rounds {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..1 + random.below(4) {
                random.change(&mut bytes);
            }
            // This is shown when the test fails.
            fs::write(scratch.path("changed"), &bytes).unwrap();
            let read = std::panic::catch_unwind(|| (reader.read)(&scratch, &bytes));
            assert!(read.is_ok(), "{name}, round {round}: {bytes:?}");
        }
        println!("{name}: {rounds} changed inputs, at most {} MB", Limited::peak() >> 20);
    }
}

/// Random numbers, always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }

    /// Changes a bit, a byte or a number, or removes, repeats or moves some bytes. The first byte says how
    /// the others are read, and stays.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        const NUMBERS: [u64; 8] =
            [0, 1, u64::MAX, 1 << 31, 1 << 32, 1 << 62, u32::MAX as u64, 0x8000_0000_0000_0000];
        let end = bytes.len();
        let at = 1 + self.below(end.saturating_sub(1));
        let some = self.below(16).min(end.saturating_sub(at));
        match self.below(7) {
            _ if at >= end => bytes.push(self.below(256) as u8),
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.below(256) as u8,
            2 => {
                let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                let size = [1, 2, 4, 8][self.below(4)].min(end - at);
                bytes[at..at + size].copy_from_slice(&number[..size]);
            }
            3 => drop(bytes.drain(at..at + some)),
            4 => {
                let part = bytes[at..at + some].to_vec();
                bytes.splice(at..at, part).for_each(drop);
            }
            5 => {
                let to = 1 + self.below(end - some - 1);
                bytes.copy_within(at..at + some, to);
            }
            _ => bytes.truncate(at),
        }
    }
}
