//! Mutated checkpoints: no panic, and nothing is accepted that is not what was saved, unless its hash was
//! forged to match.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::contents;
use common::mutate::{FILES, Random, forge};
use unisono_checkpoint::{Store, load};

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
    for round in 0..2_000 {
        let which = random.below(FILES.len());
        let mut file = files[which].clone();
        random.mutate(&mut file);
        fs::write(path.join(FILES[which]), &file).unwrap();
        // Spaces in a manifest may change, and its step, which the directory's name decides. The contents may
        // not.
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
    for _ in 0..2_000 {
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
    assert!(refused > 500 && accepted > 50, "{refused} refused, {accepted} accepted");
}
