//! What each of several machines reads of the data: its share of every batch, and its part of the hashes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unisono::cluster::{Fault, Script};
use unisono::data::{ContentHash, Coverage, DataError, Field, FieldDType, FieldSpec, Loader, Sample, Source};
use unisono::{Accuracy, Cluster, Dense, Error, History, Relu, Sequential, Sgd, Stop, Trainer, WEIGHT};
use unisono_tests::on_ranks;

const SAMPLES: u64 = 3000;
const BATCH: usize = 64;
const SHARDS: usize = 16;

/// Samples that are computed. It counts those that are fetched, and those that are hashed.
#[derive(Default)]
struct Counted {
    fields: Vec<FieldSpec>,
    fetched: AtomicU64,
    hashed: AtomicU64,
    /// The sample that is another one on this machine.
    other: Option<u64>,
    /// The sample that cannot be fetched on this machine.
    broken: Option<u64>,
    /// Whether samples have weights.
    weights: bool,
    /// Whether it takes a millisecond to hash a sample.
    slow: bool,
}

impl Counted {
    fn new() -> Self {
        let field = |name: &str, dtype, shape| FieldSpec { name: name.into(), dtype, shape };
        let fields = vec![field("x", FieldDType::F32, vec![6]), field("y", FieldDType::I32, vec![])];
        Self { fields, ..Self::default() }
    }

    fn weighted() -> Self {
        let mut own = Self { weights: true, ..Self::new() };
        own.fields.push(FieldSpec { name: WEIGHT.into(), dtype: FieldDType::F32, shape: vec![] });
        own
    }

    fn sample(&self, index: u64) -> Sample {
        let shift = f32::from(u8::from(self.other == Some(index)));
        let class = (index * 7 % 3) as i32;
        let value = |at: u64| ((index * 31 + at * 17) % 23) as f32 / 23.0 + 0.3 * class as f32 + shift;
        let sample = Sample::new().with("x", Field::f32([6], (0..6).map(value).collect::<Vec<_>>()));
        let sample = sample.with("y", Field::i32([], vec![class]));
        match self.weights {
            true => sample.with(WEIGHT, Field::f32([], vec![0.5 + (index % 5) as f32])),
            false => sample,
        }
    }
}

impl Source for Counted {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        if self.broken == Some(index) {
            return Err(DataError::other("the disk is gone"));
        }
        Ok(self.sample(index))
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.hashed.fetch_add(samples.end - samples.start, Ordering::Relaxed);
        for index in samples {
            std::thread::sleep(std::time::Duration::from_millis(u64::from(self.slow)));
            hash.sample(&self.sample(index));
        }
        Ok(())
    }
}

/// How a run ended: its digest, its history, and what it predicts.
type Ended = (String, History, Vec<f32>);

/// Trains an epoch and a bit of evaluation on a source.
fn train(source: &Arc<Counted>, cluster: Cluster) -> Result<Ended, Error> {
    let data = Loader::new(Arc::clone(source)).shuffle(4).threads(1).limit_batches(12);
    let held_out = Loader::new(Arc::clone(source)).threads(1).limit_batches(3);
    let model = Sequential::new().add(Dense::new(8)).add(Relu).add(Dense::new(3));
    let builder = Trainer::builder(model).optimizer(Sgd::new(0.1)).metric(Accuracy).seed(3).replicas(1);
    let builder = builder.global_batch(BATCH).shards(SHARDS).cluster(cluster);
    let mut trainer = builder.build(&data.fields()?)?;
    trainer.fit(&data, Some(&held_out), 2)?;
    let predicted = trainer.predict(&held_out)?;
    Ok((trainer.state_sha256()?, trainer.history().clone(), predicted))
}

#[test]
fn a_rank_fetches_its_share_and_hashes_its_part() {
    let source = Arc::new(Counted::new());
    let alone = train(&source, Cluster::alone()).unwrap();
    // Two epochs of 12 batches and 3 of the evaluation each, and 3 that are predicted.
    let steps = 2 * 15 + 3;
    assert_eq!(source.fetched.load(Ordering::Relaxed), (steps * BATCH) as u64);
    for ranks in [2, 3, 4] {
        let ended = on_ranks(ranks, Script::default(), |cluster| {
            let source = Arc::new(Counted::new());
            let ended = train(&source, cluster).unwrap();
            let counts = [&source.fetched, &source.hashed].map(|count| count.load(Ordering::Relaxed));
            (ended, counts)
        });
        // A share is the batch by the ranks, and one shard more at most.
        let most = (steps * (BATCH.div_ceil(ranks) + BATCH / SHARDS)) as u64;
        let mut all = 0;
        for (rank, (ended, [fetched, hashed])) in ended.into_iter().enumerate() {
            assert_eq!(ended, alone, "rank {rank} of {ranks}");
            assert!(fetched <= most, "rank {rank} of {ranks} fetched {fetched} samples, at most {most}");
            // The data are trained on and held out, in two loaders, and machines compare both.
            let part = 2 * (2 * SAMPLES / ranks as u64 + 17 * 4 + 8);
            assert!(hashed <= part, "rank {rank} of {ranks} hashed {hashed} samples of {part}");
            all += fetched;
        }
        assert!(all >= (steps * BATCH) as u64);
    }
}

#[test]
fn weights_of_samples_reach_the_metrics_of_all() {
    let alone = train(&Arc::new(Counted::weighted()), Cluster::alone()).unwrap();
    for ended in on_ranks(3, Script::default(), |cluster| train(&Arc::new(Counted::weighted()), cluster)) {
        assert_eq!(ended.unwrap(), alone);
    }
}

#[test]
fn the_rows_of_a_lost_rank_are_fetched_by_those_that_are_left() {
    let alone = train(&Arc::new(Counted::weighted()), Cluster::alone()).unwrap();
    for after in [30, 41, 56, 83, 120, 151] {
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 1, after }] };
        let ended = on_ranks(3, script, |cluster| train(&Arc::new(Counted::weighted()), cluster));
        assert!(ended[1].is_err(), "rank 1 is lost after {after} messages");
        for rank in [0, 2] {
            assert_eq!(ended[rank].as_ref().unwrap(), &alone, "rank {rank}, lost after {after} messages");
        }
    }
}

#[test]
fn other_data_on_a_machine_are_refused_by_name() {
    // Each block of the data is hashed by two ranks at least: one of them is rank 1 or rank 2.
    for sample in [0, 1234, SAMPLES - 1] {
        let ended = on_ranks(2, Script::default(), |cluster| {
            let other = (cluster.rank() == 1).then_some(sample);
            train(&Arc::new(Counted { other, ..Counted::new() }), cluster).map(drop)
        });
        let block = sample / 4;
        for ended in ended {
            let text = ended.unwrap_err().to_string();
            let wanted = format!("rank 1 (thread1): the hash of the data's block {block} of 750 ");
            assert!(text.starts_with(&wanted), "{text}");
        }
    }
}

/// Both ranks that were to hash a block are lost before they have sent its hash.
#[test]
fn the_blocks_of_lost_ranks_are_hashed_by_those_that_are_left() {
    let alone = train(&Arc::new(Counted::new()), Cluster::alone()).unwrap();
    // They are lost between the first messages of a fit: each gather takes four.
    for after in (8..40).step_by(2) {
        let faults = [3, 4].map(|rank| Fault::Lost { rank, after });
        let script = Script { seed: after as u64, faults: faults.to_vec() };
        let ended = on_ranks(5, script, |cluster| train(&Arc::new(Counted::new()), cluster));
        assert!(ended[3].is_err() && ended[4].is_err(), "they are lost after {after} messages");
        for (rank, ended) in ended.into_iter().enumerate().take(3) {
            assert_eq!(ended.unwrap(), alone, "rank {rank}, others were lost after {after} messages");
        }
    }
}

#[test]
fn a_stop_on_one_machine_ends_the_hashing_of_the_data_on_all() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (stop, rank) = (Stop::new(), cluster.rank());
        let source = Arc::new(Counted { slow: true, ..Counted::new() });
        let data = Loader::new(Arc::clone(&source)).threads(1).limit_batches(4);
        let builder = Trainer::builder(Sequential::new().add(Dense::new(3))).replicas(1).global_batch(BATCH);
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        if rank == 1 {
            stop.ask();
        }
        trainer.fit(&data, None, 1).unwrap();
        (rank, trainer.steps(), source.hashed.load(Ordering::Relaxed))
    });
    // The first rank has hashed all of its part before it hears of it.
    assert!(ended.iter().all(|(_, steps, _)| *steps == 0), "{ended:?}");
    assert!(ended[1].2 < SAMPLES, "{ended:?}");
}

#[test]
fn a_sample_that_one_machine_cannot_read_ends_the_run_on_all() {
    let source = |broken| Arc::new(Counted { broken, ..Counted::new() });
    let loader = Loader::new(source(None)).shuffle(4).batch(BATCH);
    let first = loader.epoch(0).unwrap().next().unwrap().unwrap().indices;
    // The last row is the rank's own. It reads the first one too: the scale of a run's first samples is in
    // its checkpoints, and has to be the same on all.
    for row in [BATCH - 1, 0] {
        let ended = on_ranks(3, Script::default(), |cluster| {
            let broken = (cluster.rank() == 2).then_some(first[row]);
            train(&source(broken), cluster).map(drop).unwrap_err().to_string()
        });
        assert!(ended[2].contains("the disk is gone"), "row {row}: {ended:?}");
        assert!(ended[..2].iter().all(|text| text.contains("rank 2 (thread2): ")), "row {row}: {ended:?}");
    }
}

/// Trains two epochs of twelve batches with checkpoints. Returns the error, or the digest.
fn train_on(source: &Arc<Counted>, cluster: Cluster, dir: &std::path::Path) -> Result<String, String> {
    let data = Loader::new(Arc::clone(source)).shuffle(4).threads(1).limit_batches(12);
    let builder = Trainer::builder(Sequential::new().add(Dense::new(3))).optimizer(Sgd::new(0.1)).seed(3);
    let builder = builder.replicas(1).global_batch(BATCH).shards(SHARDS).cluster(cluster);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer.resume().unwrap();
    trainer.fit(&data, None, 2).map_err(|error| error.to_string())?;
    Ok(trainer.state_sha256().unwrap())
}

#[test]
fn the_steps_before_a_sample_that_one_machine_cannot_read_are_saved() {
    let alone = tempfile::tempdir().unwrap();
    let wanted = train_on(&Arc::new(Counted::new()), Cluster::alone(), &alone.path().join("run")).unwrap();
    let loader = Loader::new(Counted::new()).shuffle(4).batch(BATCH);
    let sixth = loader.epoch(0).unwrap().nth(5).unwrap().unwrap().indices;
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("run");
    for broken in 0..3 {
        let ended = on_ranks(3, Script::default(), |cluster| {
            // A sample in the rank's part of the sixth batch.
            let row = [0, BATCH / 2, BATCH - 1][broken];
            let broken = (cluster.rank() == broken).then_some(sixth[row]);
            train_on(&Arc::new(Counted { broken, ..Counted::new() }), cluster, dir).unwrap_err()
        });
        assert!(ended[broken].contains("the disk is gone"), "{ended:?}");
        for rank in 0..2 {
            let saved = unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).unwrap();
            assert_eq!(saved.iter().map(|(step, _)| *step).max(), Some(5), "{ended:?}");
        }
        let ended =
            on_ranks(2, Script::default(), |cluster| train_on(&Arc::new(Counted::new()), cluster, dir));
        assert!(ended.iter().all(|digest| digest.as_ref() == Ok(&wanted)), "{ended:?}");
        (0..2).for_each(|rank| std::fs::remove_dir_all(unisono::dir_of_rank(dir, rank)).unwrap());
    }
}

#[test]
fn an_error_in_a_step_on_weighted_samples_reaches_all() {
    let name = "rank-1:weighted lost:replica-0:step-1";
    fail::cfg(name, "return(lose)").unwrap();
    let ended = on_ranks(2, Script::default(), |cluster| {
        let data = Loader::new(Counted::weighted()).threads(1).limit_batches(4);
        let builder = Trainer::builder(Sequential::new().add(Dense::new(3))).replicas(1).global_batch(BATCH);
        let builder = builder.fault_scope("weighted lost:").cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 1).map(drop).unwrap_err().to_string()
    });
    fail::remove(name);
    assert!(ended[1].contains("no replica is left"), "{ended:?}");
    assert!(ended[0].starts_with("rank 1 (thread1): "), "{ended:?}");
}

/// The weights of the rows that a rank takes over from a lost one are read before the step, so that the step
/// has not happened where they cannot be read.
#[test]
fn what_is_saved_after_weights_that_cannot_be_read_is_the_step_before() {
    let alone = tempfile::tempdir().unwrap();
    let whole = || Arc::new(Counted::weighted());
    let wanted = train_on(&whole(), Cluster::alone(), &alone.path().join("run")).unwrap();
    let loader = Loader::new(Counted::weighted()).shuffle(4).batch(BATCH);
    let sixth = loader.epoch(0).unwrap().nth(5).unwrap().unwrap().indices;
    let mut failed = 0;
    for after in 82..90 {
        let dir = tempfile::tempdir().unwrap();
        let dir = &dir.path().join("run");
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 2, after }] };
        let ended = on_ranks(3, script, |cluster| {
            // The last sample of the sixth batch is rank 2's.
            let broken = (cluster.rank() == 0 || cluster.rank() == 1).then_some(sixth[BATCH - 1]);
            train_on(&Arc::new(Counted { broken, ..Counted::weighted() }), cluster, dir)
        });
        if !ended[..2].iter().any(|end| end.as_ref().is_err_and(|why| why.contains("the disk is gone"))) {
            continue;
        }
        failed += 1;
        let ended = on_ranks(2, Script::default(), |cluster| train_on(&whole(), cluster, dir));
        assert!(ended.iter().all(|digest| digest.as_ref() == Ok(&wanted)), "{after}: {ended:?}");
    }
    assert!(failed > 0, "no loss was before the sixth batch");
}

/// Whether a bucket is sent before a device is done depends on the time that threads get. So each device goes
/// on for 100 ms after its first buckets have left it, and one run of many has to show it.
#[test]
fn sums_travel_between_machines_while_devices_compute() {
    for rank in 0..2 {
        fail::cfg(format!("rank-{rank}:beside:replica-0"), "return(sample:25000)").unwrap();
    }
    assert!((0..20).any(|_| buckets_beside_computing() > 0), "no bucket travelled beside computing");
}

/// Returns how many buckets were summed over two machines while the device of one computed.
fn buckets_beside_computing() -> usize {
    let overlaps = on_ranks(2, Script::default(), |cluster| {
        let data = Loader::new(Counted::new()).threads(1).limit_batches(6);
        let model = Sequential::new().add(Dense::new(600)).add(Relu).add(Dense::new(600)).add(Relu);
        let builder = Trainer::builder(model.add(Dense::new(3))).optimizer(Sgd::new(0.1)).replicas(1);
        let builder = builder.global_batch(8).shards(2).bucket_bytes(1 << 20).timeline().cluster(cluster);
        let builder = builder.fault_scope("beside:");
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let rank = trainer.cluster().rank();
        trainer.write_trace(&path).unwrap();
        if rank > 0 {
            assert!(!path.exists(), "the first rank writes what all did");
            return 0;
        }
        let events: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let named =
            |pid: u64| events.iter().any(|event| event["name"] == "process_name" && event["pid"] == pid);
        assert!(named(0) && named(1) && !named(2));
        let spans = |name: &str, pid: u64| {
            let is_own = |event: &&serde_json::Value| {
                event["name"] == name && event["ph"] == "X" && event["pid"] == pid
            };
            let own = events.iter().filter(is_own);
            let span = |event: &serde_json::Value| {
                let from = event["ts"].as_f64().unwrap();
                (from, from + event["dur"].as_f64().unwrap())
            };
            own.map(span).collect::<Vec<_>>()
        };
        let beside = |pid: u64| {
            let (exchanges, computes) = (spans("machines", pid), spans("compute", pid));
            let is_beside =
                |(from, to): &(f64, f64)| computes.iter().any(|(begun, end)| from < end && begun < to);
            exchanges.iter().filter(|span| is_beside(span)).count()
        };
        beside(0) + beside(1)
    });
    overlaps.iter().sum()
}
