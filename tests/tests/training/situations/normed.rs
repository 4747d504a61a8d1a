//! What depends on the samples of a batch or on random draws: batch norm, dropout, augmentation, the order.

use std::collections::BTreeSet;

use unisono::data::{Loader, Memory, Position, Values};
use unisono::{BatchNorm, Dense, Dropout, MeanSquaredError, Model, Outputs, Sequential, Sgd, Trainer};

use super::by_hand::Row;
use super::{BATCH, REPLICAS, assert_near, build, data, rows, tensor};

/// The running statistics of a batch norm over two features, by hand.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    mean: [f64; 2],
    variance: [f64; 2],
}

const EPSILON: f64 = 1e-5;

impl Statistics {
    /// Returns the mean and the biased variance of a batch.
    fn of(batch: &[Row]) -> Self {
        let n = batch.len() as f64;
        let mean = [0, 1].map(|at| batch.iter().map(|row| f64::from(row.x[at])).sum::<f64>() / n);
        let square = |at: usize| move |row: &Row| (f64::from(row.x[at]) - mean[at]).powi(2);
        let variance = [0, 1].map(|at| batch.iter().map(square(at)).sum::<f64>() / n);
        Self { mean, variance }
    }

    /// Moves by a tenth towards the mean and the unbiased variance of a batch. One sample has no such
    /// variance.
    fn moved(&mut self, batch: &[Row]) {
        let (own, n) = (Self::of(batch), batch.len() as f64);
        for at in 0..2 {
            self.mean[at] += 0.1 * (own.mean[at] - self.mean[at]);
            if n > 1.0 {
                self.variance[at] += 0.1 * (own.variance[at] * n / (n - 1.0) - self.variance[at]);
            }
        }
    }

    /// Returns the squared errors of a model that adds the two normalized features.
    fn errors(&self, batch: &[Row]) -> Vec<f64> {
        let feature = |row: &Row, at: usize| {
            (f64::from(row.x[at]) - self.mean[at]) / (self.variance[at] + EPSILON).sqrt()
        };
        let error = |row: &Row| (feature(row, 0) + feature(row, 1) - f64::from(row.y)).powi(2);
        batch.iter().map(error).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Of 9 samples in batches of 4, the last batch has one sample.
#[test]
fn batch_norm_has_the_statistics_of_the_global_batch() {
    let rows = &rows()[..9];
    let mut running = Statistics { mean: [0.0; 2], variance: [1.0; 2] };
    let mut errors = Vec::new();
    for batch in rows.chunks(BATCH) {
        errors.extend(Statistics::of(batch).errors(batch));
        running.moved(batch);
    }
    for (replicas, parts) in [(1, 1), (3, 1), (1, 2)] {
        let what = format!("{replicas} replicas, {parts} parts");
        let data = data(rows);
        let model = Sequential::new().add(BatchNorm::new()).add(Dense::new(1));
        let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(Sgd::new(0.0));
        let builder = builder.global_batch(BATCH).gradient_accumulation(parts).replicas(replicas);
        let mut trainer = build(builder, &data);
        trainer.set_tensor("1.weight", &[1.0, 1.0]).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        assert_near(&what, &[trainer.history()[0].train.loss], &[mean(&errors)]);
        let statistics =
            |trainer: &mut Trainer| ["0.running_mean", "0.running_var"].map(|name| tensor(trainer, name));
        let found = statistics(&mut trainer);
        assert_near(&what, &found[0], &running.mean);
        assert_near(&what, &found[1], &running.variance);
        // Evaluations use them, and leave them as they are.
        let expected = mean(&running.errors(rows));
        for _ in 0..2 {
            assert_near(&what, &[trainer.evaluate(&data).unwrap().loss], &[expected]);
        }
        trainer.predict(&data).unwrap();
        assert_eq!(statistics(&mut trainer), found);
    }
}

/// All samples are the same. Of 16 elements, no two samples of a batch drop the same ones, on whatever
/// replicas they are.
#[test]
fn each_sample_of_each_epoch_has_its_own_dropout() {
    const SIZE: usize = 16;
    let model = || {
        Model::new(|cx, x| {
            let dropped = cx.apply("drop", &Dropout::new(0.5), &x["x"]);
            let all = dropped.gather_batch(SIZE);
            let apart = (dropped.reshape(&[1, SIZE]) - &all.values).abs().sum(&[-1]);
            let is_same = 1.0 - apart.greater(&apart.tape().constant(0.0));
            let twins = (is_same * (1.0 - &all.is_own) * &all.is_there).sum(&[-1]);
            cx.metric("twins", &twins);
            cx.metric("kept", &dropped.mean(&[-1]));
            Outputs::new().with("y", &cx.apply("head", &Dense::new(1), &dropped))
        })
    };
    let mut histories = Vec::new();
    for replicas in REPLICAS {
        let data = Memory::new("x", [SIZE], Values::F32(vec![1.0; 40 * SIZE])).unwrap();
        let data = Loader::new(data.with("y", [1], Values::F32(vec![0.5; 40])).unwrap()).threads(1);
        let builder = Trainer::builder(model()).loss_between("y", "y", MeanSquaredError, 1.0);
        let mut trainer = build(builder.global_batch(SIZE).replicas(replicas), &data);
        trainer.fit(&data, Some(&data), 2).unwrap();
        let [first, second] = [0, 1].map(|epoch| &trainer.history()[epoch]);
        assert_eq!([first, second].map(|epoch| epoch.train.metric("twins").unwrap()), [0.0, 0.0]);
        assert_ne!(first.train.metric("kept"), second.train.metric("kept"));
        // Nothing is dropped in evaluations.
        assert_eq!(first.validation.as_ref().unwrap().metric("kept"), Some(1.0));
        histories.push(trainer.history().clone());
    }
    assert_eq!(histories[0], histories[1]);
}

#[test]
fn augmentation_draws_by_sample_and_epoch_and_not_by_thread() {
    let drawn = |threads: usize, epoch: u32| {
        let same = Memory::new("x", [1], Values::F32(vec![0.0; 40])).unwrap();
        let noisy = Loader::new(same).shuffle(5).threads(threads).batch(8).map("noise", |sample, draws| {
            sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += draws.normal());
        });
        let batches = noisy.epoch(epoch).unwrap().map(Result::unwrap);
        batches.flat_map(|batch| batch.f32("x").unwrap().to_vec()).map(f32::to_bits).collect::<Vec<u32>>()
    };
    let first = drawn(1, 0);
    assert_eq!(first, drawn(4, 0));
    let both: BTreeSet<u32> = first.into_iter().chain(drawn(4, 1)).collect();
    assert_eq!(both.len(), 80, "a draw comes twice");
}

#[test]
fn each_epoch_has_each_sample_once_in_another_order() {
    let indices = |threads: usize, from: Position, end: u32| {
        let data = data(&rows()).shuffle(5).threads(threads).batch(BATCH);
        let batches = data.epochs(from, end).unwrap().map(Result::unwrap);
        batches.flat_map(|batch| batch.indices.clone()).collect::<Vec<u64>>()
    };
    let whole = indices(1, Position::default(), 2);
    let [first, second] = [&whole[..11], &whole[11..]];
    for epoch in [first, second] {
        let all: BTreeSet<u64> = epoch.iter().copied().collect();
        assert_eq!((epoch.len(), all), (11, (0..11).collect()));
    }
    assert_ne!(first, second);
    assert_eq!(indices(4, Position::default(), 2), whole);
    // Behind the first batch of the second epoch, its other samples come, each once.
    assert_eq!(indices(3, Position { epoch: 1, sample: 4 }, 2), second[4..]);
}
