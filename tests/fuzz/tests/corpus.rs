//! Every input that is kept goes through its reader again: the seeds, and all that once made one fail.

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
