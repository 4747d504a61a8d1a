//! Links and pipes that somebody planted under the names that are written: nothing is written, made or
//! removed elsewhere, and nothing waits for a pipe.
#![cfg(unix)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{contents, names};
use serde_json::json;
use unisono_checkpoint::{
    Disk, Error, Export, StdDisk, Store, check_replaceable, newest, read_tensors, write_model, write_whole,
};

/// Runs what may hang, and panics if it does.
fn soon<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    wait.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A directory of somebody else, with a file that must stay as it is, and nothing else.
struct Elsewhere(tempfile::TempDir);

impl Elsewhere {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".tmp-precious"), "precious").unwrap();
        Self(dir)
    }

    fn precious(&self) -> PathBuf {
        self.0.path().join(".tmp-precious")
    }

    fn absent(&self) -> PathBuf {
        self.0.path().join("absent")
    }

    fn check(&self, what: &str) {
        assert_eq!(names(self.0.path()), [".tmp-precious"], "{what}");
        assert_eq!(fs::read_to_string(self.precious()).unwrap(), "precious", "{what}");
    }
}

/// Opens a run, saves twice, and exports its model.
fn whole_run(dir: &Path) -> Result<(), Error> {
    let mut store = Store::open(dir)?;
    store.save(1, &contents(1))?;
    store.save(2, &contents(2))?;
    store.write_model(&contents(1).model)?;
    store.export_model(&contents(2).model, &Export::default().description(json!({ "layers": [] })))?;
    Ok(())
}

/// Saves a copy of a checkpoint of step 2 that is elsewhere.
fn copied(dir: &Path) -> Result<(), Error> {
    let from = tempfile::tempdir().unwrap();
    let from = Store::open(from.path())?.save(2, &contents(2))?.path;
    let files = names(&from).into_iter().map(|name| (name.clone(), fs::read(from.join(name)).unwrap()));
    let files: Vec<(String, Vec<u8>)> = files.collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    Store::open(dir)?.save_copy(&files).map(drop)
}

/// An earlier version wrote copies under a name that could be guessed, and followed what was there.
#[test]
fn a_copy_of_a_checkpoint_passes_links_by() {
    for name in ["checkpoints/.tmp-coming-step-00000002", "checkpoints/.tmp-step-00000002", "checkpoints"] {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
        let at = dir.path().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(elsewhere.0.path(), &at).unwrap();
        let saved = copied(dir.path());
        assert_eq!(saved.is_ok(), name != "checkpoints", "{saved:?}");
        elsewhere.check(name);
    }
}

/// The names that could be guessed, in versions before this test.
const GUESSED: [&str; 7] = [
    ".tmp-probe",
    "checkpoints/.tmp-probe",
    "checkpoints/.tmp-step-00000001",
    "checkpoints/.tmp-gone-step-00000001",
    ".model.safetensors.tmp",
    ".model.json.tmp",
    "model.json",
];

/// Plants something under one name after the other, and checks that a run passes it by.
fn planted(plant: fn(&Elsewhere, &Path)) {
    for name in GUESSED {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
        let run = dir.path().to_owned();
        fs::create_dir(run.join("checkpoints")).unwrap();
        plant(&elsewhere, &run.join(name));
        soon(name, move || whole_run(&run)).unwrap();
        elsewhere.check(name);
        assert_eq!(newest(dir.path()).unwrap().unwrap().contents, contents(2), "{name}");
        assert_eq!(read_tensors(dir.path().join("model.safetensors")).unwrap(), contents(2).model);
        for written in ["model.safetensors", "model.json"] {
            assert!(fs::symlink_metadata(dir.path().join(written)).unwrap().is_file(), "{name}: {written}");
        }
        let left = [".lock", "checkpoints", "model.json", "model.safetensors"];
        assert_eq!(names(dir.path()), left, "{name}");
        assert_eq!(names(&dir.path().join("checkpoints")), ["step-00000001", "step-00000002"], "{name}");
    }
}

#[test]
fn a_link_to_a_file_is_not_written_through() {
    planted(|elsewhere, at| symlink(elsewhere.precious(), at).unwrap());
}

#[test]
fn a_link_to_nothing_makes_nothing() {
    planted(|elsewhere, at| symlink(elsewhere.absent(), at).unwrap());
}

#[test]
fn a_pipe_is_not_waited_for() {
    planted(|_, at| pipe(at));
}

#[test]
fn a_model_is_not_written_through_a_link_beside_it() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
    let path = dir.path().join("m.safetensors");
    symlink(elsewhere.precious(), dir.path().join(".m.safetensors.tmp")).unwrap();
    symlink(elsewhere.absent(), &path).unwrap();
    write_model(&path, &contents(1).model).unwrap();
    elsewhere.check("a model");
    assert_eq!(read_tensors(&path).unwrap(), contents(1).model);
    // What is beside it is not this run's, and stays.
    assert_eq!(names(dir.path()), [".m.safetensors.tmp", "m.safetensors"]);
}

#[test]
fn only_new_files_are_created() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
    let plants: [fn(&Elsewhere, &Path); 4] = [
        |elsewhere, at| symlink(elsewhere.precious(), at).unwrap(),
        |elsewhere, at| symlink(elsewhere.absent(), at).unwrap(),
        |_, at| pipe(at),
        |_, at| fs::write(at, "old").unwrap(),
    ];
    for (i, plant) in plants.into_iter().enumerate() {
        let at = dir.path().join(i.to_string());
        plant(&elsewhere, &at);
        let error = soon("create", move || StdDisk.create(&at).map(drop)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{i}");
    }
    elsewhere.check("create");
    assert_ne!(StdDisk.token(), StdDisk.token());
}

#[test]
fn leftovers_go_by_their_pattern_and_nothing_behind_them() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
    let run = dir.path();
    fs::create_dir(run.join("checkpoints")).unwrap();
    for name in [
        ".tmp-probe-0123456789abcdef",
        ".tmp-file-0123456789abcdef",
        ".tmp-mine",
        ".tmp-file-0123",
        ".tmp-export-0123456789abcdef",
    ] {
        fs::write(run.join(name), "left").unwrap();
        fs::write(run.join("checkpoints").join(name), "left").unwrap();
    }
    fs::create_dir(run.join("checkpoints/.tmp-own")).unwrap();
    fs::create_dir(run.join("checkpoints/.tmp-gone-step-00000007-00000000000000aa")).unwrap();
    symlink(elsewhere.precious(), run.join(".tmp-file-00000000000000aa")).unwrap();
    symlink(elsewhere.0.path(), run.join("checkpoints/.tmp-step-00000003-00000000000000aa")).unwrap();
    pipe(&run.join(".tmp-file-00000000000000bb"));
    fs::create_dir(run.join(".tmp-file-00000000000000cc")).unwrap();
    let ours = run.to_owned();
    soon("leftovers", move || whole_run(&ours)).unwrap();
    elsewhere.check("leftovers");
    let left = [
        ".lock",
        ".tmp-export-0123456789abcdef",
        ".tmp-file-00000000000000cc",
        ".tmp-file-0123",
        ".tmp-mine",
        "checkpoints",
        "model.json",
        "model.safetensors",
    ];
    assert_eq!(names(run), left, "a directory is none of ours, nor is another's file");
    let left = [
        ".tmp-export-0123456789abcdef",
        ".tmp-file-0123",
        ".tmp-mine",
        ".tmp-own",
        "step-00000001",
        "step-00000002",
    ];
    assert_eq!(names(&run.join("checkpoints")), left);
}

#[test]
fn a_lock_that_is_a_link_or_a_pipe_is_refused() {
    let plants: [fn(&Elsewhere, &Path); 3] = [
        |elsewhere, at| symlink(elsewhere.precious(), at).unwrap(),
        |elsewhere, at| symlink(elsewhere.absent(), at).unwrap(),
        |_, at| pipe(at),
    ];
    for plant in plants {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
        plant(&elsewhere, &dir.path().join(".lock"));
        let run = dir.path().to_owned();
        let error = soon("lock", move || Store::open(run)).unwrap_err();
        assert!(error.to_string().ends_with(".lock: cannot open: no regular file"), "{error}");
        elsewhere.check("lock");
    }
}

/// A lock that became a link to itself is not the one that a second run would hold.
#[test]
fn a_lock_that_becomes_a_link_is_noticed() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::open(dir.path()).unwrap();
    let (lock, moved) = (dir.path().join(".lock"), elsewhere.path().join("moved"));
    fs::hard_link(&lock, &moved).unwrap();
    fs::remove_file(&lock).unwrap();
    symlink(&moved, &lock).unwrap();
    let error = store.save(1, &contents(1)).unwrap_err();
    assert!(error.to_string().ends_with(".lock: cannot open: no regular file"), "{error}");
}

/// The files of a checkpoint may be links, but not to what is no file, or to one that does not end.
#[test]
fn a_checkpoint_whose_files_are_devices_or_pipes_is_skipped() {
    let plants: [fn(&Path); 4] = [
        |at| pipe(at),
        |at| symlink("/dev/zero", at).unwrap(),
        |at| symlink("/dev/tty", at).unwrap(),
        // Its length is 0, and it goes on for hundreds of gigabytes.
        |at| symlink("/proc/self/pagemap", at).unwrap(),
    ];
    let count = if Path::new("/proc/self/pagemap").exists() { 4 } else { 3 };
    for (i, plant) in plants.into_iter().take(count).enumerate() {
        for name in ["manifest.json", "trainer.json", "model.safetensors", "optimizer.safetensors"] {
            let dir = tempfile::tempdir().unwrap();
            let mut store = Store::open(dir.path()).unwrap();
            store.save(1, &contents(1)).unwrap();
            let path = store.save(2, &contents(2)).unwrap().path.join(name);
            fs::remove_file(&path).unwrap();
            plant(&path);
            let run = dir.path().to_owned();
            let found = soon(name, move || newest(run)).unwrap().unwrap();
            assert_eq!((found.step, found.skipped.len()), (1, 1), "{name} {i}");
            let reason = &found.skipped[0].reason;
            assert!(reason.contains(name), "{reason}");
            assert!(!reason.contains("memory"), "read without a limit: {reason}");
        }
    }
}

#[test]
fn a_pipe_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("pipe");
    pipe(&at);
    let reads: [fn(&Path) -> std::io::Result<()>; 5] = [
        |at| StdDisk.read(at).map(drop),
        |at| StdDisk.read_at_most(at, 10).map(drop),
        |at| StdDisk.stream(at, &mut |_| {}),
        |at| StdDisk.open(at).map(drop),
        |at| StdDisk.sync_dir(at),
    ];
    for read in reads {
        let at = at.clone();
        soon("read", move || read(&at)).unwrap_err();
    }
    let file = dir.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    assert_eq!(StdDisk.read_at_most(&file, 10).unwrap(), b"0123456789");
    assert_eq!(StdDisk.read_at_most(&file, 9).unwrap_err().kind(), ErrorKind::FileTooLarge);
}

#[test]
fn a_trainer_state_that_could_not_be_read_again_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let mut large = contents(1);
    large.trainer = json!("x".repeat(1 << 28));
    let error = store.save(1, &large).unwrap_err();
    assert!(error.to_string().starts_with("cannot be stored: trainer.json takes 268435459 bytes"), "{error}");
    assert!(!error.may_pass());
    assert_eq!(newest(dir.path()).unwrap(), None);
}

#[test]
fn a_directory_of_checkpoints_that_is_a_link_is_refused() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
    let checkpoints = dir.path().join("checkpoints");
    symlink(elsewhere.0.path(), &checkpoints).unwrap();
    let expected = "checkpoints: cannot write: it is a link; link the run's directory instead";
    let error = Store::open(dir.path()).unwrap_err();
    assert!(error.to_string().ends_with(expected), "{error}");
    elsewhere.check("opening");

    fs::remove_file(&checkpoints).unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    store.save(1, &contents(1)).unwrap();
    fs::rename(&checkpoints, dir.path().join("moved")).unwrap();
    symlink(elsewhere.0.path(), &checkpoints).unwrap();
    let error = store.save(2, &contents(2)).unwrap_err();
    assert!(error.to_string().ends_with(expected) && error.may_pass(), "{error}");
    elsewhere.check("saving");
}

/// A broken checkpoint is moved aside under a name that nothing has, a link included.
#[test]
fn a_broken_checkpoint_is_moved_past_what_is_planted() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
    let mut store = Store::open(dir.path()).unwrap();
    let path = store.save(1, &contents(1)).unwrap().path;
    fs::write(path.join("trainer.json"), "").unwrap();
    symlink(elsewhere.absent(), path.with_file_name("broken-step-00000001")).unwrap();
    pipe(&path.with_file_name("broken-2-step-00000001"));
    store.save(1, &contents(1)).unwrap();
    let there = ["broken-2-step-00000001", "broken-3-step-00000001", "broken-step-00000001", "step-00000001"];
    assert_eq!(names(path.parent().unwrap()), there);
    elsewhere.check("broken");
}

#[test]
fn a_file_takes_the_place_of_a_file_or_a_link_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("pipe");
    pipe(&at);
    for path in [&*at, Path::new("/dev/null"), dir.path()] {
        let named = |error: Error| assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        named(check_replaceable(path).unwrap_err());
        named(write_whole(path, &[b"text"]).unwrap_err());
        named(write_model(path, &contents(1).model).unwrap_err());
        assert!(!fs::symlink_metadata(path).unwrap().is_file());
    }
    let elsewhere = Elsewhere::new();
    let link = dir.path().join("link");
    symlink(elsewhere.precious(), &link).unwrap();
    write_whole(&link, &[b"text"]).unwrap();
    elsewhere.check("a link");
    assert_eq!(fs::read_to_string(&link).unwrap(), "text");
}
