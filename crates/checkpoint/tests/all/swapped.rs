//! Random attacks by somebody who can write into a run's directory: links, pipes, files and directories under
//! the names that are used, and directories swapped while a save runs. Nothing is written, made or removed
//! elsewhere, nothing hangs, each save is complete or an error, and what was complete stays readable.
//!
//! Twelve trials of each kind, or 50 with `UNISONO_LONG`.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::random::Random;
use crate::common::{contents, names};
use serde_json::json;
use unisono_checkpoint::{Export, Options, StdDisk, Store, load, newest, read_export};

fn trials() -> u64 {
    if std::env::var_os("UNISONO_LONG").is_some() { 50 } else { 12 }
}

/// Runs what may hang, and panics if it does.
fn soon<T: Send + 'static>(what: String, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    wait.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Another's directory, which looks like a run's and must stay as it is.
struct Elsewhere(tempfile::TempDir);

impl Elsewhere {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["precious", "checkpoints/step-00000001/precious", "step-00000001/manifest.json"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "precious").unwrap();
        }
        Self(dir)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.state().into_iter().map(|(path, _)| path).collect()
    }

    /// Returns all paths below, and what files hold.
    fn state(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let (mut all, mut open) = (Vec::new(), vec![self.0.path().to_owned()]);
        while let Some(dir) = open.pop() {
            for name in names(&dir) {
                let path = dir.join(name);
                if path.is_dir() {
                    open.push(path.clone());
                }
                all.push((path.clone(), fs::read(path).ok()));
            }
        }
        all.sort();
        all
    }
}

/// The names under which something is planted, in a run's directory and beside an export.
const NAMES: [&str; 14] = [
    ".lock",
    "checkpoints",
    ".tmp-probe",
    ".tmp-file-0123456789abcdef",
    "model.safetensors",
    "model.json",
    "checkpoints/.tmp-step-00000003-0123456789abcdef",
    "checkpoints/.old-step-00000003",
    "checkpoints/step-00000001",
    "checkpoints/step-00000003",
    "checkpoints/step-00000002/manifest.json",
    "checkpoints/broken-step-00000003",
    "export.safetensors",
    "export.json",
];

/// Plants something under a name of the run, unless what is there holds the steps that must stay readable.
fn plant(run: &Path, elsewhere: &Path, random: &mut Random) -> String {
    let name = match random.below(NAMES.len() + 3) {
        at if at < NAMES.len() => NAMES[at].to_owned(),
        _ => format!("checkpoints/{}-{}", ["x", ".tmp-", "step-0000000"][random.below(3)], random.below(99)),
    };
    let at = run.join(&name);
    if name == "checkpoints" || name == "checkpoints/step-00000001" || name.contains("step-00000002") {
        return format!("{name} is left alone");
    }
    let _ = fs::remove_file(&at);
    let what = random.below(6);
    let done = match what {
        0 => symlink(elsewhere.join("precious"), &at).is_ok(),
        1 => symlink(elsewhere.join("absent"), &at).is_ok(),
        2 => symlink(elsewhere, &at).is_ok(),
        3 => Command::new("mkfifo").arg(&at).status().unwrap().success(),
        4 => symlink(["/dev/zero", "/dev/full", "/dev/tty"][random.below(3)], &at).is_ok(),
        _ => fs::create_dir(&at).is_ok(),
    };
    format!("{name}: {what} {done}")
}

#[test]
fn what_is_planted_at_random_loses_nothing_and_reaches_nothing() {
    let mut saved = 0;
    for seed in 0..trials() {
        let mut random = Random(seed);
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
        let (run, before) = (dir.path().to_owned(), elsewhere.state());
        let mut store =
            Store::open_with(&run, Options::default().keep(0), std::sync::Arc::new(StdDisk)).unwrap();
        store.save(1, &contents(1)).unwrap();
        store.save(2, &contents(2)).unwrap();
        drop(store);
        let planted: Vec<String> =
            (0..1 + random.below(6)).map(|_| plant(&run, elsewhere.0.path(), &mut random)).collect();
        let what = format!("seed {seed}: {planted:?}");
        let ours = run.clone();
        let result = soon(what.clone(), move || {
            let options = Options::default().keep(0);
            let mut store = Store::open_with(&ours, options, std::sync::Arc::new(StdDisk))?;
            let described = Export::default().description(json!({}));
            let exported = store.export_model(&contents(3).model, &described);
            let beside = ours.join("export.safetensors");
            let also = unisono_checkpoint::export_model(&beside, &contents(3).model, &described);
            let saved = store.save(3, &contents(3));
            for (exported, path) in [(exported, ours.join("model.safetensors")), (also, beside)] {
                if exported.is_ok() {
                    read_export(path).unwrap();
                }
            }
            saved
        });
        assert!(elsewhere.state() == before, "{what}: {:?}", elsewhere.paths());
        for step in [1, 2] {
            let path = run.join(format!("checkpoints/step-{step:08}"));
            assert_eq!(load(path).unwrap(), (step, contents(step)), "{what}");
        }
        if result.is_ok() {
            saved += 1;
            assert_eq!(newest(&run).unwrap().unwrap().contents, contents(3), "{what}");
        }
    }
    assert!(saved > trials() / 4, "{saved} saves");
}

/// Where a directory is swapped: the run's checkpoints, or what a save has just begun in them.
fn swap(run: &Path, elsewhere: &Path, random: &mut Random, round: usize) {
    let away = run.with_extension(format!("away-{round}"));
    let target = match random.below(4) {
        0 => run.to_owned(),
        1 => {
            let begun = names_now(&run.join("checkpoints"));
            let Some(name) = begun.into_iter().find(|name| name.starts_with(".tmp-")) else { return };
            run.join("checkpoints").join(name)
        }
        _ => run.join("checkpoints"),
    };
    if fs::rename(&target, &away).is_err() {
        return;
    }
    let planted = match random.below(3) {
        0 => fs::create_dir(&target),
        1 => symlink(elsewhere.join("checkpoints"), &target),
        _ => symlink(elsewhere, &target),
    };
    thread::sleep(Duration::from_micros(random.below(3000) as u64));
    if planted.is_ok() && (target.is_symlink() || random.below(2) == 0) {
        // It is put back, so that later saves find the run again.
        let _ = if target.is_symlink() { fs::remove_file(&target) } else { fs::remove_dir_all(&target) };
        let _ = fs::rename(&away, &target);
    }
}

fn names_now(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the directories of checkpoints below a path, wherever swapping has left them.
fn everywhere(base: &Path, depth: usize, step: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names_now(base) {
        let path = base.join(&name);
        if path.is_symlink() || !path.is_dir() || depth == 0 {
            continue;
        }
        if name == format!("step-{step:08}") {
            found.push(path);
        } else {
            found.extend(everywhere(&path, depth - 1, step));
        }
    }
    found
}

#[test]
fn directories_swapped_during_saves_lose_nothing_and_send_nothing_elsewhere() {
    let (mut complete, mut refused) = (0, 0);
    for seed in 0..trials() {
        let (base, elsewhere) = (tempfile::tempdir().unwrap(), Elsewhere::new());
        let (run, before) = (base.path().join("run"), elsewhere.state());
        let options = || Options::default().keep(0);
        let mut store = Store::open_with(&run, options(), std::sync::Arc::new(StdDisk)).unwrap();
        store.save(1, &contents(1)).unwrap();
        // The attacker has turns; during every third save he has none, so that some save surely lasts.
        let (stop, turn) = (AtomicBool::new(false), Mutex::new(()));
        let done: Vec<u64> = thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                for round in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_micros(random.below(2000) as u64));
                    let _own = turn.lock().unwrap();
                    swap(&run, elsewhere.0.path(), &mut random, round);
                }
            });
            let saves = (2..14).filter(|&step| {
                let _rest = (step % 3 == 2).then(|| turn.lock().unwrap());
                match store.save(step, &contents(step)) {
                    Ok(_) => true,
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        let _ = store.export_model(&contents(1).model, &Export::default());
                        refused += 1;
                        false
                    }
                }
            });
            let done = saves.collect();
            stop.store(true, Relaxed);
            done
        });
        drop(store);
        assert!(elsewhere.state() == before, "seed {seed}: {:?}", elsewhere.paths());
        for step in std::iter::once(1).chain(done) {
            // A directory that was swapped away, and that nobody put back, still holds what it held. One
            // that the attacker himself removed was empty when he made it, and holds what was saved into
            // it.
            let places = everywhere(base.path(), 5, step);
            let whole =
                places.iter().any(|path| load(path).is_ok_and(|found| found == (step, contents(step))));
            assert!(whole || places.is_empty() && step > 1, "seed {seed}: step {step} in {places:?}");
            complete += u64::from(whole);
        }
        // The run goes on where its directory now is.
        if run.is_dir() && !run.is_symlink() && !run.join("checkpoints").is_symlink() {
            let mut store = Store::open_with(&run, options(), std::sync::Arc::new(StdDisk)).unwrap();
            store.save(20, &contents(20)).unwrap();
            assert_eq!(newest(&run).unwrap().unwrap().contents, contents(20));
        }
        assert!(elsewhere.state() == before, "seed {seed}: {:?}", elsewhere.paths());
    }
    println!("{complete} saves complete, {refused} refused");
    assert!(complete > trials(), "{complete} saves complete, {refused} refused");
}
