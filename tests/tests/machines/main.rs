//! Runs on several machines, which are threads here: the same bytes, history and predictions as one machine,
//! and what happens when machines are lost, differ, stop or fail.
//!
//! Alone in their process, because a fault in the probe of GL changes the class of an adapter for all tests.

mod classes;
mod ending;
mod held_out;
mod mixed;
mod network;
mod saving;
mod sharded_optimizer;
mod shared_data;

use std::sync::{Arc, Mutex};

use unisono::cluster::{Fault, Script};
use unisono::data::{Loader, Tokens, Width};
use unisono::{
    AdamW, Assignment, Audits, BatchNorm, Builder, Cluster, Dense, Embedding, Epoch, Error, History, Lamb,
    LossScale, Lstm, Observer, Optimizer, Phase, Precision, ProgramId, Relu, Sequential, Sgd, Start, Trainer,
};
use unisono_tests::{CLASSES, loader, on_ranks, perceptron};

/// How a run ended: its digest, its history, and what it predicts.
type Ended = (String, History, Vec<f32>);

/// Trains two epochs in this cluster.
fn train(builder: Builder, cluster: Cluster, samples: usize) -> Result<Ended, Error> {
    let data = loader(samples, 5)?;
    let mut trainer = builder.cluster(cluster).digest_every(3).build(&data.fields()?)?;
    let held_out = loader(20, 6)?;
    trainer.fit(&data, Some(&held_out), 2)?;
    let predicted = trainer.predict(&held_out)?;
    Ok((trainer.state_sha256()?, trainer.history().clone(), predicted))
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
        let alone = train(builder(1), Cluster::alone(), 39).unwrap();
        for (ranks, replicas) in [(2, 1), (3, 2), (4, 1)] {
            let ended = on_ranks(ranks, Script::default(), |cluster| train(builder(replicas), cluster, 39));
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
    let alone = train(normed().global_batch(16), Cluster::alone(), 40).unwrap();
    for ended in on_ranks(3, Script::default(), |cluster| train(normed().global_batch(16), cluster, 40)) {
        assert_eq!(ended.unwrap(), alone);
    }
    let few =
        |replicas| perceptron(16).global_batch(16).shards_at_once(1).replicas(replicas).bucket_bytes(256);
    let alone = train(few(1), Cluster::alone(), 40).unwrap();
    for ended in on_ranks(2, Script::default(), |cluster| train(few(2), cluster, 40)) {
        assert_eq!(ended.unwrap(), alone);
    }
}

/// Compares two epochs on three ranks with those of one machine. Returns how many steps were skipped for a
/// loss scale.
fn is_the_same_on_three(builder: impl Fn() -> Builder + Sync, data: &Loader) -> u64 {
    let run = |cluster: Cluster| {
        let mut trainer = builder().cluster(cluster).replicas(1).build(&data.fields().unwrap()).unwrap();
        trainer.fit(data, Some(data), 2).unwrap();
        let skipped = trainer.scaling().map_or(0, |scaling| scaling.skipped);
        (trainer.state_sha256().unwrap(), trainer.history().clone(), skipped)
    };
    let alone = run(Cluster::alone());
    for ended in on_ranks(3, Script::default(), run) {
        assert_eq!(ended, alone);
    }
    alone.2
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
fn phases_and_steps_that_are_skipped_for_a_loss_scale_too() {
    let data = loader(40, 5).unwrap();
    let first = || Phase::new("first").trains(|name| name.starts_with("0.")).optimizer(AdamW::new(0.01));
    let all = || Phase::new("all").optimizer(Sgd::new(0.1)).steps(2);
    is_the_same_on_three(|| normed().phase(first()).phase(all()).global_batch(16), &data);
    // The first gradients are too large for f16.
    let scale = LossScale::Dynamic {
        initial: 2f32.powi(30),
        growth: 2.0,
        backoff: 2f32.powi(-9),
        interval: 3,
        least: 1.0,
        most: 2f32.powi(40),
    };
    let scaled = || perceptron(8).precision(Precision::Mixed).loss_scale(scale).global_batch(16);
    assert!(is_the_same_on_three(scaled, &data) > 0);
}

#[test]
fn those_that_are_left_go_on_with_the_same_bytes() {
    let builder = || perceptron(16).global_batch(16).replicas(1);
    let alone = train(builder(), Cluster::alone(), 40).unwrap();
    for after in [12, 25, 33, 47, 60] {
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 0, after }] };
        let ended = on_ranks(3, script, |cluster| train(builder(), cluster, 40));
        assert!(ended[0].is_err(), "rank 0 is lost after {after} messages");
        for (rank, ended) in ended.into_iter().enumerate().skip(1) {
            assert_eq!(ended.unwrap(), alone, "rank {rank}, rank 0 was lost after {after} messages");
        }
    }
}

/// A lost rank's outputs may have reached only one of the others, which then passes them on.
#[test]
fn what_is_measured_while_a_rank_is_lost_is_of_all_samples() {
    let measure = |cluster: Cluster| {
        let held_out = loader(36, 6)?;
        let builder = perceptron(16).global_batch(16).replicas(1);
        let mut trainer = builder.cluster(cluster).build(&held_out.fields()?)?;
        Ok::<_, Error>((trainer.evaluate(&held_out)?, trainer.predict(&held_out)?))
    };
    let alone = measure(Cluster::alone()).unwrap();
    let mut measured = 0;
    for after in 0.. {
        let script = Script { seed: 0, faults: vec![Fault::Lost { rank: 2, after }] };
        let ended = on_ranks(3, script, measure);
        if ended[2].is_ok() {
            assert!(
                after > 30 && measured > after,
                "{measured} ranks succeeded; rank 2 was lost after up to {after} messages"
            );
            break;
        }
        // Ranks that have not met yet end with an error.
        for (rank, ended) in
            ended.into_iter().enumerate().filter_map(|(rank, ended)| Some((rank, ended.ok()?)))
        {
            assert!(ended == alone, "rank {rank}, rank 2 was lost after {after} messages");
            measured += 1;
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error_of_all_ranks_and_lost_on_none() {
    let dir = tempfile::tempdir().unwrap();
    let (in_the_way, path) = (dir.path().join("file"), dir.path().join("trace.json"));
    std::fs::write(&in_the_way, "").unwrap();
    let ended = on_ranks(2, Script::default(), |cluster| {
        let data = loader(40, 5).unwrap();
        let builder = perceptron(8).replicas(1).global_batch(16).timeline().cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        let failed = trainer.write_trace(&in_the_way.join("trace.json")).map_err(|error| error.to_string());
        trainer.write_trace(&path).unwrap();
        failed
    });
    assert!(ended.iter().all(|failed| failed.as_ref().is_err_and(|why| why.contains("trace "))), "{ended:?}");
    let events: Vec<serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let has_slices = |pid| events.iter().any(|event| event["name"] == "compute" && event["pid"] == pid);
    assert!(has_slices(0) && has_slices(1), "{events:?}");
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
        on_ranks(3, script, |cluster| {
            let hears = Hears { everywhere, ..Hears::default() };
            let data = loader(40, 5).unwrap();
            let builder =
                perceptron(16).global_batch(16).replicas(1).observer(hears.clone()).cluster(cluster);
            let ended = builder.build(&data.fields().unwrap()).unwrap().fit(&data, None, 3).map(drop);
            (ended.is_ok(), std::mem::take(&mut *hears.heard.lock().unwrap()))
        })
    };
    let all = run(script(), false);
    assert_eq!(all.iter().map(|(ended, _)| *ended).collect::<Vec<_>>(), [false, true, true]);
    let [_, (_, next), (_, last)] = &all[..] else { panic!("three ranks") };
    let lost = "rank 0 (thread0) was lost: its thread has ended; the others continue without it";
    assert_eq!(next, &["start with 1 epochs", lost, "epoch 1", "epoch 2"]);
    assert!(last.is_empty(), "{last:?}");
    for (_, heard) in run(Script::default(), true) {
        assert_eq!(heard, ["start with 0 epochs", "epoch 0", "epoch 1", "epoch 2"]);
    }
}

#[test]
fn a_machine_with_another_setting_is_refused_by_name() {
    let ended = on_ranks(3, Script::default(), |cluster| {
        let batch = if cluster.rank() == 2 { 64 } else { 128 };
        train(perceptron(8).global_batch(batch).replicas(1), cluster, 40).map(drop)
    });
    for ended in ended {
        assert_eq!(ended.unwrap_err().to_string(), "rank 2 (thread2): --global-batch 64, rank 0: 128");
    }
    let ended = on_ranks(2, Script::default(), |cluster| {
        let samples = 40 + cluster.rank();
        train(perceptron(8).replicas(1), cluster, samples).map(drop)
    });
    for ended in ended {
        let text = ended.unwrap_err().to_string();
        assert!(text.starts_with("rank 1 (thread1): the fingerprint of the data "), "{text}");
    }
}

/// What the error says of a setting, and the setting.
type Way = (&'static str, fn(Builder) -> Builder);

#[test]
fn another_way_of_working_together_is_refused_by_name() {
    let ways: [Way; 3] = [
        ("--shard-optimizer 2, rank 0: none", |builder| builder.shard_optimizer(2)),
        ("the assignment of shards Even, rank 0: Speed", |builder| builder.assignment(Assignment::Even)),
        ("the interval at which states are compared 7, rank 0: 3", |builder| builder.digest_every(7)),
    ];
    for (wanted, way) in ways {
        let ended = on_ranks(2, Script::default(), |cluster| {
            let builder = perceptron(8).replicas(1).digest_every(3);
            let builder = if cluster.rank() == 1 { way(builder) } else { builder };
            builder.cluster(cluster).build(&loader(40, 5).unwrap().fields().unwrap()).map(drop)
        });
        for ended in ended {
            assert_eq!(ended.unwrap_err().to_string(), format!("rank 1 (thread1): {wanted}"));
        }
    }
}

#[test]
fn audits_are_refused_by_name() {
    // What is set is refused, also where it is what a run alone has by default.
    let all = [
        (Audits::Every(3), true),
        (Audits::Share(0.015), true),
        (Audits::Every(0), false),
        (Audits::Never, false),
    ];
    for (audits, is_refused) in all {
        let ended = on_ranks(2, Script::default(), |cluster| {
            train(perceptron(8).replicas(1).audits(audits), cluster, 40).map(drop)
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
        let ended = on_ranks(ranks, Script::default(), |cluster| {
            let data = loader(64, 5).unwrap();
            let builder = perceptron(16).global_batch(16).shards(8).replicas(1).cluster(cluster);
            let builder = builder.assignment(Assignment::Even);
            let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, None, 2).unwrap();
            let lens: Vec<usize> =
                trainer.program(ProgramId::Train).buckets().iter().map(|bucket| bucket.len).collect();
            (trainer.report().machines, trainer.steps(), lens)
        });
        let runs = unisono::cluster::cuts(8, &vec![1; ranks]);
        for (machines, steps, lens) in ended {
            assert!(lens.iter().sum::<usize>() > 100);
            for (place, machine) in machines.iter().enumerate() {
                let of = |len: &usize| unisono::cluster::bytes_sent(*len, 8, &runs, place);
                let wanted = steps * lens.iter().map(of).sum::<u64>();
                assert_eq!(machine.sent, wanted, "rank {place} of {ranks}, {steps} steps of {lens:?}");
            }
        }
    }
}

#[test]
fn an_error_of_one_machine_ends_the_run_on_all() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let adapter = if cluster.rank() == 1 { "no such adapter" } else { "cpu" };
        train(perceptron(8).adapter(adapter).replicas(1), cluster, 40).map(drop)
    });
    let own = ended[1].as_ref().unwrap_err().to_string();
    let heard = ended[0].as_ref().unwrap_err().to_string();
    assert!(own.contains("no such adapter"), "{own}");
    assert_eq!(heard, format!("rank 1 (thread1): {own}"));
}

#[test]
fn eight_thousand_shards() {
    let shards = |cluster| {
        let data = loader(8192, 5).unwrap();
        let builder = perceptron(4).global_batch(8192).shards(8192).replicas(1).cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        trainer.state_sha256().unwrap()
    };
    let alone = shards(Cluster::alone());
    for ended in on_ranks(3, Script::default(), shards) {
        assert_eq!(ended, alone);
    }
}

#[test]
fn a_replica_that_is_lost_concerns_its_machine_alone() {
    let builder = || perceptron(16).global_batch(16).replicas(2).fault_scope("machines lost:");
    let wanted = train(perceptron(16).global_batch(16).replicas(1), Cluster::alone(), 40).unwrap();
    for point in ["step-1", "step-3", "step-6:segment-1"] {
        let name = format!("rank-1:machines lost:replica-1:{point}");
        fail::cfg(&name, "return(lose)").unwrap();
        let ended = on_ranks(3, Script::default(), |cluster| {
            let (rank, data) = (cluster.rank(), loader(40, 5).unwrap());
            let mut trainer =
                builder().cluster(cluster).digest_every(3).build(&data.fields().unwrap()).unwrap();
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
    let run = |cluster: Cluster| {
        let mut trainer = builder().cluster(cluster).build(&data().fields().unwrap()).unwrap();
        trainer.fit(&data(), None, 8).unwrap();
        (trainer.state_sha256().unwrap(), trainer.report())
    };
    let wanted = run(Cluster::alone()).0;
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
    let ended = on_ranks(3, Script::default(), |cluster| {
        let builder = perceptron(16).global_batch(16).replicas(1).fault_scope("machines differ:");
        train(builder.digest_every(1), cluster, 40).unwrap_err().to_string()
    });
    fail::remove(name);
    for text in &ended {
        assert!(text.contains("rank 0 (thread0), rank 2 (thread2) has "), "{text}");
        assert!(text.contains("rank 1 (thread1) has "), "{text}");
    }
}
