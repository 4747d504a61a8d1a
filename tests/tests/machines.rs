//! Runs on several machines, which are threads here: the same bytes, history and predictions as one machine,
//! and what happens when machines are lost, differ, stop or fail.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use unisono::checkpoint::{Disk, Sink, StdDisk};
use unisono::data::{Loader, Tokens, Width};
use unisono::world::{Fault, Script, threads};
use unisono::{
    AdamW, Assignment, Audits, BatchNorm, Builder, Dense, Embedding, Epoch, Error, History, Lamb, Lstm,
    Observer, Optimizer, Precision, ProgramId, Relu, Sequential, Sgd, Start, Stop, Trainer, World,
};
use unisono_tests::{CLASSES, loader, perceptron};

/// How a run ended: its digest, its history, and what it predicts.
type Ended = (String, History, Vec<f32>);

/// Trains two epochs in this world.
fn train(builder: Builder, world: World, samples: usize) -> Result<Ended, Error> {
    let data = loader(samples, 5)?;
    let mut trainer = builder.world(world).digest_every(3).build(&data.fields()?)?;
    let held_out = loader(20, 6)?;
    trainer.fit(&data, Some(&held_out), 2)?;
    let predicted = trainer.predict(&held_out)?;
    Ok((trainer.state_sha256()?, trainer.history().clone(), predicted))
}

/// Runs a function on each rank, with the rank's world.
fn on_ranks<T: Send>(ranks: usize, script: Script, run: impl Fn(World) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> =
            threads(ranks, script).into_iter().map(|world| scope.spawn(move || run(world))).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn normed() -> Builder {
    let model = Sequential::new().add(Dense::new(9)).add(BatchNorm::new()).add(Relu).add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(Sgd::new(0.05)).seed(3)
}

#[test]
fn any_number_of_machines_gives_the_bytes_of_one() {
    // The last batch is ragged; shards do not divide among the ranks; some ranks have none.
    for (batch, shards) in [(16, 8), (6, 3), (2, 2)] {
        let builder = |replicas| perceptron(16).global_batch(batch).shards(shards).replicas(replicas);
        let alone = train(builder(1), World::alone(), 39).unwrap();
        for (ranks, replicas) in [(2, 1), (3, 2), (4, 1)] {
            let ended = on_ranks(ranks, Script::default(), |world| train(builder(replicas), world, 39));
            for (rank, ended) in ended.into_iter().enumerate() {
                let told = format!(
                    "rank {rank} of {ranks} with {replicas} replicas, batch {batch}, {shards} shards"
                );
                assert_eq!(ended.unwrap(), alone, "{told}");
            }
        }
    }
}

#[test]
fn batch_norm_and_shards_one_after_another_too() {
    let alone = train(normed().global_batch(16), World::alone(), 40).unwrap();
    for ended in on_ranks(3, Script::default(), |world| train(normed().global_batch(16), world, 40)) {
        assert_eq!(ended.unwrap(), alone);
    }
    let few =
        |replicas| perceptron(16).global_batch(16).shards_at_once(1).replicas(replicas).bucket_bytes(256);
    let alone = train(few(1), World::alone(), 40).unwrap();
    for ended in on_ranks(2, Script::default(), |world| train(few(2), world, 40)) {
        assert_eq!(ended.unwrap(), alone);
    }
}

/// Compares two epochs on three ranks with those of one machine.
fn is_the_same_on_three(builder: impl Fn() -> Builder + Sync, data: &Loader) {
    let run = |world: World| {
        let mut trainer = builder().world(world).replicas(1).build(&data.fields().unwrap()).unwrap();
        trainer.fit(data, Some(data), 2).unwrap();
        (trainer.state_sha256().unwrap(), trainer.history().clone())
    };
    let alone = run(World::alone());
    for ended in on_ranks(3, Script::default(), run) {
        assert_eq!(ended, alone);
    }
}

#[test]
fn carries_mixed_precision_lamb_and_clipping_too() {
    let token = |i: usize| ((i * i + i / 5) % 7) as u8;
    let tokens = Tokens::in_memory("text", (0..=54).map(token).collect(), Width::U8, 3).unwrap();
    let text = Loader::new(tokens).lanes().threads(1);
    let lstm = || {
        let model =
            Sequential::new().add(Embedding::new(7, 5)).add(Lstm::new(6).stateful()).add(Dense::new(7));
        Trainer::builder(model).optimizer(AdamW::new(0.01).clip_norm(0.5)).global_batch(4).shards(4)
    };
    is_the_same_on_three(lstm, &text);
    let data = loader(40, 5).unwrap();
    is_the_same_on_three(|| perceptron(8).optimizer(Lamb::new(0.01)).global_batch(16), &data);
    is_the_same_on_three(|| perceptron(8).precision(Precision::Mixed).global_batch(16), &data);
}

#[test]
fn those_that_are_left_go_on_with_the_same_bytes() {
    let builder = || perceptron(16).global_batch(16).replicas(1);
    let alone = train(builder(), World::alone(), 40).unwrap();
    for after in [12, 25, 33, 47, 60] {
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 0, after }] };
        let ended = on_ranks(3, script, |world| train(builder(), world, 40));
        assert!(ended[0].is_err(), "rank 0 is lost after {after} messages");
        for (rank, ended) in ended.into_iter().enumerate().skip(1) {
            assert_eq!(ended.unwrap(), alone, "rank {rank}, rank 0 was lost after {after} messages");
        }
    }
}

/// Keeps what it hears.
#[derive(Clone, Default)]
struct Hears {
    heard: Arc<Mutex<Vec<String>>>,
    everywhere: bool,
}

impl Hears {
    fn push(&self, text: String) {
        self.heard.lock().unwrap().push(text);
    }
}

impl Observer for Hears {
    fn on_all_ranks(&self) -> bool {
        self.everywhere
    }

    fn started(&mut self, start: &Start<'_>) {
        self.push(format!("start with {} epochs", start.history.len()));
    }

    fn epoch(&mut self, epoch: &Epoch) {
        self.push(format!("epoch {}", epoch.epoch));
    }

    fn note(&mut self, text: &str) {
        if text.contains("was lost") {
            self.push(text.to_owned());
        }
    }
}

#[test]
fn the_next_rank_calls_its_observers_where_the_first_is_lost() {
    // Somewhere in the second of three epochs.
    let script = || Script { seed: 1, faults: vec![Fault::Lost { rank: 0, after: 60 }] };
    let run = |script: Script, everywhere: bool| {
        on_ranks(3, script, |world| {
            let hears = Hears { everywhere, ..Hears::default() };
            let data = loader(40, 5).unwrap();
            let builder = perceptron(16).global_batch(16).replicas(1).observer(hears.clone()).world(world);
            let ended = builder.build(&data.fields().unwrap()).unwrap().fit(&data, None, 3).map(drop);
            (ended.is_ok(), std::mem::take(&mut *hears.heard.lock().unwrap()))
        })
    };
    let all = run(script(), false);
    assert_eq!(all.iter().map(|(ended, _)| *ended).collect::<Vec<_>>(), [false, true, true]);
    let [_, (_, next), (_, last)] = &all[..] else { panic!("three ranks") };
    let lost = "rank 0 (thread0) was lost: its thread has ended; the others go on without it";
    assert_eq!(next, &["start with 1 epochs", lost, "epoch 1", "epoch 2"]);
    assert!(last.is_empty(), "{last:?}");
    for (_, heard) in run(Script::default(), true) {
        assert_eq!(heard, ["start with 0 epochs", "epoch 0", "epoch 1", "epoch 2"]);
    }
}

#[test]
fn a_machine_with_another_setting_is_refused_by_name() {
    let ended = on_ranks(3, Script::default(), |world| {
        let batch = if world.rank() == 2 { 64 } else { 128 };
        train(perceptron(8).global_batch(batch).replicas(1), world, 40).map(drop)
    });
    for ended in ended {
        assert_eq!(ended.unwrap_err().to_string(), "rank 2 (thread2): --global-batch 64, rank 0: 128");
    }
    let ended = on_ranks(2, Script::default(), |world| {
        let samples = 40 + world.rank();
        train(perceptron(8).replicas(1), world, samples).map(drop)
    });
    for ended in ended {
        let text = ended.unwrap_err().to_string();
        assert!(text.starts_with("rank 1 (thread1): the fingerprint of the data "), "{text}");
    }
}

#[test]
fn another_way_of_working_together_is_refused_by_name() {
    let ways: [(&str, fn(Builder) -> Builder); 3] = [
        ("--shard-optimizer 2, rank 0: none", |builder| builder.shard_optimizer(2)),
        ("the assignment of shards Even, rank 0: Speed", |builder| builder.assignment(Assignment::Even)),
        ("the interval at which states are compared 7, rank 0: 3", |builder| builder.digest_every(7)),
    ];
    for (wanted, way) in ways {
        let ended = on_ranks(2, Script::default(), |world| {
            let builder = perceptron(8).replicas(1).digest_every(3);
            let builder = if world.rank() == 1 { way(builder) } else { builder };
            builder.world(world).build(&loader(40, 5).unwrap().fields().unwrap()).map(drop)
        });
        for ended in ended {
            assert_eq!(ended.unwrap_err().to_string(), format!("rank 1 (thread1): {wanted}"));
        }
    }
}

#[test]
fn audits_are_refused_by_name() {
    for (audits, is_refused) in [(Audits::Every(3), true), (Audits::Every(0), false), (Audits::Never, false)]
    {
        let ended = on_ranks(2, Script::default(), |world| {
            train(perceptron(8).replicas(1).audits(audits), world, 40).map(drop)
        });
        for ended in ended {
            let text = ended.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(
                text.starts_with("audits: in a run on several machines no step is audited"),
                is_refused
            );
        }
    }
}

/// Each step sends what the formula says for the buckets of the training program.
#[test]
fn the_bytes_sent_are_as_computed() {
    for ranks in [2, 3, 4] {
        let ended = on_ranks(ranks, Script::default(), |world| {
            let data = loader(64, 5).unwrap();
            let builder = perceptron(16).global_batch(16).shards(8).replicas(1).world(world);
            let builder = builder.assignment(Assignment::Even);
            let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, None, 2).unwrap();
            let lens: Vec<usize> =
                trainer.program(ProgramId::Train).buckets().iter().map(|bucket| bucket.len).collect();
            (trainer.report().machines, trainer.steps(), lens)
        });
        let runs = unisono::world::cuts(8, &vec![1; ranks]);
        for (machines, steps, lens) in ended {
            assert!(lens.iter().sum::<usize>() > 100);
            for (place, machine) in machines.iter().enumerate() {
                let of = |len: &usize| unisono::world::bytes_sent(*len, 8, &runs, place);
                let wanted = steps * lens.iter().map(of).sum::<u64>();
                assert_eq!(machine.sent, wanted, "rank {place} of {ranks}, {steps} steps of {lens:?}");
            }
        }
    }
}

#[test]
fn an_error_of_one_machine_ends_the_run_on_all() {
    let ended = on_ranks(2, Script::default(), |world| {
        let adapter = if world.rank() == 1 { "no such adapter" } else { "" };
        train(perceptron(8).adapter(adapter).replicas(1), world, 40).map(drop)
    });
    let own = ended[1].as_ref().unwrap_err().to_string();
    let heard = ended[0].as_ref().unwrap_err().to_string();
    assert!(own.contains("no such adapter"), "{own}");
    assert_eq!(heard, format!("rank 1 (thread1): {own}"));
}

/// Trains for so many epochs with checkpoints in a directory, resumed from what is there. Returns the digest,
/// the step from which the run went on, and whether this rank has written checkpoints.
fn train_on(world: World, dir: &Path, epochs: u32) -> (String, Option<u64>, bool) {
    let (data, rank) = (loader(40, 5).unwrap(), world.rank());
    let builder = perceptron(8).global_batch(16).replicas(1).world(world);
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
    let wanted = train_on(World::alone(), &alone.path().join("run"), 4).0;
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    let ended = on_ranks(3, Script::default(), |world| train_on(world, dir, 1));
    assert_eq!(ended.iter().map(|(_, _, written)| *written).collect::<Vec<_>>(), [true, true, false]);
    // Rank 0 is lost with its disk; another number of ranks goes on.
    std::fs::remove_dir_all(dir).unwrap();
    for (_, resumed, _) in on_ranks(2, Script::default(), |world| train_on(world, dir, 2)) {
        assert_eq!(resumed, Some(3));
    }
    std::fs::remove_dir_all(unisono::dir_of_rank(dir, 1)).unwrap();
    for (digest, resumed, _) in on_ranks(4, Script::default(), |world| train_on(world, dir, 4)) {
        assert_eq!((digest, resumed), (wanted.clone(), Some(6)));
    }
}

#[test]
fn the_machine_that_is_left_of_two_goes_on_alone() {
    let dir = tempfile::tempdir().unwrap();
    // With a slash at the end, as shells complete it.
    let dir = &dir.path().join("run").join("");
    on_ranks(2, Script::default(), |world| train_on(world, dir, 1));
    std::fs::remove_dir_all(dir).unwrap();
    let alone = tempfile::tempdir().unwrap();
    let wanted = train_on(World::alone(), &alone.path().join("run"), 4).0;
    let (digest, resumed, written) = train_on(World::alone(), dir, 4);
    assert_eq!((digest, resumed, written), (wanted, Some(3), true));
    // What is newer in its own directory counts.
    assert_eq!(train_on(World::alone(), dir, 4).1, Some(12));
    // A fresh start is one, whatever lies beside it.
    let mut trainer = perceptron(8).replicas(1).build(&loader(40, 5).unwrap().fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 2).unwrap();
    trainer.clear_checkpoints().unwrap();
    assert_eq!(trainer.resume().unwrap(), None);
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
    let run = |world: World, epochs: u32| {
        let (data, builder) = (loader(40, 5).unwrap(), perceptron(8).global_batch(16).replicas(1));
        let mut trainer = builder.world(world).build(&data.fields().unwrap()).unwrap();
        let disk = Arc::new(Elsewhere(disk.path().to_owned()));
        trainer.save_to(unisono::Saving::new(dir).every(2).on(disk)).unwrap();
        let resumed = trainer.resume().unwrap().map(|resumed| resumed.step);
        trainer.fit(&data, None, epochs).unwrap();
        resumed
    };
    on_ranks(3, Script::default(), |world| run(world, 1));
    // The third rank has written nothing, and the first one's directory is lost.
    std::fs::remove_dir_all(&on_disk).unwrap();
    assert_eq!(on_ranks(3, Script::default(), |world| run(world, 2)), [Some(3); 3]);
    std::fs::remove_dir_all(&on_disk).unwrap();
    assert_eq!(run(World::alone(), 2), Some(6));
}

#[test]
fn all_machines_load_the_best_that_any_has() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    let run = |world: World, epochs: u32| {
        let (data, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
        let builder = perceptron(8).optimizer(Sgd::new(0.5)).global_batch(16).replicas(1).world(world);
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
    let first = is_the_best(on_ranks(3, Script::default(), |world| run(world, 4)));
    // The first rank has then seen the later epochs alone, and has another best.
    std::fs::remove_dir_all(dir).unwrap();
    let second = is_the_best(on_ranks(3, Script::default(), |world| run(world, 6)));
    assert_eq!(second, first);
    let kept = |rank| unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).unwrap();
    assert!(kept(0).iter().all(|(step, _)| *step > first), "{:?}", kept(0));
}

#[test]
fn a_directory_without_a_name_is_refused_on_several_machines() {
    for ended in on_ranks(2, Script::default(), |world| {
        let data = loader(40, 5).unwrap();
        let mut trainer = perceptron(8).replicas(1).world(world).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(Path::new("/"), 2).unwrap_err().to_string()
    }) {
        assert!(ended.starts_with("checkpoints: / has no name "), "{ended}");
    }
}

/// What a run alone sets aside does not come back from a directory of another rank.
#[test]
fn suspects_beside_the_runs_directory_are_set_aside_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    on_ranks(2, Script::default(), |world| train_on(world, dir, 1));
    let rank1 = unisono::dir_of_rank(dir, 1);
    let steps = |dir: &Path| {
        unisono::checkpoint::list(dir).unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>()
    };
    assert_eq!((steps(dir), steps(&rank1)), (vec![3, 2], vec![3, 2]));
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
    assert_eq!((steps(dir), steps(&rank1)), (vec![3, 2], vec![]));
}

#[test]
fn a_rank_that_cannot_save_ends_the_run_on_all_where_saves_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let ended = on_ranks(2, Script::default(), |world| {
        let (data, rank) = (loader(40, 5).unwrap(), world.rank());
        let builder = perceptron(8).global_batch(16).replicas(1).world(world);
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

#[test]
fn eight_thousand_shards() {
    let shards = |world| {
        let data = loader(8192, 5).unwrap();
        let builder = perceptron(4).global_batch(8192).shards(8192).replicas(1).world(world);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        trainer.state_sha256().unwrap()
    };
    let alone = shards(World::alone());
    for ended in on_ranks(3, Script::default(), shards) {
        assert_eq!(ended, alone);
    }
}

#[test]
fn a_replica_that_is_lost_concerns_its_machine_alone() {
    let builder = || perceptron(16).global_batch(16).replicas(2).fault_scope("machines lost:");
    let wanted = train(perceptron(16).global_batch(16).replicas(1), World::alone(), 40).unwrap();
    for point in ["step-1", "step-3", "step-6:segment-1"] {
        let name = format!("rank-1:machines lost:replica-1:{point}");
        fail::cfg(&name, "return(lose)").unwrap();
        let ended = on_ranks(3, Script::default(), |world| {
            let (rank, data) = (world.rank(), loader(40, 5).unwrap());
            let mut trainer = builder().world(world).digest_every(3).build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, Some(&loader(20, 6).unwrap()), 2).unwrap();
            let left = trainer.reports().iter().filter(|report| report.left.is_some()).count();
            assert_eq!(left, usize::from(rank == 1), "rank {rank}");
            let machines = trainer.report().machines;
            assert_eq!(machines.iter().map(|machine| machine.rank).collect::<Vec<_>>(), [0, 1, 2]);
            (trainer.state_sha256().unwrap(), trainer.history().clone())
        });
        fail::remove(&name);
        assert!(ended.iter().all(|end| *end == (wanted.0.clone(), wanted.1.clone())), "{point}");
    }
}

#[test]
fn a_slow_machine_gets_fewer_shards() {
    let builder = || perceptron(16).global_batch(64).shards(16).replicas(1).fault_scope("machines slow:");
    let data = || loader(640, 5).unwrap();
    let run = |world: World| {
        let mut trainer = builder().world(world).build(&data().fields().unwrap()).unwrap();
        trainer.fit(&data(), None, 8).unwrap();
        (trainer.state_sha256().unwrap(), trainer.report())
    };
    let wanted = run(World::alone()).0;
    // A sample takes three milliseconds on rank 1, and far less on the others.
    let name = "rank-1:machines slow:replica-0";
    fail::cfg(name, "return(sample:3000)").unwrap();
    let ended = on_ranks(3, Script::default(), run);
    fail::remove(name);
    assert!(ended.iter().all(|(digest, _)| *digest == wanted));
    let report = &ended[0].1;
    let shards: Vec<u64> = report.machines.iter().map(|machine| machine.shards).collect();
    assert!(2 * shards[1] < shards[0] + shards[2], "shards by speed: {shards:?}");
}

#[test]
fn a_machine_with_another_state_is_named_on_all() {
    let name = "rank-1:machines differ:replica-0:step-6:segment-1";
    fail::cfg(name, "return(state:0)").unwrap();
    let ended = on_ranks(3, Script::default(), |world| {
        let builder = perceptron(16).global_batch(16).replicas(1).fault_scope("machines differ:");
        train(builder.digest_every(1), world, 40).unwrap_err().to_string()
    });
    fail::remove(name);
    for text in &ended {
        assert!(text.contains("rank 0 (thread0), rank 2 (thread2) has "), "{text}");
        assert!(text.contains("rank 1 (thread1) has "), "{text}");
    }
}

#[test]
fn a_stop_on_one_machine_ends_all_after_the_same_step() {
    let ended = on_ranks(3, Script::default(), |world| {
        let (rank, data) = (world.rank(), loader(40, 5).unwrap());
        let stop = Stop::new();
        let asks = (rank == 1).then(|| stop.clone());
        let builder = perceptron(8).global_batch(16).replicas(1).callback(StopsAfter { step: 4, asks });
        let mut trainer = builder.world(world).build(&data.fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        trainer.fit(&data, None, 5).unwrap();
        (trainer.steps(), trainer.state_sha256().unwrap())
    });
    assert_eq!(ended[0].0, 5);
    assert!(ended.iter().all(|end| *end == ended[0]), "{ended:?}");
}

#[test]
fn a_stop_that_is_taken_back_lets_all_machines_go_on() {
    let wanted = train(perceptron(8).global_batch(16).replicas(1), World::alone(), 40).unwrap().0;
    let ended = on_ranks(2, Script::default(), |world| {
        let (rank, data, stop) = (world.rank(), loader(40, 5).unwrap(), Stop::new());
        let asks = (rank == 1).then(|| stop.clone());
        let builder = perceptron(8).global_batch(16).replicas(1).callback(StopsAfter { step: 1, asks });
        let mut trainer = builder.world(world).build(&data.fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        trainer.fit(&data, None, 2).unwrap();
        assert_eq!(trainer.steps(), 2);
        // It is still asked: predictions run to their end, fits do nothing.
        assert_eq!(trainer.predict(&data).unwrap().len(), 40 * CLASSES);
        trainer.fit(&data, None, 2).unwrap();
        assert_eq!(trainer.steps(), 2);
        stop.reset();
        trainer.evaluate(&data).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        trainer.state_sha256().unwrap()
    });
    assert_eq!(ended, [wanted.clone(), wanted]);
}

/// Takes its time when a fit begins.
struct Late(std::time::Duration);

impl unisono::Callback for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn fit_begins(&mut self, _: &mut unisono::Control<'_>) -> Result<(), Error> {
        std::thread::sleep(self.0);
        Ok(())
    }
}

#[test]
fn a_callback_that_looks_at_a_clock_ends_the_fit_on_all_machines_after_the_same_step() {
    let milliseconds = std::time::Duration::from_millis;
    let ended = on_ranks(3, Script::default(), |world| {
        // The clock of rank 1 begins later.
        let late = Late(milliseconds(if world.rank() == 1 { 200 } else { 0 }));
        let pause = unisono::PauseAfter::time(milliseconds(100));
        let builder = perceptron(8).global_batch(16).replicas(1).callback(late).callback(pause);
        let data = loader(40, 5).unwrap();
        let mut trainer = builder.world(world).build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 100_000).unwrap();
        (trainer.steps(), trainer.state_sha256().unwrap())
    });
    assert!(ended[0].0 > 0 && ended.iter().all(|end| *end == ended[0]), "{ended:?}");
}

/// Ends the run, or pauses it, on one machine alone.
struct Ends {
    at: Option<u64>,
    pauses: bool,
}

impl Ends {
    fn now(&self, step: u64, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        match (self.at == Some(step), self.pauses) {
            (true, true) => run.pause("it is late"),
            (true, false) => run.stop("it is late"),
            _ => {}
        }
        Ok(())
    }
}

impl unisono::Callback for Ends {
    fn name(&self) -> &str {
        "ends"
    }

    fn fit_begins(&mut self, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(0, run)
    }

    fn step_ended(&mut self, step: &unisono::Step, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(step.step + 1, run)
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(1000 + u64::from(epoch.epoch), run)
    }
}

#[test]
fn a_callback_on_one_machine_ends_the_fit_on_all() {
    // Before the first step, after one, at the end of an epoch, at the end of the last.
    for (at, steps) in [(0, 0), (4, 4), (1000, 3), (1001, 6)] {
        for pauses in [true, false] {
            let ended = on_ranks(2, Script::default(), |world| {
                let at = (world.rank() == 1).then_some(at);
                let builder = perceptron(8).global_batch(16).replicas(1).callback(Ends { at, pauses });
                let data = loader(40, 5).unwrap();
                let mut trainer = builder.world(world).build(&data.fields().unwrap()).unwrap();
                trainer.fit(&data, None, 2).unwrap();
                let why = trainer.stopped().map(|stopped| (stopped.steps, stopped.reason.clone()));
                (trainer.steps(), why)
            });
            let why = (!pauses).then(|| (steps, "it is late".to_owned()));
            assert_eq!(ended, [(steps, why.clone()), (steps, why)], "at {at}");
        }
    }
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
    let ended = on_ranks(2, Script::default(), |world| {
        let replicas = if world.rank() == 0 { 3 } else { 1 };
        let builder = builder(99).replicas(replicas).digest_every(1).fault_scope("goes back:");
        let mut trainer = builder.world(world).build(&data().fields().unwrap()).unwrap();
        trainer.checkpoints(dir, 1).unwrap();
        assert_eq!(trainer.resume().unwrap().map(|resumed| resumed.step), Some(5));
        trainer.fit(&data(), None, 3).unwrap_err().to_string()
    });
    fail::remove(name);
    assert!(ended[0].contains("does not go back by itself: resume it"), "{ended:?}");
    assert!(ended[1].starts_with("rank 0 (thread0): ") && ended[1].contains("replica 1"), "{ended:?}");
    assert_eq!((record(), listed()), (trusted, before));
}

/// Asks a stop when a step is done.
struct StopsAfter {
    step: u64,
    asks: Option<Stop>,
}

impl unisono::Callback for StopsAfter {
    fn name(&self) -> &str {
        "stops after"
    }

    fn step_ended(&mut self, step: &unisono::Step, _: &mut unisono::Control<'_>) -> Result<(), Error> {
        if step.step == self.step {
            self.asks.iter().for_each(|stop| _ = stop.ask());
        }
        Ok(())
    }
}
