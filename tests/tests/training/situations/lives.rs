//! Runs that are cut, spoiled, or differ from machine to machine.

use unisono::cluster::Script;
use unisono::data::Loader;
use unisono::{AdamW, Builder, Cluster, EarlyStopping, PauseAfter, Saving, Trainer};
use unisono_tests::{loader, on_ranks, perceptron};

use super::by_hand::Linear;
use super::{BATCH, RATE, REPLICAS, assert_is, build, build_from, data, linear, rows, sgd};
use crate::sha256;

/// The pause is in the middle of the second epoch, whose samples are shuffled and whose last batch is ragged.
#[test]
fn a_run_that_is_saved_on_three_replicas_goes_on_on_one() {
    let (train, held_out) = (loader(50, 5).unwrap(), loader(20, 6).unwrap());
    let builder = |replicas: usize| perceptron(8).global_batch(16).replicas(replicas);
    let mut whole = build(builder(1), &train);
    whole.fit(&train, Some(&held_out), 3).unwrap();
    for [before, after] in [[3, 1], [1, 3]] {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = build(builder(before).callback(PauseAfter::steps(6)), &train);
        trainer.save_to(Saving::new(dir.path())).unwrap();
        trainer.fit(&train, Some(&held_out), 3).unwrap();
        assert_eq!(trainer.steps(), 6);
        drop(trainer);
        let mut trainer = build(builder(after), &train);
        trainer.save_to(Saving::new(dir.path())).unwrap();
        assert_eq!(trainer.resume().unwrap().unwrap().step, 6);
        trainer.fit(&train, Some(&held_out), 3).unwrap();
        assert_eq!(trainer.history(), whole.history(), "{before} replicas, then {after}");
        assert_eq!(sha256(&mut trainer), sha256(&mut whole), "{before} replicas, then {after}");
    }
}

/// The second batch has a sample that is not finite. No replica makes that step, and the sample is named.
#[test]
fn a_sample_that_is_not_finite_spoils_no_replica() {
    let clean = rows();
    let mut expected = Linear::start();
    expected.descend(expected.gradient(&clean[..BATCH]), RATE);
    for (replicas, bad) in REPLICAS.into_iter().flat_map(|n| [f32::NAN, f32::INFINITY].map(|bad| (n, bad))) {
        let mut rows = clean.clone();
        rows[6].x[1] = bad;
        let data = data(&rows);
        let mut trainer = build_from(&Linear::start(), linear(sgd()).replicas(replicas), &data);
        let error = trainer.fit(&data, None, 1).err().unwrap().to_string();
        assert!(error.contains("sample 6"), "{error}");
        assert_eq!(trainer.steps(), 1);
        assert_is(&format!("{replicas} replicas, {bad}"), &mut trainer, &expected);
        // Without the sample, the run goes on from there.
        trainer.step(&super::data(&clean[..BATCH]).epoch(0).unwrap().next().unwrap().unwrap()).unwrap();
    }
}

/// Trains on two machines that differ in something. Returns the errors of both.
fn errors(
    data: impl Fn(usize) -> Loader + Sync,
    set: impl Fn(usize, Builder) -> Builder + Sync,
) -> Vec<String> {
    let ended = on_ranks(2, Script::default(), |cluster: Cluster| {
        let (rank, train) = (cluster.rank(), data(cluster.rank()));
        let builder = set(rank, perceptron(8).global_batch(8).replicas(1).cluster(cluster));
        let fitted = |mut trainer: Trainer| trainer.fit(&train, Some(&loader(20, 6)?), 2).map(drop);
        builder.build(&train.fields()?).and_then(fitted)
    });
    ended.into_iter().map(|ended| ended.err().map(|error| error.to_string()).unwrap_or_default()).collect()
}

#[test]
fn what_differs_on_one_machine_is_refused_by_name() {
    let same = |_: usize| loader(40, 5).unwrap();
    let plain = |_: usize, builder: Builder| builder;
    let scaled = |rank: usize| {
        loader(40, 5).unwrap().map("scale", move |sample, _| {
            sample.f32_mut("x").into_iter().flatten().for_each(|x| *x *= 1.0 + rank as f32);
        })
    };
    let patience = |rank: usize| EarlyStopping::lowest("loss").patience(2 + rank as u32);
    let cases: [(Vec<String>, &str); 7] = [
        (errors(|rank| loader(40 + rank, 5).unwrap(), plain), "the fingerprint of the data"),
        (errors(|rank| loader(40, 5 + rank as u64).unwrap(), plain), "data"),
        (errors(|rank| loader(40, 5).unwrap().shuffle(rank as u64), plain), "seed"),
        (errors(scaled, plain), "transform"),
        (errors(same, |rank, builder| builder.optimizer(AdamW::new(0.01 * (1 + rank) as f64))), "optimizer"),
        (errors(same, |rank, builder| builder.seed(rank as u64)), "seed"),
        (errors(same, |rank, builder| builder.callback(patience(rank))), "patience 3"),
    ];
    for (errors, named) in cases {
        assert!(errors.iter().all(|error| error.contains(named)), "{named}: {errors:?}");
    }
    assert_eq!(errors(same, plain), ["", ""]);
}
