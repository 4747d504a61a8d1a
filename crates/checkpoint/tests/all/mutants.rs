//! 100,000 mutated checkpoints in memory, half of them with hashes forged to match, so that the parsers are
//! reached.

use std::path::Path;

use crate::common::contents;
use crate::common::mutate::{FILES, forge};
use crate::common::power::PowerDisk;
use crate::common::random::Random;
use unisono_checkpoint::{Contents, Disk, Options, Store, load_with, parse_tensors};

const ROUNDS: usize = 50_000;

fn put(disk: &PowerDisk, path: &Path, bytes: &[u8]) {
    disk.remove(path).unwrap();
    let mut file = disk.create(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// Returns the manifest that is saved.
fn manifest() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::open(dir.path()).unwrap().save(5, &contents(5)).unwrap().path;
    std::fs::read(path.join(FILES[3])).unwrap()
}

/// Each round changes one file, or two, of a checkpoint.
fn mutants(seed: u64, forged: bool, mut check: impl FnMut(bool, Result<Contents, String>, &[Vec<u8>])) {
    let dir = tempfile::tempdir().unwrap();
    let disk = PowerDisk::new(dir.path());
    let mut store =
        Store::open_with(dir.path(), Options::default(), std::sync::Arc::new(disk.clone())).unwrap();
    let path = store.save(5, &contents(5)).unwrap().path;
    let files = FILES.map(|name| disk.read(&path.join(name)).unwrap());
    let mut random = Random(seed);
    for _ in 0..ROUNDS {
        let mut now = files.to_vec();
        for _ in 0..1 + random.below(2) {
            let which = random.below(if forged { 3 } else { 4 });
            random.mutate(&mut now[which]);
        }
        if forged {
            let manifest = String::from_utf8(files[3].clone()).unwrap();
            now[3] = (0..3).fold(manifest, |text, i| forge(&text, FILES[i], &files[i], &now[i])).into_bytes();
        }
        for (name, bytes) in FILES.iter().zip(&now) {
            put(&disk, &path.join(name), bytes);
        }
        let found = load_with(&disk, &path).map(|(_, found)| found).map_err(|error| error.to_string());
        check(now[..3] == files[..3], found, &now);
    }
}

#[test]
fn no_file_with_a_wrong_hash_is_accepted() {
    let mut accepted = 0;
    let saved = manifest();
    mutants(1, false, |untouched, found, now| {
        if let Ok(found) = found {
            assert!(untouched && found == contents(5) && now[3] == saved);
            accepted += 1;
        }
    });
    assert!(accepted < ROUNDS / 5, "{accepted} were not mutated");
}

#[test]
fn no_file_with_a_forged_hash_gives_a_wrong_shape() {
    let (mut accepted, mut refused) = (0, 0);
    mutants(2, true, |_, found, files| match found {
        Ok(found) => {
            accepted += 1;
            for (tensors, file) in [(&found.model, &files[0]), (&found.optimizer, &files[1])] {
                // What is accepted here must be what the safetensors crate reads.
                let stock = safetensors::SafeTensors::deserialize(file).expect("a file the crate reads too");
                assert_eq!(stock.len(), tensors.len());
                for (name, tensor) in tensors {
                    let view = stock.tensor(name).unwrap();
                    assert_eq!((view.shape(), view.data()), (tensor.shape(), tensor.bytes()));
                    assert_eq!(view.dtype().to_string(), tensor.dtype().name());
                    assert_eq!(tensor.info().bytes(), Some(tensor.bytes().len()));
                }
            }
        }
        Err(text) => {
            assert!(!text.contains("SHA-256") && !text.contains("manifest"), "not forged: {text}");
            // What that crate refuses must be refused here. Only for these reasons may more be refused.
            for (name, file) in FILES[..2].iter().zip(files) {
                let ours = parse_tensors(Path::new(name), file).map_err(|error| error.to_string());
                let theirs = safetensors::SafeTensors::deserialize(file);
                if let (Err(ours), Ok(_)) = (ours, theirs) {
                    assert!(ours.contains("occurs twice") || ours.contains("not supported"), "{ours}");
                }
            }
            refused += 1;
        }
    });
    assert!(refused > ROUNDS / 5 && accepted > ROUNDS / 100, "{refused} refused, {accepted} accepted");
}
