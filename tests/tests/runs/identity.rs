//! A run's identity: what is in it, and what leaves it as it is.

use std::path::Path;

use unisono::data::{Loader, Memory};
use unisono::{
    Builder, Dense, Dropout, F1, Identity, Optimizer, Relu, SavedRun, Schedule, Sequential, Sgd, Trainer,
};

fn data() -> Loader {
    let pixels: Vec<f32> = (0..16 * 6).map(|i| (i % 7) as f32 / 7.0).collect();
    let labels: Vec<i32> = (0..16).map(|i| i % 3).collect();
    Loader::new(Memory::labelled(pixels, [6], labels).unwrap()).shuffle(3)
}

fn builder(lr: impl Into<Schedule>) -> Builder {
    let model = Sequential::new().add(Dense::new(5)).add(Relu).add(Dropout::new(0.1)).add(Dense::new(3));
    Trainer::builder(model).optimizer(Sgd::new(lr).momentum(0.9).clip_norm(1.0)).global_batch(8)
}

fn trained(builder: Builder, data: &Loader, dir: Option<&Path>, epochs: u32) -> Trainer {
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    if let Some(dir) = dir {
        trainer.checkpoints(dir, 1).unwrap();
        trainer.resume().unwrap();
    }
    trainer.fit(data, None, epochs).unwrap();
    trainer
}

fn of(builder: Builder, data: &Loader) -> Identity {
    trained(builder, data, None, 1).identity()
}

/// The identity is the same in every process, on any number of replicas, and before and after a resume.
///
/// If this fails because the encoding was changed on purpose, raise the number in "unisono run 1"
/// (`run/identity.rs`) or "graph 1" (`identity/graph.rs`), tell so in the changelog, and put the new digits
/// here. Runs that were saved before are then refused by a resume that is not forced.
#[test]
fn it_is_the_same_everywhere() {
    const GOLDEN: &str = "33b1d431c356";
    let dir = tempfile::tempdir().unwrap();
    let first = trained(builder(0.1).replicas(1), &data(), Some(dir.path()), 1).identity();
    assert_eq!(first.to_string(), GOLDEN, "{first:#?}");
    assert!(first.not_covered.is_empty() && first.ancestors.is_empty(), "{first:?}");
    let saved = SavedRun::newest(dir.path()).unwrap().unwrap();
    assert_eq!(saved.identity(), first.sha256.as_deref());
    let resumed = trained(builder(0.1).replicas(1), &data(), Some(dir.path()), 2).identity();
    assert_eq!(resumed, first);
    assert_eq!(of(builder(0.1).replicas(3), &data()), first);
    // Threads and batches are no part of the data.
    assert_eq!(of(builder(0.1).replicas(2), &data().threads(3).batch(5)), first);
}

#[test]
fn each_part_is_in_it() {
    let first = of(builder(0.1).replicas(1), &data());
    let differ = |other: Identity| -> Vec<String> {
        assert_ne!(other.sha256, first.sha256);
        let pairs = first.parts.iter().zip(other.parts);
        pairs.filter(|(a, b)| *a != b).map(|(a, _)| a.0.clone()).collect()
    };
    assert_eq!(differ(of(builder(0.2).replicas(1), &data())), ["optimizer"]);
    assert_eq!(differ(of(builder(0.1).replicas(1).seed(1), &data())), ["settings"]);
    assert_eq!(differ(of(builder(0.1).replicas(1), &data().shuffle(4))), ["order"]);
    let tanh =
        Sequential::new().add(Dense::new(5)).add(unisono::Tanh).add(Dropout::new(0.1)).add(Dense::new(3));
    let tanh = Trainer::builder(tanh).optimizer(Sgd::new(0.1).momentum(0.9).clip_norm(1.0)).global_batch(8);
    assert_eq!(differ(of(tanh.replicas(1), &data())), ["model", "training"]);
    let scored = |f1: F1| of(builder(0.1).replicas(1).metric(f1.named("f1")), &data());
    let macro_average = scored(F1::macro_average(3));
    for other in [F1::macro_average(3).ignore_index(0), F1::micro_average(3), F1::of_class(3, 1)] {
        let other = scored(other);
        assert_ne!(other.sha256, macro_average.sha256);
        assert_eq!(other.not_covered, macro_average.not_covered);
    }
    let labels: Vec<i32> = (0..16).map(|i| i % 3).collect();
    let other = Loader::new(Memory::labelled(vec![0.5; 16 * 6], [6], labels).unwrap()).shuffle(3);
    assert_eq!(differ(of(builder(0.1).replicas(1), &other)), ["data"]);
}

#[test]
fn code_without_a_name_is_said_not_to_be_covered() {
    let function = || Schedule::function(|step| 0.1 / (step + 1) as f64);
    let transformed = data().map("noise", |_, _| ()).map_batch("mix", |_, _| Ok(()));
    let open = of(builder(function()).replicas(1), &transformed);
    let expected = [
        "the function that is the schedule of \"lr\"",
        "the code of map 'noise'",
        "the code of map_batch 'mix'",
    ];
    assert_eq!(open.not_covered, expected);
    let named = data().map("noise", |_, _| ()).version("1").map_batch("mix", |_, _| Ok(())).version("4");
    let closed = of(builder(function().named("inverse", 1)).replicas(1), &named);
    assert!(closed.not_covered.is_empty(), "{closed:?}");
    assert_ne!(of(builder(function().named("inverse", 2)).replicas(1), &named).sha256, closed.sha256);
}

#[test]
fn loaded_weights_are_in_it_and_a_resume_does_not_ask_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("weights.safetensors");
    let mut source = trained(builder(0.3).replicas(1), &data(), None, 1);
    source.export(&weights, unisono::checkpoint::WeightPrecision::F32).unwrap();
    let run = dir.path().join("run");
    let mut first = builder(0.1).replicas(1).build(&data().fields().unwrap()).unwrap();
    first.checkpoints(&run, 0).unwrap();
    first.load_model(&weights, &unisono::checkpoint::Plan::new()).unwrap();
    first.fit(&data(), None, 1).unwrap();
    assert_ne!(first.identity().sha256, of(builder(0.1).replicas(1), &data()).sha256);
    let identity = first.identity();
    drop(first);
    assert_eq!(trained(builder(0.1).replicas(1), &data(), Some(&run), 2).identity(), identity);
}

#[test]
fn a_forced_run_is_another_and_says_of_which() {
    let dir = tempfile::tempdir().unwrap();
    let first = trained(builder(0.1).replicas(1), &data(), Some(dir.path()), 1).identity();
    let mut forced = builder(0.2).replicas(1).build(&data().fields().unwrap()).unwrap();
    forced.checkpoints(dir.path(), 1).unwrap();
    assert_eq!(
        forced.force_resume().unwrap().unwrap().differs,
        ["the optimizer's lr of the run is 0.1, not 0.2"]
    );
    forced.fit(&data(), None, 2).unwrap();
    let second = forced.identity();
    assert!(second.sha256.is_some());
    // It is neither the first run nor one that had this learning rate from its start.
    assert_ne!(second.sha256, first.sha256);
    assert_ne!(second.sha256, of(builder(0.2).replicas(1), &data()).sha256);
    let [ancestor] = &second.ancestors[..] else { panic!("{second:?}") };
    assert_eq!((&ancestor.identity, ancestor.step), (&first.sha256, 2));
    assert_eq!(ancestor.differs, ["the optimizer's lr of the run is 0.1, not 0.2"]);
    drop(forced);
    // Resumed as it is now, it stays what it became.
    assert_eq!(trained(builder(0.2).replicas(1), &data(), Some(dir.path()), 3).identity(), second);
}
