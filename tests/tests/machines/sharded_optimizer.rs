//! What the optimizer keeps, shared out among replicas and machines: the same bytes, less memory, and what a
//! loss means.

use unisono::cluster::{Fault, Script};
use unisono::{
    Accuracy, AdamW, BatchNorm, Builder, Cluster, Dense, Error, History, Lamb, Optimizer, Relu, Sequential,
    Sgd, Trainer,
};
use unisono_tests::{CLASSES, loader, on_ranks};

/// A perceptron whose optimizer keeps something for every parameter.
fn model() -> Sequential {
    Sequential::new().add(Dense::new(24)).add(BatchNorm::new()).add(Relu).add(Dense::new(CLASSES))
}

fn adam() -> Builder {
    Trainer::builder(model()).optimizer(AdamW::new(0.01).clip_norm(0.5)).metric(Accuracy).seed(11)
}

/// Trains two epochs. Returns the digest, the history and the bytes of state on each replica.
fn train(builder: Builder, cluster: Cluster) -> Result<(String, History, Vec<u64>), Error> {
    let data = loader(40, 5)?;
    let mut trainer = builder.global_batch(16).cluster(cluster).digest_every(2).build(&data.fields()?)?;
    trainer.fit(&data, Some(&loader(20, 6)?), 2)?;
    let bytes = trainer.reports().iter().map(|report| report.state_bytes).collect();
    Ok((trainer.state_sha256()?, trainer.history().clone(), bytes))
}

#[test]
fn replicas_end_in_the_bytes_of_one_with_less_memory() {
    let optimizers: [fn() -> Builder; 3] = [
        adam,
        || Trainer::builder(model()).optimizer(Lamb::new(0.01)).seed(11),
        || Trainer::builder(model()).optimizer(Sgd::new(0.05).momentum(0.9)).seed(11),
    ];
    for builder in optimizers {
        let (digest, history, whole) = train(builder().replicas(1), Cluster::alone()).unwrap();
        for (replicas, owners) in [(1, 1), (2, 1), (3, 1), (3, 2)] {
            let sharded = builder().replicas(replicas).shard_optimizer(owners);
            let (other, told, bytes) = train(sharded, Cluster::alone()).unwrap();
            assert_eq!((&other, &told), (&digest, &history), "{replicas} replicas, {owners} owners");
            let all: u64 = bytes.iter().sum();
            assert!(owners >= replicas || all < replicas as u64 * whole[0], "{bytes:?} of {whole:?}");
        }
    }
}

#[test]
fn memory_is_what_was_computed() {
    let data = loader(40, 5).unwrap();
    for (replicas, owners) in [(1, 1), (2, 1), (3, 1), (3, 2)] {
        let builder = adam().replicas(replicas).shard_optimizer(owners).global_batch(16);
        let trainer = builder.build(&data.fields().unwrap()).unwrap();
        let most = trainer.reports().iter().map(|report| report.state_bytes).max();
        assert_eq!(most, trainer.summary().memory.map(|memory| memory.state), "{replicas}, {owners}");
    }
}

#[test]
fn machines_end_in_the_bytes_of_one_process() {
    let (digest, history, whole) = train(adam().replicas(1), Cluster::alone()).unwrap();
    for (ranks, replicas, owners) in [(2, 1, 1), (3, 1, 2), (2, 2, 1)] {
        let run = |cluster| train(adam().replicas(replicas).shard_optimizer(owners), cluster);
        let mut all = 0;
        for (rank, ended) in on_ranks(ranks, Script::default(), run).into_iter().enumerate() {
            let (other, told, bytes) = ended.unwrap();
            assert_eq!((&other, &told), (&digest, &history), "rank {rank} of {ranks}, {owners} owners");
            all += bytes.iter().sum::<u64>();
        }
        assert!(all < (ranks * replicas) as u64 * whole[0], "{all} of {whole:?}");
    }
}

#[test]
fn a_replica_that_owns_tensors_may_be_lost_if_another_one_has_them() {
    let (digest, history, _) = train(adam().replicas(1), Cluster::alone()).unwrap();
    for point in ["step-2:segment-1", "step-3"] {
        let name = format!("owner lost:replica-1:{point}");
        fail::cfg(&name, "return(lose)").unwrap();
        let builder = || adam().replicas(3).fault_scope("owner lost:");
        let ended = train(builder().shard_optimizer(2), Cluster::alone()).unwrap();
        assert_eq!((ended.0, ended.1), (digest.clone(), history.clone()), "{point}");
        let error = train(builder().shard_optimizer(1), Cluster::alone()).unwrap_err().to_string();
        assert!(error.contains(" is lost with replica 1: resume the run; with two owners"), "{error}");
        fail::remove(&name);
    }
}

#[test]
fn a_machine_that_owns_tensors_may_be_lost_if_another_one_has_them() {
    let (digest, history, _) = train(adam().replicas(1), Cluster::alone()).unwrap();
    for after in [15, 28, 39, 47, 64] {
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 2, after }] };
        let ended = on_ranks(3, script, |cluster| train(adam().replicas(1).shard_optimizer(2), cluster));
        assert!(ended[2].is_err(), "rank 2 is lost after {after} messages");
        for ended in &ended[..2] {
            let (other, told, _) = ended.as_ref().unwrap();
            assert_eq!((other, told), (&digest, &history), "rank 2 was lost after {after} messages");
        }
    }
}

/// The ranks that are left keep their numbers, also where their replicas are counted.
#[test]
fn a_machine_may_be_lost_before_the_run_begins() {
    let (digest, history, _) = train(adam().replicas(1), Cluster::alone()).unwrap();
    for owners in [1, 2] {
        let script = Script { seed: 0, faults: vec![Fault::Lost { rank: 0, after: 0 }] };
        let ended = on_ranks(3, script, |cluster| train(adam().replicas(1).shard_optimizer(owners), cluster));
        for ended in &ended[1..] {
            let (other, told, _) = ended.as_ref().unwrap();
            assert_eq!((other, told), (&digest, &history), "{owners} owners");
        }
    }
}

#[test]
fn checkpoints_have_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = loader(40, 5).unwrap();
    let run = |builder: Builder, cluster: Cluster, name: &str, epochs: u32| {
        let builder = builder.global_batch(16).cluster(cluster);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(&dir.path().join(name), 2).unwrap();
        trainer.resume().unwrap();
        trainer.fit(&data, None, epochs).unwrap();
        trainer.state_sha256().unwrap()
    };
    let wanted = run(adam().replicas(1), Cluster::alone(), "alone", 3);
    let sharded = || adam().replicas(2).shard_optimizer(1);
    run(sharded(), Cluster::alone(), "one", 1);
    assert_eq!(run(adam().replicas(1), Cluster::alone(), "one", 3), wanted);
    run(adam().replicas(1), Cluster::alone(), "other", 1);
    assert_eq!(run(sharded(), Cluster::alone(), "other", 3), wanted);
    on_ranks(3, Script::default(), |cluster| run(sharded(), cluster, "machines", 1));
    assert_eq!(run(adam().replicas(1), Cluster::alone(), "machines", 3), wanted);
}

#[test]
fn all_machines_have_a_part_in_a_model_of_averages() {
    let dir = tempfile::tempdir().unwrap();
    let out = &dir.path().join("run");
    let run = |cluster: Cluster| {
        let data = loader(40, 5).unwrap();
        let builder = Trainer::builder(model()).optimizer(AdamW::new(0.01).average_weights(0.9)).seed(11);
        let builder = builder.use_average_weights().shard_optimizer(1).replicas(1).global_batch(16);
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(out, 0).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        let saved = trainer.save_model().map_err(|error| error.to_string());
        // It compares what the machines have, and not what they read.
        trainer.evaluate(&data).map_err(|error| error.to_string()).unwrap();
        (saved.map(|saved| saved.is_some()), trainer.state_sha256().map_err(|error| error.to_string()))
    };
    let ended = on_ranks(3, Script::default(), run);
    assert_eq!(ended.iter().map(|(saved, _)| saved.clone()).collect::<Vec<_>>(), [true, true, false].map(Ok));
    assert!(ended.iter().all(|(_, digest)| digest.is_ok() && *digest == ended[0].1), "{ended:?}");
    let model = |rank| std::fs::read(unisono::dir_of_rank(out, rank).join("model.safetensors")).unwrap();
    assert_eq!(model(0), model(1));
}

#[test]
fn a_model_that_one_machine_cannot_write_is_an_error_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let out = &dir.path().join("run");
    let ended = on_ranks(3, Script::default(), |cluster| {
        let (rank, data) = (cluster.rank(), loader(40, 5).unwrap());
        let mut trainer = adam().replicas(1).cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(out, 0).unwrap();
        if rank == 1 {
            std::fs::create_dir(unisono::dir_of_rank(out, 1).join("model.safetensors")).unwrap();
        }
        trainer.save_model().unwrap_err().to_string()
    });
    assert!(ended[0].starts_with("rank 1 (thread1): "), "{ended:?}");
    assert_eq!(ended[0], ended[2]);
}
