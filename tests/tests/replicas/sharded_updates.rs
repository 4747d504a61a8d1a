//! Updates that share values, such as those of two biases with one gradient or of tensors whose gradients are
//! clipped by one factor, where other replicas or machines own each of them: the bytes of one replica.

use proptest::prelude::*;
use unisono::cluster::Script;
use unisono::data::{Loader, Memory};
use unisono::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, BatchNorm, Chain, Cluster, Dense, Gru, Lamb, Lars,
    Lion, Lstm, Muon, NAdam, Optimizer, RmsProp, Sequential, Sgd, SimpleRnn, Trainer,
};
use unisono_random::Draws;
use unisono_tests::{CLASSES, on_ranks};

/// The steps and the features of each in a sample.
const SHAPE: [usize; 2] = [5, 4];

type Optimizers = (&'static str, fn() -> Chain);

/// Every optimizer that keeps something. Those that clip have a factor that all updates share.
const OPTIMIZERS: &[Optimizers] = &[
    ("adam", || Adam::new(0.01).into()),
    ("adamw", || AdamW::new(0.01).into()),
    ("nadam", || NAdam::new(0.01).into()),
    ("adadelta", || Adadelta::new(0.5).into()),
    ("muon", || Muon::new(0.02).into()),
    ("sgd", || Sgd::new(0.05).momentum(0.9).nesterov().into()),
    ("adagrad", || Adagrad::new(0.05).into()),
    ("adamax", || Adamax::new(0.01).into()),
    ("adafactor", || Adafactor::new(0.01).into()),
    ("lamb", || Lamb::new(0.01).into()),
    ("lars", || Lars::new(0.1).into()),
    ("lion", || Lion::new(0.001).into()),
    ("adamw, clipped", || AdamW::new(0.01).clip_norm(0.1)),
    ("rmsprop, clipped and averaged", || RmsProp::new(0.01).clip_norm(0.1).average_weights(0.9)),
];

fn samples() -> Loader {
    let mut draws = Draws::of(3, "test", "sequences", 0, 0);
    let labels: Vec<i32> = (0..24).map(|i| i % CLASSES as i32).collect();
    let features: Vec<f32> = (0..24 * SHAPE[0] * SHAPE[1]).map(|_| draws.normal()).collect();
    Loader::new(Memory::labelled(features, SHAPE, labels).unwrap()).shuffle(5).threads(1)
}

/// Trains an epoch of three steps. Returns the digest of the state, and how many replicas are left.
fn train(
    model: Sequential,
    optimizer: Chain,
    replicas: usize,
    owners: Option<usize>,
    cluster: Cluster,
) -> (String, usize) {
    let builder = Trainer::builder(model).optimizer(optimizer).seed(7).replicas(replicas).global_batch(8);
    let builder = owners.into_iter().fold(builder, unisono::Builder::shard_optimizer).cluster(cluster);
    let data = samples();
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.fit(&data, None, 1).unwrap();
    (trainer.state_sha256().unwrap(), trainer.reports().len())
}

/// Checks that some replicas end in the bytes of one.
fn check(what: &str, model: &dyn Fn() -> Sequential, optimizer: fn() -> Chain, among: &[(usize, usize)]) {
    let (wanted, _) = train(model(), optimizer(), 1, None, Cluster::alone());
    for &(replicas, owners) in among {
        let ended = train(model(), optimizer(), replicas, Some(owners), Cluster::alone());
        assert_eq!(ended, (wanted.clone(), replicas), "{what}: {replicas} replicas, {owners} owners");
    }
}

#[test]
fn the_two_biases_of_recurrent_layers_are_updated_as_on_one_replica() {
    let deep =
        || Sequential::new().add(Lstm::new(32).layers(2).bidirectional().last()).add(Dense::new(CLASSES));
    check("two layers in both directions", &deep, || AdamW::new(0.01).into(), &[(2, 1)]);
    let lstm = || Sequential::new().add(Lstm::new(8).last()).add(Dense::new(CLASSES));
    let simple = || Sequential::new().add(SimpleRnn::new(8).last()).add(Dense::new(CLASSES));
    for (name, optimizer) in OPTIMIZERS {
        check(&format!("LSTM, {name}"), &lstm, *optimizer, &[(4, 1)]);
        check(&format!("simple RNN, {name}"), &simple, *optimizer, &[(2, 1), (3, 1)]);
    }
}

/// The factor of a clipped norm has as many elements as a parameter that is one number.
#[test]
fn a_clipped_norm_is_known_beside_a_parameter_of_one_element() {
    let model = || Sequential::new().add(Lstm::new(4).last()).add(Dense::new(1)).add(Dense::new(CLASSES));
    for (name, optimizer) in OPTIMIZERS.iter().filter(|(name, _)| name.contains("clipped")) {
        check(name, &model, *optimizer, &[(2, 1), (3, 2)]);
    }
}

/// On several machines no audit compares replicas by default.
#[test]
fn machines_end_in_the_bytes_of_one_process() {
    let deep = || Lstm::new(8).layers(2).bidirectional().last();
    let model = || Sequential::new().add(deep()).add(Dense::new(1)).add(Dense::new(CLASSES));
    let optimizer: fn() -> Chain = || AdamW::new(0.01).clip_norm(0.1);
    let (wanted, _) = train(model(), optimizer(), 1, None, Cluster::alone());
    for ranks in [2, 4] {
        let run = |cluster| train(model(), optimizer(), 1, Some(1), cluster).0;
        for (rank, ended) in on_ranks(ranks, Script::default(), run).into_iter().enumerate() {
            assert_eq!(ended, wanted, "rank {rank} of {ranks}");
        }
    }
}

/// Returns a small model: a recurrent layer, and dense ones of these widths.
fn model(recurrent: usize, units: usize, widths: &[usize], norm: bool) -> Sequential {
    let model = Sequential::new();
    let mut model = match recurrent {
        0 => model.add(Lstm::new(units).last()),
        1 => model.add(Gru::new(units).last()),
        2 => model.add(SimpleRnn::new(units).last()),
        _ => model.add(Lstm::new(units).bidirectional().last()),
    };
    for &width in widths {
        model = model.add(Dense::new(width));
    }
    if norm {
        model = model.add(BatchNorm::new());
    }
    model.add(Dense::new(CLASSES))
}

/// Returns how many random runs are compared.
fn cases() -> u32 {
    if std::env::var_os("UNISONO_LONG").is_some() { 300 } else { 16 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_models_end_in_the_bytes_of_one_replica(
        (recurrent, units, norm) in (0usize..4, 1usize..7, any::<bool>()),
        widths in prop::collection::vec(1usize..6, 0..3),
        optimizer in 0..OPTIMIZERS.len(),
        (replicas, owners) in (2usize..5, 1usize..3),
    ) {
        let (name, optimizer) = OPTIMIZERS[optimizer];
        check(name, &|| model(recurrent, units, &widths, norm), optimizer, &[(replicas, owners)]);
    }
}
