//! "The newest trusted checkpoint always stays, and a checkpoint that is distrusted is not found any more."

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::faulty::{Faulty, Then};
use crate::common::power::PowerDisk;
use crate::common::{contents, names};
use proptest::prelude::*;
use unisono_checkpoint::{
    Best, Contents, Disk, Error, Options, StdDisk, Store, inspect, list, load, newest, newest_with,
};

fn open(dir: &Path, options: Options) -> Store {
    Store::open_with(dir, options, Arc::new(StdDisk)).unwrap()
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

fn trusted(store: &Store) -> Option<u64> {
    store.trusted().unwrap().map(|(step, _)| step)
}

#[test]
fn the_newest_trusted_stays_until_a_newer_one_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Options::default().keep(1));
    assert_eq!((store.trust(9).unwrap(), trusted(&store)), (None, None));
    assert!(!dir.path().join("checkpoints/trusted.json").exists(), "nothing changed");
    store.save(1, &contents(1)).unwrap();
    assert_eq!(store.trust(0).unwrap(), None);
    assert_eq!(store.trust(1).unwrap(), Some(1));
    for step in 2..6 {
        store.save(step, &contents(step)).unwrap();
        assert_eq!((steps(dir.path()), trusted(&store)), (vec![step, 1], Some(1)));
    }
    drop(store);
    let mut store = open(dir.path(), Options::default().keep(1));
    assert_eq!(store.trust(4).unwrap(), Some(1), "step 5 is later, and stays untrusted");
    assert_eq!(store.trust(7).unwrap(), Some(5));
    assert_eq!(store.trust(1).unwrap(), Some(5), "an earlier audit takes nothing back");
    assert_eq!(steps(dir.path()), [5, 1], "only a save removes");
    store.save(8, &contents(8)).unwrap();
    assert_eq!((steps(dir.path()), trusted(&store)), (vec![8, 5], Some(5)));
    let (_, path) = store.trusted().unwrap().unwrap();
    assert_eq!(load(path).unwrap(), (5, contents(5)));
}

#[test]
fn the_record_is_written_only_where_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Options::default());
    let record = dir.path().join("checkpoints/trusted.json");
    for step in [1, 2] {
        store.save(step, &contents(step)).unwrap();
    }
    store.trust(1).unwrap();
    let first = fs::metadata(&record).unwrap();
    for upto in [0, 1] {
        assert_eq!(store.trust(upto).unwrap(), Some(1));
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            assert_eq!(fs::metadata(&record).unwrap().ino(), first.ino());
        }
    }
    assert_eq!(store.trust(2).unwrap(), Some(2));
    let text = fs::read_to_string(&record).unwrap();
    assert_ne!(text.len() as u64, first.len());
    let manifest = fs::read(dir.path().join("checkpoints/step-00000002/manifest.json")).unwrap();
    let sha256: String =
        <sha2::Sha256 as sha2::Digest>::digest(manifest).iter().map(|b| format!("{b:02x}")).collect();
    assert!(text.contains(&sha256), "{text}");
}

#[test]
fn a_checkpoint_that_is_replaced_is_not_trusted_and_the_one_before_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Options::default().keep(1));
    store.save(1, &contents(1)).unwrap();
    store.trust(1).unwrap();
    let second = store.save(2, &contents(2)).unwrap().path;
    store.trust(2).unwrap();
    store.save(2, &contents(2)).unwrap();
    assert_eq!(trusted(&store), Some(2), "it is the same byte for byte");
    // At this save, step 2 is the newest trusted, and step 1 goes.
    assert_eq!(steps(dir.path()), [2]);
    store.save(3, &contents(3)).unwrap();
    store.trust(3).unwrap();
    let mut other = contents(3);
    other.trainer["epoch"] = 1.into();
    store.save(3, &other).unwrap();
    assert_eq!((steps(dir.path()), trusted(&store)), (vec![3, 2], Some(2)));
    store.save(4, &contents(4)).unwrap();
    assert_eq!((steps(dir.path()), trusted(&store)), (vec![4, 2], Some(2)));
    // Another checkpoint is put in its place.
    let elsewhere = tempfile::tempdir().unwrap();
    let forged = open(elsewhere.path(), Options::default()).save(2, &other).unwrap().path;
    fs::remove_dir_all(&second).unwrap();
    fs::rename(forged, &second).unwrap();
    assert_eq!(trusted(&store), None);
}

/// A run that keeps thousands of checkpoints has an audit every few seconds.
#[test]
fn an_audit_reads_only_what_came_after_the_newest_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Faulty::new(usize::MAX, Then::GoesOn));
    let mut store = Store::open_with(dir.path(), Options::default().keep(0), disk.clone()).unwrap();
    let reads = |store: &mut Store, upto| {
        let before = disk.reads();
        let newest = store.trust(upto).unwrap();
        (newest, disk.reads() - before)
    };
    (1..=40).for_each(|step| drop(store.save(step, &contents(step)).unwrap()));
    assert_eq!(reads(&mut store, 30).0, Some(30));
    for (upto, expected) in [(30, 30), (31, 31), (31, 31), (0, 31)] {
        let (newest, read) = reads(&mut store, upto);
        // The record, twice, and the manifests of the newest trusted and of a newer one.
        assert!(newest == Some(expected) && read <= 4, "{upto}: {newest:?} after {read} files");
    }
    // A newest one that is gone is found to be, and the one before it is looked at.
    fs::remove_dir_all(dir.path().join("checkpoints/step-00000031")).unwrap();
    assert_eq!(reads(&mut store, 0).0, Some(30));
    fs::remove_file(dir.path().join("checkpoints/step-00000030/trainer.json")).unwrap();
    assert_eq!(reads(&mut store, 0).0, Some(29));
    assert_eq!(store.all_trusted().unwrap().len(), 29);
}

#[test]
fn the_distrusted_are_not_found_and_are_kept_for_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Options::default().keep(0));
    for step in 1..=5 {
        store.save(step, &contents(step)).unwrap();
    }
    store.trust(4).unwrap();
    assert_eq!(store.distrust(5).unwrap(), [""; 0].map(std::path::PathBuf::from));
    let suspects = store.distrust(2).unwrap();
    let checkpoints = dir.path().join("checkpoints");
    let expected = [5, 4, 3].map(|step| checkpoints.join(format!("suspect-step-0000000{step}")));
    assert_eq!(suspects, expected);
    assert_eq!(load(&suspects[1]).unwrap(), (4, contents(4)));
    assert_eq!((steps(dir.path()), trusted(&store)), (vec![2, 1], Some(2)));
    assert_eq!(store.newest().unwrap().unwrap().step, 2);
    let audited = inspect::audited(dir.path()).unwrap();
    assert_eq!(audited.suspects.iter().map(|listed| listed.step).collect::<Vec<_>>(), [5, 4, 3]);
    let line = audited.suspects[0].to_string();
    assert!(line.contains("  suspect: ") && line.ends_with("suspect-step-00000005"), "{line}");

    // The run goes on from step 2. Step 4 was trusted under its old numbers, and is not any more, not even if
    // they are the same.
    store.save(4, &contents(4)).unwrap();
    assert_eq!((steps(dir.path()), trusted(&store)), (vec![4, 2, 1], Some(2)));
    assert_eq!(store.distrust(4).unwrap().len(), 0);
    assert!(suspects[0].exists(), "without new suspects the old ones stay");
    assert_eq!(store.distrust(2).unwrap(), [checkpoints.join("suspect-step-00000004")]);
    let there = ["step-00000001", "step-00000002", "suspect-step-00000004", "trusted.json"];
    assert_eq!(names(&checkpoints), there);
    store.clear().unwrap();
    assert_eq!(names(&checkpoints), [""; 0]);
    assert_eq!(newest(dir.path()).unwrap(), None);
}

/// The directory that was audited is gone, and another run's is in its place.
#[test]
fn another_runs_directory_is_not_trusted() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("run");
    let mut store = open(&dir, Options::default());
    store.save(1, &contents(1)).unwrap();
    fs::rename(&dir, above.path().join("moved")).unwrap();
    for _ in 0..2 {
        for error in [store.trust(1).map(drop).unwrap_err(), store.distrust(0).map(drop).unwrap_err()] {
            assert!(
                matches!(error, Error::Io { .. }) && error.to_string().contains(".lock: cannot find"),
                "{error}"
            );
        }
        let mut other = open(&dir, Options::default());
        if other.newest().unwrap().is_none() {
            other.save(1, &contents(7)).unwrap();
        }
        assert_eq!(trusted(&other), None);
    }
}

/// What somebody put in place of the record, and a part of the reason why it is none.
#[cfg(unix)]
type Plant = (fn(&Path), &'static str);

#[cfg(unix)]
const PLANTS: [Plant; 8] = [
    (|at| fs::write(at, "").unwrap(), "EOF"),
    (|at| fs::write(at, "[[[[").unwrap(), "no valid record"),
    (|at| fs::write(at, r#"{"format": "unisono-trusted", "version": 9}"#).unwrap(), "version 9"),
    (|at| fs::File::create(at).unwrap().set_len(1 << 40).unwrap(), "longer than"),
    (|at| std::os::unix::fs::symlink("/dev/zero", at).unwrap(), "is a link"),
    (|at| std::os::unix::fs::symlink("nowhere", at).unwrap(), "is a link"),
    (
        |at| assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success()),
        "no regular file",
    ),
    (|at| fs::create_dir(at).unwrap(), "no regular file"),
];

#[cfg(unix)]
#[test]
fn a_record_that_is_none_is_named_and_trusts_nothing() {
    for (i, (plant, reason)) in PLANTS.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path(), Options::default().keep(2));
        store.save(1, &contents(1)).unwrap();
        store.trust(1).unwrap();
        let record = dir.path().join("checkpoints/trusted.json");
        fs::remove_file(&record).unwrap();
        plant(&record);
        assert_eq!(trusted(&store), None, "{i}");
        for error in [newest(dir.path()).unwrap_err(), store.newest().unwrap_err(), store.best().unwrap_err()]
        {
            let text = error.to_string();
            assert!(matches!(error, Error::Record { .. }) && text.contains(reason), "{text}");
            assert!(text.contains("suspects of a failed audit") && text.contains("trusted.json: "), "{text}");
        }
        let saved = store.save(2, &contents(2)).unwrap();
        let problem = saved.record_problem.unwrap();
        assert!(problem.path == record && problem.reason.contains(reason), "{problem}");
        assert!(inspect::audited(dir.path()).unwrap().problem.unwrap().reason.contains(reason));
        drop(store);
        let mut store = open(dir.path(), Options::default().keep(2));
        if record.is_dir() {
            assert!(store.trust(2).unwrap_err().may_pass());
            assert_eq!(store.distrust(2).unwrap().len(), 0);
        } else {
            assert_eq!(store.trust(2).unwrap(), Some(2), "{i}");
            assert!(
                fs::symlink_metadata(&record).unwrap().is_file(),
                "{i}: a link is replaced, not followed"
            );
            assert!(!record.with_file_name("nowhere").exists());
            assert_eq!(trusted(&store), Some(2));
            assert_eq!(store.save(3, &contents(3)).unwrap().record_problem, None);
            assert_eq!(newest(dir.path()).unwrap().unwrap().step, 3);
        }
        store.clear().unwrap();
        assert_eq!(names(&dir.path().join("checkpoints")), [""; 0], "{i}");
    }
}

/// The process ends after the record was written and before the renames, and the disk cuts the record short.
#[test]
fn suspects_are_not_found_again_because_the_record_is_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Options::default());
    for step in 1..=3 {
        store.save(step, &contents(step)).unwrap();
    }
    store.distrust(1).unwrap();
    drop(store);
    let checkpoints = dir.path().join("checkpoints");
    let record = checkpoints.join("trusted.json");
    for step in [2, 3] {
        let at = |prefix: &str| checkpoints.join(format!("{prefix}step-0000000{step}"));
        fs::rename(at("suspect-"), at("")).unwrap();
    }
    let text = record_of(1);
    fs::write(&record, &text).unwrap();
    assert_eq!(newest(dir.path()).unwrap().unwrap().step, 1);
    for length in 0..text.len() {
        fs::write(&record, &text[..length]).unwrap();
        assert!(matches!(newest(dir.path()), Err(Error::Record { .. })), "{length}");
    }
    // The error says what to do.
    fs::remove_file(&record).unwrap();
    assert_eq!(newest(dir.path()).unwrap().unwrap().step, 3);
}

/// Returns a record that says that the checkpoints after a step are suspects.
fn record_of(distrusted_after: u64) -> String {
    let zeros = "0".repeat(64);
    let text = format!(
        "{{\n  \"format\": \"unisono-trusted\",\n  \"version\": 1,\n  \"trusted\": [],\n  \"distrusted_after\": \
         {distrusted_after},\n  \"sha256\": \"{zeros}\"\n}}\n"
    );
    let sha256 = <sha2::Sha256 as sha2::Digest>::digest(&text);
    text.replace(&zeros, &sha256.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// An operation on a store, and one on the naive model of it.
#[derive(Debug, Clone)]
enum Act {
    /// Saves the newest step plus this, in one of three versions.
    Save(u64, u64),
    /// Trusts up to the newest step less this.
    Trust(u64),
    /// Distrusts after the newest step less this.
    Distrust(u64),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..3u64, 0..3u64).prop_map(|(by, version)| Act::Save(by, version)),
        3 => (0..6u64).prop_map(Act::Trust),
        1 => (0..6u64).prop_map(Act::Distrust),
        1 => Just(Act::Reopen),
    ]
}

fn version(step: u64, version: u64) -> (Contents, f64) {
    let mut contents = contents(step);
    contents.trainer["version"] = version.into();
    (contents, ((step * 7 + version) % 5) as f64)
}

/// The checkpoints that are there by step and version, those that were trusted, and the suspects' steps.
#[derive(Default)]
struct Naive {
    there: BTreeSet<(u64, u64)>,
    trusted: BTreeSet<(u64, u64)>,
    suspects: BTreeSet<u64>,
}

impl Naive {
    fn newest_trusted(&self) -> Option<(u64, u64)> {
        self.there.intersection(&self.trusted).last().copied()
    }

    fn save(&mut self, new: (u64, u64), options: &Options) {
        self.there.retain(|old| old.0 != new.0);
        self.there.insert(new);
        let mut stays: BTreeSet<(u64, u64)> = self.newest_trusted().into_iter().collect();
        stays.extend(self.there.iter().rev().take(if options.keep == 0 { 99 } else { options.keep }));
        stays.extend(self.there.iter().filter(|one| options.every > 0 && one.0 % options.every == 0));
        if options.best.is_some() {
            let metric = |one: &(u64, u64)| version(one.0, one.1).1;
            stays.extend(self.there.iter().min_by(|a, b| metric(a).total_cmp(&metric(b)).then(a.cmp(b))));
        }
        self.there = stays;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_store_does_what_a_naive_model_does(
        acts in proptest::collection::vec(act(), 1..40), keep in 0..4usize, every in 0..4u64, best in any::<bool>()
    ) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(PowerDisk::new(dir.path()));
        let options = Options::default().keep(keep).every(every).best(best.then_some(Best::Lowest(1)));
        let open = || Store::open_with(dir.path(), options.clone(), disk.clone()).unwrap();
        let (mut store, mut naive) = (open(), Naive::default());
        for act in acts {
            let last = naive.there.last().map_or(0, |last| last.0);
            match act {
                Act::Save(by, of) => {
                    let (contents, metric) = version(last + by, of);
                    store.save_with_metric(last + by, &contents, Some(&metric.into())).unwrap();
                    naive.save((last + by, of), &options);
                }
                Act::Trust(less) => {
                    let upto = last.saturating_sub(less);
                    let Naive { there, trusted, .. } = &mut naive;
                    *trusted = there.iter().filter(|one| one.0 <= upto || trusted.contains(one)).copied().collect();
                    prop_assert_eq!(store.trust(upto).unwrap(), trusted.last().map(|one| one.0));
                }
                Act::Distrust(less) => {
                    let after = last.saturating_sub(less);
                    let later: BTreeSet<u64> = naive.there.iter().map(|one| one.0).filter(|s| *s > after).collect();
                    prop_assert_eq!(store.distrust(after).unwrap().len(), later.len());
                    naive.there.retain(|one| one.0 <= after);
                    naive.trusted.retain(|one| one.0 <= after);
                    if !later.is_empty() {
                        naive.suspects = later;
                    }
                }
                Act::Reopen => {
                    drop(store);
                    store = open();
                }
            }
            let mut there: BTreeSet<String> = disk.list(&dir.path().join("checkpoints")).unwrap().into_iter().collect();
            there.remove("trusted.json");
            let mut expected: BTreeSet<String> = naive.there.iter().map(|one| format!("step-{:08}", one.0)).collect();
            expected.extend(naive.suspects.iter().map(|step| format!("suspect-step-{step:08}")));
            prop_assert_eq!(there, expected);
            prop_assert_eq!(trusted(&store), naive.newest_trusted().map(|one| one.0));
            let found = newest_with(&*disk, dir.path()).unwrap();
            let last = naive.there.last().map(|one| version(one.0, one.1).0);
            prop_assert_eq!(found.map(|found| found.contents), last);
        }
    }
}
