//! Checkpoints of several machines: where they are, which one a resume takes, and which are not taken.

use std::io;
use std::path::Path;
use std::sync::Arc;

use unisono::checkpoint::{Disk, Sink, StdDisk};
use unisono::cluster::Script;
use unisono::{Audits, Cluster, Error, History, Sgd};
use unisono_tests::{loader, perceptron};

use crate::on_ranks;

#[allow(dead_code, reason = "the tests of checkpoints, which share this file, use the rest")]
#[path = "../../../crates/checkpoint/tests/all/common/faulty.rs"]
mod faulty;
use faulty::{Faulty, Then};

/// Trains for so many epochs with checkpoints in a directory, resumed from what is there. Returns the digest,
/// the step from which the run went on, and whether this rank has written checkpoints.
fn train_on(cluster: Cluster, dir: &Path, epochs: u32) -> (String, Option<u64>, bool) {
    let (data, rank) = (loader(40, 5).unwrap(), cluster.rank());
    let builder = perceptron(8).global_batch(16).replicas(1).cluster(cluster);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 2).unwrap();
    let resumed = trainer.resume().unwrap().map(|resumed| resumed.step);
    trainer.fit(&data, None, epochs).unwrap();
    let steps = trainer.steps();
    let written = unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).unwrap();
    (trainer.state_sha256().unwrap(), resumed, written.iter().any(|(step, _)| *step == steps))
}

#[test]
fn two_ranks_write_checkpoints_and_a_resume_takes_the_newest_that_any_has() {
    let alone = tempfile::tempdir().unwrap();
    let wanted = train_on(Cluster::alone(), &alone.path().join("run"), 4).0;
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    let ended = on_ranks(3, Script::default(), |cluster| train_on(cluster, dir, 1));
    assert_eq!(ended.iter().map(|(_, _, written)| *written).collect::<Vec<_>>(), [true, true, false]);
    // Rank 0 is lost with its disk; another number of ranks goes on.
    std::fs::remove_dir_all(dir).unwrap();
    for (_, resumed, _) in on_ranks(2, Script::default(), |cluster| train_on(cluster, dir, 2)) {
        assert_eq!(resumed, Some(3));
    }
    std::fs::remove_dir_all(unisono::dir_of_rank(dir, 1)).unwrap();
    for (digest, resumed, _) in on_ranks(4, Script::default(), |cluster| train_on(cluster, dir, 4)) {
        assert_eq!((digest, resumed), (wanted.clone(), Some(6)));
    }
}

#[test]
fn the_machine_that_is_left_of_two_goes_on_alone() {
    let dir = tempfile::tempdir().unwrap();
    // With a slash at the end, as shells complete it.
    let dir = &dir.path().join("run").join("");
    on_ranks(2, Script::default(), |cluster| train_on(cluster, dir, 1));
    std::fs::remove_dir_all(dir).unwrap();
    let alone = tempfile::tempdir().unwrap();
    let wanted = train_on(Cluster::alone(), &alone.path().join("run"), 4).0;
    let (digest, resumed, written) = train_on(Cluster::alone(), dir, 4);
    assert_eq!((digest, resumed, written), (wanted, Some(3), true));
    // What is newer in its own directory counts.
    assert_eq!(train_on(Cluster::alone(), dir, 4).1, Some(12));
    // A fresh start is one, whatever lies beside it.
    let mut trainer = perceptron(8).replicas(1).build(&loader(40, 5).unwrap().fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 2).unwrap();
    trainer.clear_checkpoints().unwrap();
    assert_eq!(trainer.resume().unwrap(), None);
}

/// The newest of what is beside a run's directory is copied into it, or what was there before stays.
#[test]
fn a_disk_that_fails_while_a_checkpoint_is_copied_leaves_the_one_before() {
    let template = tempfile::tempdir().unwrap();
    let run = template.path().join("run");
    // The last step of a fit is saved in any case. A slow disk may leave out others.
    for epochs in [1, 2] {
        on_ranks(2, Script::default(), |cluster| train_on(cluster, &run, epochs));
    }
    // The run has lost its newest checkpoints, and rank 1 has them.
    for step in 4..=6 {
        let _ = std::fs::remove_dir_all(run.join(format!("checkpoints/step-{step:08}")));
    }
    let before = unisono::checkpoint::list(&run).unwrap().first().map(|(step, _)| *step);
    assert_eq!(before, Some(3));
    let copy = |from: &Path, to: &Path| {
        let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap();
        assert!(copied.success());
    };
    let mut copied = 0;
    for (fault, then) in (0..).flat_map(|fault| [(fault, Then::Dies), (fault, Then::GoesOn)]) {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("run");
        copy(&run, &own);
        copy(&unisono::dir_of_rank(&run, 1), &unisono::dir_of_rank(&own, 1));
        let disk = Arc::new(Faulty::new(fault, then));
        let fields = loader(40, 5).unwrap().fields().unwrap();
        let mut trainer = perceptron(8).global_batch(16).replicas(1).build(&fields).unwrap();
        let opened = trainer.save_to(unisono::Saving::new(&own).on(disk.clone()));
        let resumed = opened.and_then(|_| trainer.resume()).map(|resumed| resumed.unwrap().step);
        drop(trainer);
        let newest = || unisono::checkpoint::newest(&own).unwrap().unwrap();
        assert!([before, Some(6)].contains(&Some(newest().step)), "fault {fault}");
        copied += usize::from(newest().step == 6);
        drop(unisono::checkpoint::Store::open(&own).unwrap());
        assert!([before, Some(6)].contains(&Some(newest().step)) && newest().skipped.is_empty());
        let left = std::fs::read_dir(own.join("checkpoints")).unwrap();
        for name in left.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
            assert!(name.starts_with("step-"), "fault {fault}: {name}");
        }
        if disk.done() <= fault {
            assert_eq!(resumed.unwrap(), 6);
            assert!(copied > 2 && fault > 20, "{copied} of {fault}");
            return;
        }
    }
}

/// A fresh start on several machines is one, whatever an earlier run has left on any of them.
#[test]
fn checkpoints_of_other_ranks_on_a_machine_are_removed_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    on_ranks(3, Script::default(), |cluster| train_on(cluster, dir, 1));
    // Each rank has a copy.
    on_ranks(3, Script::default(), |cluster| train_on(cluster, dir, 2));
    let has = |rank: usize| !unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).unwrap().is_empty();
    assert!((0..3).all(has));
    let anew = |cluster: Cluster| {
        let builder = perceptron(8).global_batch(16).replicas(1).cluster(cluster);
        let mut trainer = builder.build(&loader(40, 5).unwrap().fields().unwrap()).unwrap();
        trainer.checkpoints(dir, 2).unwrap();
        trainer.clear_checkpoints().unwrap();
        trainer.resume().unwrap().map(|resumed| resumed.step)
    };
    assert_eq!(on_ranks(2, Script::default(), anew), [None, None]);
    assert!(!(0..3).any(has));
}

/// A disk may be mended: that a checkpoint beside the run's cannot be taken is no refusal.
#[test]
fn a_disk_that_fails_is_no_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    on_ranks(2, Script::default(), |cluster| train_on(cluster, dir, 1));
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::write(dir, "in the way").unwrap();
    let error = unisono::share_newest(&Cluster::alone(), dir).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)) && !error.is_refusal(), "{error}");
    assert!(error.to_string().starts_with(&dir.display().to_string()), "{error}");
}

/// What cannot be told from a suspect is handed to nobody, and all ranks say so.
#[test]
fn a_record_of_trust_that_cannot_be_read_is_an_error_of_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    on_ranks(2, Script::default(), |cluster| train_on(cluster, dir, 1));
    let record = unisono::dir_of_rank(dir, 1).join("checkpoints/trusted.json");
    std::fs::write(&record, "{").unwrap();
    let resumed = |cluster: Cluster| {
        let builder = perceptron(8).global_batch(16).replicas(1).cluster(cluster);
        let mut trainer = builder.build(&loader(40, 5).unwrap().fields().unwrap()).unwrap();
        trainer.checkpoints(dir, 2).unwrap();
        trainer.resume().map(|resumed| resumed.unwrap().step).map_err(|error| error.to_string())
    };
    for error in on_ranks(2, Script::default(), resumed).into_iter().chain([resumed(Cluster::alone())]) {
        let error = error.unwrap_err();
        assert!(error.contains("trusted.json: ") && error.contains("suspects"), "{error}");
    }
    std::fs::remove_file(&record).unwrap();
    assert_eq!(on_ranks(2, Script::default(), resumed), [Ok(3), Ok(3)]);
}

/// A disk of its own, which keeps all paths below a directory of the machine's. Only the files that lock runs
/// are where their paths say.
#[derive(Debug)]
struct Elsewhere(std::path::PathBuf);

impl Elsewhere {
    fn at(&self, path: &Path) -> std::path::PathBuf {
        self.0.join(path.strip_prefix("/").unwrap())
    }
}

impl Disk for Elsewhere {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        StdDisk.create_dir(&self.at(dir))
    }
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        StdDisk.create(&self.at(file))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        StdDisk.sync_dir(&self.at(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdDisk.rename(&self.at(from), &self.at(to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        StdDisk.remove(&self.at(path))
    }
    fn is_dir(&self, path: &Path) -> bool {
        StdDisk.is_dir(&self.at(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        StdDisk.list(&self.at(dir))
    }
    fn size(&self, file: &Path) -> io::Result<u64> {
        StdDisk.size(&self.at(file))
    }
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        StdDisk.read(&self.at(file))
    }
}

#[test]
fn a_resume_takes_the_newest_of_a_disk_of_its_own() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = &dir.path().join("run");
    let on_disk = Elsewhere(disk.path().to_owned()).at(dir);
    (0..3).for_each(|rank| std::fs::create_dir(unisono::dir_of_rank(dir, rank)).unwrap());
    let run = |cluster: Cluster, epochs: u32| {
        let (data, builder) = (loader(40, 5).unwrap(), perceptron(8).global_batch(16).replicas(1));
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        let disk = Arc::new(Elsewhere(disk.path().to_owned()));
        trainer.save_to(unisono::Saving::new(dir).every(2).on(disk)).unwrap();
        let resumed = trainer.resume().unwrap().map(|resumed| resumed.step);
        trainer.fit(&data, None, epochs).unwrap();
        resumed
    };
    on_ranks(3, Script::default(), |cluster| run(cluster, 1));
    // The third rank has written nothing, and the first one's directory is lost.
    std::fs::remove_dir_all(&on_disk).unwrap();
    assert_eq!(on_ranks(3, Script::default(), |cluster| run(cluster, 2)), [Some(3); 3]);
    std::fs::remove_dir_all(&on_disk).unwrap();
    assert_eq!(run(Cluster::alone(), 2), Some(6));
}

#[test]
fn all_machines_load_the_best_that_any_has() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    let run = |cluster: Cluster, epochs: u32| {
        let (data, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
        let builder = perceptron(8).optimizer(Sgd::new(0.5)).global_batch(16).replicas(1).cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        let best = unisono::BestBy::Lowest("loss".into());
        trainer.save_to(unisono::Saving::new(dir).keep_last(1).keep_best(best)).unwrap();
        trainer.resume().unwrap();
        trainer.fit(&data, Some(&held_out), epochs).unwrap();
        // From here on the epochs are worse.
        trainer.set_tensor("3.bias", &[1000.0, 0.0, 0.0]).unwrap();
        trainer.fit(&data, Some(&held_out), epochs + 1).unwrap();
        let best = trainer.load_best().unwrap();
        (best, trainer.evaluate(&held_out).unwrap().loss, trainer.history().clone())
    };
    let is_the_best = |ended: Vec<(u64, f64, History)>| {
        assert!(ended.iter().all(|end| *end == ended[0]));
        let (step, loss, history) = &ended[0];
        let losses = history.iter().map(|epoch| (epoch.validation.as_ref().unwrap().loss, epoch.steps));
        assert_eq!(losses.min_by(|a, b| a.0.total_cmp(&b.0)), Some((*loss, *step)));
        *step
    };
    // The third rank has no checkpoints of its own.
    let first = is_the_best(on_ranks(3, Script::default(), |cluster| run(cluster, 4)));
    // The first rank has then seen the later epochs alone, and has another best.
    std::fs::remove_dir_all(dir).unwrap();
    let second = is_the_best(on_ranks(3, Script::default(), |cluster| run(cluster, 6)));
    assert_eq!(second, first);
    let kept = |rank| unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).unwrap();
    assert!(kept(0).iter().all(|(step, _)| *step > first), "{:?}", kept(0));
}

#[test]
fn a_directory_without_a_name_is_refused_on_several_machines() {
    for ended in on_ranks(2, Script::default(), |cluster| {
        let data = loader(40, 5).unwrap();
        let mut trainer = perceptron(8).replicas(1).cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(Path::new("/"), 2).unwrap_err().to_string()
    }) {
        assert!(ended.starts_with("checkpoints: / has no name, "), "{ended}");
    }
}

/// What a run alone sets aside does not come back from a directory of another rank.
#[test]
fn suspects_beside_the_runs_directory_are_set_aside_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    on_ranks(2, Script::default(), |cluster| train_on(cluster, dir, 1));
    let rank1 = unisono::dir_of_rank(dir, 1);
    let steps = |dir: &Path| {
        unisono::checkpoint::list(dir).unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>()
    };
    // A slow disk may leave out all but the last.
    assert_eq!([dir, &rank1].map(|dir| steps(dir).first().copied()), [Some(3); 2]);
    // The run begins anew and goes back to its start.
    std::fs::remove_dir_all(dir).unwrap();
    let name = "suspects beside:replica-0:step-1:segment-1";
    fail::cfg(name, "1*return(state:0)").unwrap();
    let data = loader(40, 5).unwrap();
    let builder = perceptron(8).global_batch(16).replicas(3).fault_scope("suspects beside:").digest_every(1);
    let mut trainer = builder.audits(Audits::Every(1000)).build(&data.fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 2).unwrap();
    trainer.fit(&data, None, 1).unwrap();
    fail::remove(name);
    assert_eq!((steps(dir).first(), steps(&rank1)), (Some(&3), vec![]));
}

#[test]
fn a_rank_that_cannot_save_ends_the_run_on_all_where_saves_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (data, rank) = (loader(40, 5).unwrap(), cluster.rank());
        let builder = perceptron(8).global_batch(16).replicas(1).cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        let own = dir.path().join("run");
        trainer.save_to(unisono::Saving::new(&own).every(1).require()).unwrap();
        if rank == 0 {
            std::fs::remove_dir_all(&own).unwrap();
            std::fs::write(&own, "in the way").unwrap();
        }
        trainer.fit(&data, None, 3).map(drop).unwrap_err().to_string()
    });
    assert!(ended[0].starts_with("rank 0 (thread0): "), "{ended:?}");
    assert_eq!(ended[0], ended[1], "the same message on all");
}

/// Fails once after a step, as data may.
struct FailsAfter(u64);

impl unisono::Callback for FailsAfter {
    fn name(&self) -> &str {
        "fails after"
    }

    fn influence(&self) -> unisono::Influence {
        unisono::Influence::None
    }

    fn step_ended(&mut self, step: &unisono::Step, _: &mut unisono::Control<'_>) -> Result<(), Error> {
        if step.step == self.0 { Err(unisono::data::DataError::other("enough").into()) } else { Ok(()) }
    }
}

/// A run alone leaves checkpoints of which the newest is not trusted. Several machines go on from it.
#[test]
fn no_machine_goes_back_to_a_trusted_checkpoint_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    let data = || loader(40, 5).unwrap();
    let builder = |step: u64| perceptron(8).global_batch(16).callback(FailsAfter(step));
    let alone = builder(4).replicas(2).audits(Audits::Every(2));
    let mut alone = alone.build(&data().fields().unwrap()).unwrap();
    alone.checkpoints(dir, 1).unwrap();
    alone.fit(&data(), None, 1).unwrap();
    alone.fit(&data(), None, 3).unwrap_err();
    drop(alone);
    let record = || std::fs::read_to_string(dir.join("checkpoints/trusted.json")).unwrap();
    let listed = || unisono::checkpoint::list(dir).unwrap();
    let (trusted, before) = (record(), listed());
    assert_eq!(before[0].0, 5);
    let name = "rank-0:goes back:replica-1:step-0:segment-1";
    fail::cfg(name, "return(state:0)").unwrap();
    let ended = on_ranks(2, Script::default(), |cluster| {
        let replicas = if cluster.rank() == 0 { 3 } else { 1 };
        let builder = builder(99).replicas(replicas).digest_every(1).fault_scope("goes back:");
        let mut trainer = builder.cluster(cluster).build(&data().fields().unwrap()).unwrap();
        trainer.checkpoints(dir, 1).unwrap();
        assert_eq!(trainer.resume().unwrap().map(|resumed| resumed.step), Some(5));
        trainer.fit(&data(), None, 3).unwrap_err().to_string()
    });
    fail::remove(name);
    assert!(ended[0].contains("does not go back by itself: resume it"), "{ended:?}");
    assert!(ended[1].starts_with("rank 0 (thread0): ") && ended[1].contains("replica 1"), "{ended:?}");
    assert_eq!((record(), listed()), (trusted, before));
}
