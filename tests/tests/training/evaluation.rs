//! A trained model in use gives the same bytes on any number of replicas and in any batch, with batch norm's
//! running statistics.

use std::path::Path;

use unisono::checkpoint::read_tensors;
use unisono::data::{Loader, Memory, Values};
use unisono::{
    Accuracy, AdamW, Assignment, BatchNorm, Builder, Context, Conv2d, CrossEntropy, Dense, Dropout, Flatten,
    FromFn, MaxPool2d, Metric, Relu, Sequential, Trainer, Var,
};
use unisono_random::Draws;

const SIDE: usize = 6;
const CLASSES: usize = 3;

/// Returns pictures with a bright row for each class, around a mean of 1,000, which takes half of the digits
/// of f32.
fn pictures(samples: usize, seed: u64, mean: f32) -> Memory {
    let mut draws = Draws::of(seed, "test", "pictures", 0, 0);
    let labels: Vec<i32> = (0..samples).map(|i| (i % CLASSES) as i32).collect();
    let mut pixels = Vec::new();
    for &label in &labels {
        for place in 0..SIDE * SIDE {
            let bright = place / SIDE == 2 * label as usize;
            pixels.push(mean + draws.normal() + if bright { 2.0 } else { 0.0 });
        }
    }
    Memory::labelled(pixels, [1, SIDE, SIDE], labels).unwrap()
}

fn convolutional() -> Builder {
    let model = Sequential::new()
        .add(Conv2d::new(4, 3).padding(1))
        .add(BatchNorm::new())
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.2))
        .add(Dense::new(8))
        .add(BatchNorm::new())
        .add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(AdamW::new(0.01)).metric(Accuracy).seed(5).digest_every(1)
}

fn build(replicas: usize, data: &Loader) -> Trainer {
    convolutional().global_batch(16).shards(8).replicas(replicas).build(&data.fields().unwrap()).unwrap()
}

/// Returns a trainer with other initial weights that has loaded those of a file.
fn loaded(path: &Path, replicas: usize, data: &Loader) -> Trainer {
    let builder = convolutional().seed(99).global_batch(16).shards(8).replicas(replicas);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    for (name, tensor) in read_tensors(path).unwrap() {
        let words = tensor.bytes().as_chunks::<4>().0.iter();
        trainer.set_tensor(&name, &words.map(|&word| f32::from_le_bytes(word)).collect::<Vec<_>>()).unwrap();
    }
    trainer
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_saved_model_is_the_same_on_any_replicas_and_in_any_batch() {
    let dir = tempfile::tempdir().unwrap();
    let train = Loader::new(pictures(90, 1, 0.0)).shuffle(2);
    let held_out = Loader::new(pictures(37, 7, 0.0));
    let mut trained = build(2, &train);
    trained.checkpoints(dir.path(), 0).unwrap();
    trained.fit(&train, Some(&held_out), 8).unwrap();
    let path = trained.save_model().unwrap().unwrap();
    let (evaluation, predictions) =
        (trained.evaluate(&held_out).unwrap(), trained.predict(&held_out).unwrap());
    assert!(evaluation.metric("accuracy").unwrap() > 0.7, "it learned something: {evaluation:?}");
    assert_eq!(predictions.len(), 37 * CLASSES);
    for replicas in [1, 5] {
        let mut trainer = loaded(&path, replicas, &train);
        assert_eq!(trainer.evaluate(&held_out).unwrap(), evaluation, "{replicas} replicas");
        assert_eq!(bits(&trainer.predict(&held_out).unwrap()), bits(&predictions), "{replicas} replicas");
        // Each sample is predicted in a batch of its own, and in batches of another size, at another place.
        for size in [1, 7] {
            let batches = held_out.clone().batch(size).epoch(0).unwrap();
            let one_by_one: Vec<f32> =
                batches.flat_map(|batch| trainer.predict_batch(&batch.unwrap()).unwrap()).collect();
            assert_eq!(bits(&one_by_one), bits(&predictions), "{replicas} replicas, batches of {size}");
        }
    }
    // With other weights all of this differs.
    assert_ne!(bits(&build(1, &train).predict(&held_out).unwrap()), bits(&predictions));
}

/// There are 19 samples in batches of 8. The last batch has 3 samples, so two of its four shards are empty,
/// and of five replicas the last one never has a shard.
#[test]
fn idle_replicas_leave_running_statistics_alone() {
    for mean in [0.0, 1000.0] {
        let data = Loader::new(pictures(19, 3, mean)).shuffle(4);
        let run = |replicas: usize| {
            let builder = convolutional().global_batch(8).shards(4).replicas(replicas);
            // With assignment by speed, the slowest replica would be idle instead of the last one.
            let builder = builder.assignment(Assignment::Even);
            let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, None, 2).unwrap();
            trainer.check_replicas().unwrap();
            let names = ["1.running_mean", "1.running_var", "7.running_mean", "7.running_var"];
            let statistics = names.map(|name| bits(&trainer.tensor(name).unwrap().unwrap()));
            let samples: Vec<u64> = trainer.reports().iter().map(|report| report.samples).collect();
            (statistics, trainer.state_sha256().unwrap(), samples)
        };
        let (statistics, state, samples) = run(1);
        assert_eq!(samples, [38]);
        assert!(statistics.iter().flatten().all(|&word| f32::from_bits(word).is_finite()));
        let moved = |values: &[u32], start: f32| values.iter().all(|&word| f32::from_bits(word) != start);
        assert!(moved(&statistics[0], 0.0) && moved(&statistics[1], 1.0), "{statistics:?}");
        assert!(statistics[1].iter().all(|&word| f32::from_bits(word) > 0.0));
        for replicas in [3, 5] {
            let (own, digest, samples) = run(replicas);
            assert_eq!(own, statistics, "{replicas} replicas, mean {mean}");
            assert_eq!(digest, state, "{replicas} replicas, mean {mean}");
            assert_eq!(samples.iter().sum::<u64>(), 38);
            assert!(replicas < 5 || samples[4] == 0, "the fifth replica has no shard: {samples:?}");
        }
    }
}

/// There are two sequences of four places. Some places are padding, and the model is right at every other
/// place.
#[test]
fn accuracy_is_that_of_the_labels_that_count() {
    let labels = [1, 2, -100, -100, 0, -100, -100, -100];
    let logits = labels
        .iter()
        .flat_map(|&label| (0..CLASSES as i32).map(move |class| f32::from(u8::from(class == label))));
    let one_wrong = [&[0.0, 0.0, 1.0][..], &logits.collect::<Vec<f32>>()[3..]].concat();
    let source = Memory::new("x", [4, CLASSES], Values::F32(one_wrong)).unwrap();
    let data = Loader::new(source.with("y", [4], Values::I32(labels.to_vec())).unwrap());
    let evaluated = |metric: Accuracy| {
        let model = FromFn::new("table", |cx: &mut Context, x: &Var| {
            let scale = cx.parameter("scale", &[], unisono::Initializer::Ones);
            x * &scale
        });
        let builder = Trainer::builder(model).loss(CrossEntropy::new().ignore_index(-100)).metric(metric);
        let mut trainer = builder.global_batch(2).replicas(1).build(&data.fields().unwrap()).unwrap();
        trainer.evaluate(&data).unwrap().metric("accuracy").unwrap()
    };
    // One right label of two and one of one make two of three.
    assert!((evaluated(Accuracy::new().ignore_index(-100)) - 2.0 / 3.0).abs() < 1e-6);
    // All labels count here, and one of the four of each sample is right.
    assert!((evaluated(Accuracy) - 0.25).abs() < 1e-6);
}

/// A metric that is the same number for all samples.
struct Quarter;

impl Metric for Quarter {
    fn name(&self) -> &str {
        "quarter"
    }
    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        output.tape().constant(0.25)
    }
}

#[test]
fn a_constant_metric_is_that_constant_in_any_batch_and_on_any_replicas() {
    let data = Loader::new(pictures(19, 3, 0.0));
    for (batch, replicas) in [(8, 1), (5, 3)] {
        let builder = convolutional().metric(Quarter).global_batch(batch).shards(4).replicas(replicas);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, Some(&data), 1).unwrap();
        let epoch = &trainer.history()[0];
        assert_eq!(epoch.train.metric("quarter"), Some(0.25));
        assert_eq!(epoch.validation.as_ref().and_then(|held_out| held_out.metric("quarter")), Some(0.25));
    }
}
