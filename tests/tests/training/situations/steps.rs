//! What a step minimises, and what it changes.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    AdamW, Builder, CrossEntropy, Dense, Embedding, Initializer, MeanSquaredError, Model, Optimizer, Outputs,
    Schedule, Sequential, Sgd, Trainer,
};

use super::by_hand::{CLASSES, Labelled, Linear, Row, Softmax};
use super::{
    BATCH, RATE, REPLICAS, SAMPLES, assert_is, assert_near, build, build_from, data, linear, rows, sgd,
    tensor,
};
use crate::sha256;

#[test]
fn a_last_batch_that_is_smaller_counts_by_its_samples() {
    let rows = rows();
    let mut expected = Linear::start();
    let losses = [0, 1].map(|_| expected.train(&rows, BATCH, RATE));
    for replicas in REPLICAS {
        let data = data(&rows);
        let mut trainer = build_from(&Linear::start(), linear(sgd()).replicas(replicas), &data);
        trainer.fit(&data, None, 2).unwrap();
        assert_is(&format!("{replicas} replicas"), &mut trainer, &expected);
        let found: Vec<f64> = trainer.history().iter().map(|epoch| epoch.train.loss).collect();
        assert_near("the losses of epochs", &found, &losses);
        assert_eq!(trainer.history()[0].train.samples, SAMPLES as u64);
    }
}

#[test]
fn a_batch_larger_than_the_data_and_replicas_without_samples_change_nothing() {
    let rows = &rows()[..3];
    let mut expected = Linear::start();
    expected.train(rows, 64, RATE);
    for replicas in [1, 5] {
        let data = data(rows);
        let builder = linear(sgd()).global_batch(64).replicas(replicas);
        let mut trainer = build_from(&Linear::start(), builder, &data);
        trainer.fit(&data, None, 1).unwrap();
        assert_is(&format!("{replicas} replicas"), &mut trainer, &expected);
    }
}

/// The weights of the second batch are 0: nothing moves, whatever momentum and decay would do.
#[test]
fn weights_of_samples_are_divided_by_their_sum_over_all_replicas() {
    let weights = [0.5, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.25];
    let rows: Vec<Row> = rows().into_iter().zip(weights).map(|(row, weight)| Row { weight, ..row }).collect();
    let mut expected = Linear::start();
    let loss = expected.train(&rows, BATCH, RATE);
    for replicas in REPLICAS {
        let data = data(&rows);
        let mut trainer = build_from(&Linear::start(), linear(sgd()).replicas(replicas), &data);
        trainer.fit(&data, None, 1).unwrap();
        assert_is(&format!("{replicas} replicas"), &mut trainer, &expected);
        assert_near("the loss", &[trainer.history()[0].train.loss], &[loss]);
        let heavy = Sgd::new(RATE).momentum(0.9).weight_decay(0.5);
        let mut trainer = build_from(&Linear::start(), linear(heavy).replicas(replicas), &data);
        let batches: Vec<_> = data.clone().batch(BATCH).epoch(0).unwrap().map(Result::unwrap).collect();
        trainer.step(&batches[0]).unwrap();
        let before = tensor(&mut trainer, "weight");
        assert!(!trainer.step(&batches[1]).unwrap().committed);
        assert_eq!(tensor(&mut trainer, "weight"), before);
    }
}

/// Returns data with one label for each row, and a softmax regression over it.
fn labelled(labels: &[i32]) -> Loader {
    let x = rows().iter().flat_map(|row| row.x).collect::<Vec<f32>>();
    Loader::new(Memory::labelled(x, [2], labels.to_vec()).unwrap()).threads(1)
}

fn softmax(loss: CrossEntropy, data: &Loader, set: impl FnOnce(Builder) -> Builder) -> Trainer {
    let builder = Trainer::builder(Dense::new(CLASSES)).loss(loss).optimizer(sgd()).global_batch(BATCH);
    let mut trainer = build(set(builder), data);
    let (weight, bias) = Softmax::start().values();
    trainer.set_tensor("weight", &weight).unwrap();
    trainer.set_tensor("bias", &bias).unwrap();
    trainer
}

fn assert_is_softmax(what: &str, trainer: &mut Trainer, expected: &Softmax) {
    assert_near(what, &tensor(trainer, "weight"), expected.weight.as_flattened());
    assert_near(what, &tensor(trainer, "bias"), &expected.bias);
}

#[test]
fn weights_of_classes_are_divided_by_their_sum_over_all_replicas() {
    let labels = [0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0];
    let weights = [0.25, 3.0, 8.0];
    let all: Vec<Labelled> = rows()
        .iter()
        .zip(labels)
        .map(|(row, label)| Labelled { x: row.x, label, weight: f64::from(weights[label]) })
        .collect();
    let mut expected = Softmax::start();
    all.chunks(BATCH).for_each(|batch| expected.descend(batch, RATE));
    for replicas in REPLICAS {
        let data = labelled(&labels.map(|label| label as i32));
        let set = |builder: Builder| builder.class_weights(weights).replicas(replicas);
        let mut trainer = softmax(CrossEntropy::new(), &data, set);
        trainer.fit(&data, None, 1).unwrap();
        assert_is_softmax(&format!("{replicas} replicas"), &mut trainer, &expected);
    }
}

/// Texts of 1, 6, 2, 0, 5 and 1 tokens. The mean is over all tokens of a global batch.
#[test]
fn tokens_that_are_ignored_count_nowhere_under_accumulation_too() {
    const TOKENS: usize = 6;
    let lengths = [1, 6, 2, 0, 5, 1];
    let mut draws = unisono_random::Draws::of(9, "test", "situations", 0, 0);
    let (mut x, mut y, mut texts) = (vec![], vec![], vec![]);
    for length in lengths {
        let mut text = Vec::new();
        for at in 0..TOKENS {
            let own = [draws.normal(), draws.normal()];
            let label = draws.below(CLASSES as u32) as usize;
            x.extend(own);
            y.push(if at < length { label as i32 } else { -100 });
            text.extend((at < length).then_some(Labelled { x: own, label, weight: 1.0 }));
        }
        texts.push(text);
    }
    let mut expected = Softmax::start();
    texts.chunks(BATCH).for_each(|batch| expected.descend(&batch.concat(), RATE));
    let data = Memory::new("x", [TOKENS, 2], Values::F32(x)).unwrap();
    let data = Loader::new(data.with("y", [TOKENS], Values::I32(y)).unwrap()).threads(1);
    let mut states = Vec::new();
    for (replicas, parts) in [(1, 1), (3, 1), (1, 4), (2, 2)] {
        let loss = CrossEntropy::new().ignore_index(-100);
        let set = |builder: Builder| builder.gradient_accumulation(parts).replicas(replicas);
        let mut trainer = softmax(loss, &data, set);
        trainer.fit(&data, None, 1).unwrap();
        assert_is_softmax(&format!("{replicas} replicas, {parts} parts"), &mut trainer, &expected);
        states.push(sha256(&mut trainer));
    }
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
}

#[test]
fn accumulation_with_a_ragged_last_batch_has_the_bits_of_whole_batches() {
    let (rows, mut states) = (rows(), Vec::new());
    let mut expected = Linear::start();
    expected.train(&rows, 5, RATE);
    for (replicas, parts) in [(1, 1), (1, 2), (1, 5), (3, 2)] {
        let data = data(&rows);
        let builder = linear(sgd()).global_batch(5).gradient_accumulation(parts).replicas(replicas);
        let mut trainer = build_from(&Linear::start(), builder, &data);
        trainer.fit(&data, None, 1).unwrap();
        assert_is(&format!("{parts} parts"), &mut trainer, &expected);
        assert_eq!(trainer.steps(), 3, "a step is a global batch, whatever its parts");
        states.push(sha256(&mut trainer));
    }
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
}

#[test]
fn a_penalty_counts_once_a_step() {
    let rows = rows();
    let model = || {
        Model::new(|cx, x| {
            let weight = cx.parameter("weight", &[1, 2], Initializer::Zeros);
            let bias = cx.parameter("bias", &[1], Initializer::Zeros);
            cx.penalty(&(weight.square().reshape(&[2]).sum(&[-1]) * 0.5));
            Outputs::new().with("y", &(x["x"].matmul_t(&weight) + bias))
        })
    };
    let mut expected = Linear::start();
    let (mut losses, mut penalties) = (vec![], vec![]);
    for batch in rows.chunks(BATCH) {
        losses.extend(batch.iter().map(|row| (expected.loss(&[*row]), 1.0)));
        penalties.push((0.5 * expected.weight.map(|w| w * w).iter().sum::<f64>(), 1.0));
        let mut gradient = expected.gradient(batch);
        (0..2).for_each(|at| gradient[at] += expected.weight[at]);
        expected.descend(gradient, RATE);
    }
    let loss = super::by_hand::mean(losses.into_iter()) + super::by_hand::mean(penalties.into_iter());
    for replicas in REPLICAS {
        let data = data(&rows);
        let builder =
            Trainer::builder(model()).loss_between("y", "y", MeanSquaredError, 1.0).optimizer(sgd());
        let builder = builder.global_batch(BATCH).replicas(replicas);
        let mut trainer = build_from(&Linear::start(), builder, &data);
        trainer.fit(&data, None, 1).unwrap();
        assert_is(&format!("{replicas} replicas"), &mut trainer, &expected);
        assert_near("the loss", &[trainer.history()[0].train.loss], &[loss]);
    }
}

#[test]
fn gradients_are_clipped_by_the_norm_of_the_whole_batch() {
    let (rows, most) = (rows(), 0.2_f64);
    let mut expected = Linear::start();
    let mut clipped = 0;
    for batch in rows.chunks(BATCH) {
        let gradient = expected.gradient(batch);
        let norm = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
        clipped += usize::from(norm > most);
        expected.descend(gradient.map(|x| x * (most / norm).min(1.0)), RATE);
    }
    assert!(clipped > 0);
    for (replicas, parts) in [(1, 1), (3, 1), (1, 2)] {
        let data = data(&rows);
        let builder = linear(sgd().clip_norm(most as f32)).gradient_accumulation(parts).replicas(replicas);
        let mut trainer = build_from(&Linear::start(), builder, &data);
        trainer.fit(&data, None, 1).unwrap();
        assert_is(&format!("{replicas} replicas, {parts} parts"), &mut trainer, &expected);
    }
}

/// y = w a + w b: the gradient of the weight is the sum of those of both uses, and its norm counts it once.
#[test]
fn a_layer_that_is_applied_twice_has_the_gradients_of_both() {
    let rows = rows();
    let (mut weight, most) = (0.5_f64, 0.3_f64);
    for batch in rows.chunks(BATCH) {
        let of = |row: &Row| {
            let sum = f64::from(row.x[0]) + f64::from(row.x[1]);
            (2.0 * (weight * sum - f64::from(row.y)) * sum, 1.0)
        };
        let gradient = super::by_hand::mean(batch.iter().map(of));
        weight -= RATE * gradient.clamp(-most, most);
    }
    let tower = || {
        Model::new(|cx, x| {
            let layer = Dense::new(1).no_bias();
            let [a, b] = [0..1, 1..2].map(|at| cx.apply("tower", &layer, &x["x"].slice(-1, at)));
            Outputs::new().with("y", &(a + b))
        })
    };
    for replicas in REPLICAS {
        let data = data(&rows);
        let builder = Trainer::builder(tower()).loss_between("y", "y", MeanSquaredError, 1.0);
        let builder = builder.optimizer(sgd().clip_norm(most as f32)).global_batch(BATCH).replicas(replicas);
        let mut trainer = build(builder, &data);
        assert_eq!(trainer.tensors(), [("tower.weight".to_owned(), vec![1, 1])]);
        trainer.set_tensor("tower.weight", &[0.5]).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        assert_near(&format!("{replicas} replicas"), &tensor(&mut trainer, "tower.weight"), &[weight]);
    }
}

/// Each sample has three ids, of which some are the same, and so have samples of other replicas.
#[test]
fn ids_that_come_twice_have_the_gradients_of_both() {
    let ids: [[i32; 3]; 5] = [[1, 1, 1], [0, 1, 2], [2, 2, 0], [1, 0, 1], [2, 2, 2]];
    let targets = [0.5_f32, -1.0, 2.0, 0.25, 1.5];
    let mut table = [0.5_f64, -0.25, 1.0, 0.75];
    for batch in [0..4, 4..5] {
        let mut gradient = [0.0; 4];
        for at in batch.clone() {
            let error = ids[at].iter().map(|&id| table[id as usize]).sum::<f64>() - f64::from(targets[at]);
            for &id in &ids[at] {
                gradient[id as usize] += 2.0 * error / batch.len() as f64;
            }
        }
        table.iter_mut().zip(gradient).for_each(|(row, gradient)| *row -= RATE * gradient);
    }
    let data = Memory::new("x", [3], Values::I32(ids.concat())).unwrap();
    let data = Loader::new(data.with("y", [1], Values::F32(targets.to_vec())).unwrap()).threads(1);
    for replicas in REPLICAS {
        let sum = unisono::FromFn::new("sum", |_, x: &unisono::Var| x.flatten().sum_keep(&[-1]));
        let model = Sequential::new().add(Embedding::new(4, 1)).add(sum);
        let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(sgd()).global_batch(BATCH);
        let mut trainer = build(builder.replicas(replicas), &data);
        trainer.set_tensor("0.weight", &[0.5, -0.25, 1.0, 0.75]).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        assert_near(&format!("{replicas} replicas"), &tensor(&mut trainer, "0.weight"), &table);
    }
}

#[test]
fn a_learning_rate_is_that_of_a_step_whatever_replicas_and_parts_there_are() {
    let rows = rows();
    let mut expected = Linear::start();
    for (step, batch) in rows.chunks(BATCH).chain(rows.chunks(BATCH)).enumerate() {
        expected.descend(expected.gradient(batch), if step < 2 { 0.2 } else { 0.02 });
    }
    let rate = || Schedule::function(|step| if step < 2 { 0.2 } else { 0.02 }).named("drop", 1);
    for (replicas, parts) in [(1, 1), (3, 1), (1, 2)] {
        let data = data(&rows);
        let builder = linear(Sgd::new(rate())).gradient_accumulation(parts).replicas(replicas);
        let mut trainer = build_from(&Linear::start(), builder, &data);
        trainer.fit(&data, None, 2).unwrap();
        assert_is(&format!("{replicas} replicas, {parts} parts"), &mut trainer, &expected);
    }
}

#[test]
fn frozen_and_unused_parameters_stay_under_decay_and_momentum() {
    let model = || {
        Model::new(|cx, x| {
            let hidden = cx.apply("base", &Dense::new(2), &x["x"]);
            let unused = cx.apply("unused", &Dense::new(1), &hidden);
            let y = cx.apply("head", &Dense::new(1), &hidden);
            Outputs::new().with("y", &y).with("unused", &unused)
        })
    };
    for replicas in REPLICAS {
        let data = data(&rows());
        let rule = AdamW::new(0.1).weight_decay(0.5).freeze(|name| name.starts_with("base."));
        let builder = Trainer::builder(model()).loss_between("y", "y", MeanSquaredError, 1.0).optimizer(rule);
        let mut trainer = build(builder.global_batch(BATCH).replicas(replicas), &data);
        let note = "no loss depends on unused.weight, unused.bias: training does not change them";
        assert!(trainer.notes().iter().any(|own| own == note), "{:?}", trainer.notes());
        let names = ["base.weight", "base.bias", "unused.weight", "head.weight"];
        let before = names.map(|name| tensor(&mut trainer, name));
        trainer.fit(&data, None, 2).unwrap();
        let after = names.map(|name| tensor(&mut trainer, name));
        assert_eq!(before[..3], after[..3]);
        assert_ne!(before[3], after[3]);
    }
}
