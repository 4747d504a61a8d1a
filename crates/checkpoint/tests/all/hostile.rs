//! Mutated checkpoints: no panic, and nothing is accepted that is not what was saved, unless its hash was
//! forged to match.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::contents;
use crate::common::mutate::{FILES, forge, seal};
use crate::common::random::Random;
use unisono_checkpoint::{Error, Store, inspect, list, load, newest};

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
        match load(&path) {
            Ok(found) => {
                assert_eq!(found, (5, contents(5)), "round {round}");
                assert!(file == files[which], "round {round}: a changed {} was accepted", FILES[which]);
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

#[test]
fn a_changed_manifest_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, files) = saved(dir.path());
    let text = String::from_utf8(files[3].clone()).unwrap();
    let put = |text: &str| fs::write(path.join("manifest.json"), text).unwrap();
    for (from, to) in [("\"step\": 5", "\"step\": 4"), ("  ", " "), ("\n}\n", "\n} \n"), ("\n}\n", "\n}")] {
        put(&text.replacen(from, to, 1));
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("manifest.json: no valid manifest: its SHA-256 of itself is wrong"),
            "{error}"
        );
    }
    let seal_at = text.rfind(",\n  \"sha256\"").unwrap();
    // The checksum cannot be done without.
    put(&format!("{}\n}}\n", &text[..seal_at]));
    assert!(load(&path).unwrap_err().to_string().contains("SHA-256 of itself"));
    put(&seal(&text));
    assert_eq!(load(&path).unwrap(), (5, contents(5)));
}

#[test]
fn a_step_that_would_wrap_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, files) = saved(dir.path());
    let text = String::from_utf8(files[3].clone()).unwrap();
    for step in [u64::MAX, u64::MAX - 1, (1 << 53) + 1] {
        let error = Store::open(dir.path()).unwrap().save(step, &contents(5)).unwrap_err();
        assert!(matches!(error, Error::Step { .. }) && !error.may_pass(), "{error}");
        let forged = path.with_file_name(format!("step-{step}"));
        fs::create_dir(&forged).unwrap();
        FILES.iter().zip(&files).for_each(|(name, file)| fs::write(forged.join(name), file).unwrap());
        let text = text.replacen("\"step\": 5", &format!("\"step\": {step}"), 1);
        fs::write(forged.join("manifest.json"), seal(&text)).unwrap();
        let found = newest(dir.path()).unwrap().unwrap();
        assert_eq!(found.step, 5);
        assert!(
            found.skipped[0].reason.contains(&format!("step {step} is later than")),
            "{:?}",
            found.skipped
        );
        // The run goes on, and what is in the way is moved aside.
        Store::open(dir.path()).unwrap().save(5, &contents(5)).unwrap();
        assert_eq!(list(dir.path()).unwrap().len(), 1);
    }
    let mut store = Store::open(dir.path()).unwrap();
    store.save(1 << 53, &contents(5)).unwrap();
    assert_eq!(store.newest().unwrap().unwrap().step, 1 << 53);
}

/// Makes a safetensors file of one tensor whose bytes are a hole, which takes no room on the disk.
#[cfg(target_os = "linux")]
fn hole(path: &Path, bytes: u64) -> std::io::Result<()> {
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())?;
    fs::File::options().write(true).open(path)?.set_len(8 + header.len() as u64 + bytes)
}

/// Where the system promises memory that it does not have, nothing could be seen.
#[test]
#[cfg(target_os = "linux")]
fn a_file_longer_than_memory_is_an_error() {
    if fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "1") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole.safetensors");
    // 8 TiB: more than any memory, less than an address space.
    if hole(&path, 1 << 43).is_err() {
        return;
    }
    let error = unisono_checkpoint::read_tensors(&path).unwrap_err().to_string();
    assert!(error.contains("hole.safetensors: cannot read: "), "{error}");
}

#[test]
fn sizes_that_no_sum_can_hold_are_listed() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (path, files) = saved(dir.path());
    let mut text = String::from_utf8(files[3].clone()).unwrap();
    let long = [u64::MAX / 2; 3];
    for ((name, file), length) in FILES.iter().zip(&files).zip(long) {
        let handle = fs::File::options().write(true).open(path.join(name)).unwrap();
        // Only some file systems have files of this length.
        if handle.set_len(length).is_err() {
            return;
        }
        let old = format!("\"bytes\": {},", file.len());
        text = text.replacen(&old, &format!("\"bytes\": {length},"), 1);
    }
    fs::write(path.join("manifest.json"), seal(&text)).unwrap();
    assert_eq!(inspect::list(dir.path()).unwrap()[0].bytes, u64::MAX);
}
