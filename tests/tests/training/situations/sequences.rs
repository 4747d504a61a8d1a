//! Sequences: state from batch to batch, and masks. The reference is a model without the difficulty: over the
//! whole sequence, or over a sequence without padding.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    Dense, EvaluateEvery, Layer, Lstm, MeanSquaredError, Model, MultiHeadAttention, Outputs, Sequential, Sgd,
    Trainer,
};
use unisono_random::Draws;

use super::{assert_near, build, tensor};

fn drawn(count: usize, seed: u64) -> Vec<f32> {
    let mut draws = Draws::of(seed, "test", "situations", 0, 0);
    (0..count).map(|_| draws.normal()).collect()
}

/// Two sequences of 12 numbers, in windows of this length.
fn windows(length: usize, seed: u64) -> Loader {
    let data = Memory::new("x", [length, 1], Values::F32(drawn(24, seed))).unwrap();
    let y = drawn(24, seed + 1);
    Loader::new(data.with("y", [length, 1], Values::F32(y)).unwrap()).threads(1)
}

fn recurrent(layer: impl Layer + 'static, replicas: usize, data: &Loader) -> Trainer {
    let model = Sequential::new().add(layer).add(Dense::new(1));
    let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(Sgd::new(0.1)).seed(2);
    build(builder.global_batch(2).shards(2).replicas(replicas), data)
}

/// Gives a trainer the tensors of another.
fn copy(from: &mut Trainer, to: &mut Trainer) {
    for (name, _) in from.tensors() {
        let values = from.tensor(&name).unwrap().unwrap();
        to.set_tensor(&name, &values).unwrap();
    }
}

/// Each batch has a window of both sequences: the windows 0 and 3, 1 and 4, 2 and 5.
#[test]
fn a_stateful_layer_over_windows_is_one_over_the_whole_sequence() {
    let (short, whole) = (windows(4, 3).lanes(), windows(12, 3));
    let mut reference = recurrent(Lstm::new(3), 1, &whole);
    let expected = reference.predict(&whole).unwrap();
    let loss = reference.evaluate(&whole).unwrap().loss;
    for replicas in [1, 2] {
        let mut trainer = recurrent(Lstm::new(3).stateful(), replicas, &short);
        copy(&mut reference, &mut trainer);
        // Twice: each prediction begins anew.
        for _ in 0..2 {
            let found = trainer.predict(&short).unwrap();
            for (row, window) in found.chunks(4).zip([0, 3, 1, 4, 2, 5]) {
                let of = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
                let what = format!("{replicas} replicas, window {window}");
                assert_near(&what, &of(row), &of(&expected[4 * window..4 * (window + 1)]));
            }
            assert_near("the loss", &[trainer.evaluate(&short).unwrap().loss], &[loss]);
        }
    }
}

#[test]
fn evaluations_between_the_steps_leave_the_state_of_training_alone() {
    let train = windows(4, 3).lanes();
    let run = |evaluates: bool, replicas: usize| {
        let held_out = windows(4, 8).lanes();
        let model = Sequential::new().add(Lstm::new(3).stateful()).add(Dense::new(1));
        let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(Sgd::new(0.1)).seed(2);
        let builder = builder.global_batch(2).shards(2).replicas(replicas);
        let builder = match evaluates {
            true => builder.callback(EvaluateEvery::steps(1, &held_out)),
            false => builder,
        };
        let mut trainer = build(builder, &train);
        trainer.fit(&train, evaluates.then_some(&held_out), 2).unwrap();
        let names: Vec<String> = trainer.tensors().into_iter().map(|(name, _)| name).collect();
        let losses: Vec<f64> = trainer.history().iter().map(|epoch| epoch.train.loss).collect();
        (names.iter().map(|name| tensor(&mut trainer, name)).collect::<Vec<_>>(), losses)
    };
    let expected = run(false, 1);
    for replicas in [1, 2] {
        assert_eq!(run(true, replicas), expected);
    }
}

/// Three sequences of 2, 4 and 3 numbers, padded with something to a length.
fn padded(length: usize, fill: f32, lengths: &[usize]) -> Loader {
    let (mut x, mut mask, numbers) = (vec![], vec![], drawn(12, 5));
    for (row, &own) in lengths.iter().enumerate() {
        x.extend((0..length).map(|at| if at < own { numbers[4 * row + at] } else { fill }));
        mask.extend((0..length).map(|at| f32::from(u8::from(at < own))));
    }
    let data = Memory::new("x", [length, 1], Values::F32(x)).unwrap();
    let data = data.with("mask", [length], Values::F32(mask)).unwrap();
    Loader::new(data.with("y", [1], Values::F32(vec![0.0; lengths.len()])).unwrap()).threads(1)
}

/// Returns predictions of a model for each of three sequences: padded with numbers, with other numbers, and
/// on their own without padding.
fn three_ways(model: impl Fn() -> Model) -> [Vec<f64>; 3] {
    let lengths = [2, 4, 3];
    let built = |data: &Loader| {
        let builder = Trainer::builder(model()).loss_between("y", "y", MeanSquaredError, 1.0).seed(4);
        build(builder.global_batch(3).shards(3).replicas(1), data)
    };
    let mut trainer = built(&padded(6, 0.0, &lengths));
    let [zeros, garbage] = [0.0, 1e4].map(|fill| trainer.predict(&padded(6, fill, &lengths)).unwrap());
    let alone = (0..3).flat_map(|row| {
        let length = lengths[row];
        let mut own = vec![1; 3];
        own[row] = length;
        let data = padded(length, 0.0, &own);
        let mut alone = built(&data);
        copy(&mut trainer, &mut alone);
        alone.predict(&data).unwrap()[row..row + 1].to_vec()
    });
    let alone: Vec<f32> = alone.collect();
    [zeros, garbage, alone].map(|values| values.into_iter().map(f64::from).collect())
}

#[test]
fn a_backward_layer_begins_at_the_end_of_the_sequence_and_not_of_the_padding() {
    let [zeros, garbage, alone] = three_ways(|| {
        Model::new(|cx, x| {
            let lstm = Lstm::new(3).layers(2).bidirectional().last();
            let state = cx.within("lstm", "lstm", |cx| lstm.masked(cx, &x["x"], Some(&x["mask"])));
            Outputs::new().with("y", &cx.apply("head", &Dense::new(1), &state))
        })
    });
    assert_eq!(zeros, garbage);
    assert_near("without padding", &zeros, &alone);
}

#[test]
fn attention_does_not_read_padding() {
    let [zeros, garbage, alone] = three_ways(|| {
        Model::new(|cx, x| {
            let wide = cx.apply("wide", &Dense::new(4), &x["x"]);
            let attention = MultiHeadAttention::new(2);
            let y = cx
                .within("attention", "attention", |cx| attention.attend(cx, &wide, &wide, Some(&x["mask"])));
            let first = y.slice(1, 0..1).flatten();
            Outputs::new().with("y", &cx.apply("head", &Dense::new(1), &first))
        })
    });
    assert_eq!(zeros, garbage);
    assert_near("without padding", &zeros, &alone);
}

/// The second text has no token at all. It may not make anything of the others NaN, forward or back.
#[test]
fn a_sequence_without_any_token_spoils_nothing() {
    let data = padded(4, 0.0, &[2, 0, 3]);
    let model = Model::new(|cx, x| {
        let wide = cx.apply("wide", &Dense::new(4), &x["x"]);
        let attention = MultiHeadAttention::new(2);
        let y =
            cx.within("attention", "attention", |cx| attention.attend(cx, &wide, &wide, Some(&x["mask"])));
        let lstm = Lstm::new(3).bidirectional().last();
        let state = cx.within("lstm", "lstm", |cx| lstm.masked(cx, &y, Some(&x["mask"])));
        Outputs::new().with("y", &cx.apply("head", &Dense::new(1), &state))
    });
    let builder = Trainer::builder(model).loss_between("y", "y", MeanSquaredError, 1.0);
    let mut trainer = build(builder.optimizer(Sgd::new(0.1)).global_batch(3).replicas(1), &data);
    trainer.fit(&data, Some(&data), 2).unwrap();
    let found = trainer.predict(&data).unwrap();
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
}
