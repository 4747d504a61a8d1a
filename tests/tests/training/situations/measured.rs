//! What losses, metrics and predictions are of, and what is refused or noted.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    Accuracy, BinaryCrossEntropyWithLogits, CrossEntropy, Dense, EarlyStopping, MeanAbsoluteError,
    MeanSquaredError, Plateau, Predictor, R2, ReduceOnPlateau, RootMeanSquaredError, Schedule, Sgd, Trainer,
};

use super::by_hand::Linear;
use super::{BATCH, REPLICAS, SAMPLES, assert_near, build, build_from, data, linear, rows, sgd};
use crate::Notes;

#[test]
fn metrics_are_of_all_samples_and_not_of_batches() {
    let (rows, model) = (rows(), Linear::start());
    let errors: Vec<f64> = rows.iter().map(|row| model.predict(row) - f64::from(row.y)).collect();
    let n = SAMPLES as f64;
    let squares = errors.iter().map(|error| error * error).sum::<f64>();
    let middle = rows.iter().map(|row| f64::from(row.y)).sum::<f64>() / n;
    let spread = rows.iter().map(|row| (f64::from(row.y) - middle).powi(2)).sum::<f64>();
    let absolute = errors.iter().map(|error| error.abs()).sum::<f64>() / n;
    let expected = [squares / n, absolute, (squares / n).sqrt(), 1.0 - squares / spread];
    for replicas in REPLICAS {
        let data = data(&rows);
        let builder = linear(Sgd::new(0.0)).metric(MeanAbsoluteError).metric(RootMeanSquaredError).metric(R2);
        let mut trainer = build_from(&model, builder.replicas(replicas), &data);
        // With a learning rate of 0 both epochs and the validation measure the same model. It is shuffled.
        trainer.fit(&data.clone().shuffle(3), Some(&data), 2).unwrap();
        for epoch in trainer.history() {
            for measured in [&epoch.train, epoch.validation.as_ref().unwrap()] {
                let mut found = vec![measured.loss];
                found.extend(measured.metrics.iter().map(|(_, value)| *value));
                assert_near(&format!("{replicas} replicas, epoch {}", epoch.epoch), &found, &expected);
                assert_eq!(measured.samples, SAMPLES as u64);
            }
        }
    }
}

/// 11 samples in batches of 4: the last 3 are not measured.
#[test]
fn an_evaluation_that_drops_its_last_batch_says_so() {
    let (rows, notes) = (rows(), Notes::default());
    let data = data(&rows);
    let mut trainer =
        build_from(&Linear::start(), linear(Sgd::new(0.0)).replicas(1).observer(notes.clone()), &data);
    let all = trainer.evaluate(&data).unwrap();
    assert!(!notes.has("drop_last"));
    let dropped = trainer.evaluate(&data.clone().drop_last(true)).unwrap();
    assert_eq!([all.samples, dropped.samples], [11, 8]);
    assert_near("of 8 samples", &[dropped.loss], &[Linear::start().loss(&rows[..8])]);
    assert_eq!(notes.all("drop_last").len(), 1, "{:?}", notes.0.lock().unwrap());
    // Data of whole batches lose nothing.
    let notes = Notes::default();
    let whole = super::data(&rows[..8]).drop_last(true);
    let mut trainer =
        build_from(&Linear::start(), linear(Sgd::new(0.0)).replicas(1).observer(notes.clone()), &data);
    trainer.evaluate(&whole).unwrap();
    trainer.fit(&data.clone().drop_last(true), Some(&whole), 1).unwrap();
    assert!(!notes.has("drop_last"));
    // Nor does a fit, whose next epoch has other samples in another order.
    assert_eq!(trainer.predict(&data.clone().drop_last(true)).unwrap().len(), 8);
    assert!(notes.has("note: a prediction used only 8 of 11 samples"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    trainer.export(&path, unisono::checkpoint::WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::builder().replicas(1).batch(BATCH).open(&path).unwrap();
    predictor.predict(&data).unwrap();
    assert_eq!(predictor.report().notes, [""; 0]);
    predictor.predict(&data.clone().drop_last(true)).unwrap();
    assert!(predictor.report().notes[0].contains("drop_last leaves out 3"));
}

/// Transforms before the split are those of both parts.
#[test]
fn an_evaluation_of_augmented_samples_says_so() {
    let noise = |loader: Loader| {
        loader.map("noise", |sample, draws| {
            sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += draws.normal());
        })
    };
    let plain = || {
        data(&rows()).map("scale", |sample, _| {
            sample.f32_mut("x").into_iter().flatten().for_each(|x| *x *= 2.0);
        })
    };
    let told = |train: &Loader, validation: &Loader| {
        let notes = Notes::default();
        let mut trainer = build(linear(sgd()).replicas(1).observer(notes.clone()), train);
        trainer.fit(train, Some(validation), 2).unwrap();
        notes.all("changed at random")
    };
    let (train, validation) = noise(plain()).validation_split(0.3).unwrap();
    let both = told(&train, &validation);
    assert_eq!(both.len(), 1, "{both:?}");
    assert!(both[0].starts_with("note: an evaluation used samples that map 'noise' changed"), "{both:?}");
    let (train, validation) = plain().validation_split(0.3).unwrap();
    assert_eq!(told(&noise(train), &validation), [""; 0]);
}

#[test]
fn targets_of_another_shape_are_refused_and_not_broadcast() {
    let data = Memory::new("x", [2], Values::F32(vec![0.5; 8])).unwrap();
    let data = Loader::new(data.with("y", [], Values::F32(vec![1.0; 4])).unwrap());
    let error = linear(sgd()).build(&data.fields().unwrap()).err().unwrap().to_string();
    assert!(error.contains("[B, 1]") && error.contains("[B]"), "{error}");
}

/// The label 3 is that of the tenth sample, in the third batch.
#[test]
fn a_label_that_is_no_class_is_an_error_that_names_the_sample() {
    let labels = [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0];
    for replicas in REPLICAS {
        let x: Vec<f32> = rows().iter().flat_map(|row| row.x).collect();
        let data = Loader::new(Memory::labelled(x, [2], labels.to_vec()).unwrap()).threads(1);
        let builder = Trainer::builder(Dense::new(3)).loss(CrossEntropy::new()).metric(Accuracy);
        let mut trainer = build(builder.global_batch(BATCH).replicas(replicas), &data);
        let error = trainer.fit(&data, None, 1).err().unwrap().to_string();
        assert!(error.contains("label 3 is not in 0..3") && error.contains("sample 9"), "{error}");
        assert_eq!(trainer.steps(), 2, "the batches before it were trained on");
    }
}

#[test]
fn a_metric_that_is_watched_in_the_wrong_direction_is_noted() {
    let data = data(&rows());
    let told = |set: &dyn Fn(unisono::Builder) -> unisono::Builder| {
        let trainer = build(set(linear(sgd()).metric(R2).metric(MeanAbsoluteError).replicas(1)), &data);
        let notes = trainer.notes().iter().filter(|note| note.contains("values are better"));
        notes.cloned().collect::<Vec<String>>()
    };
    let plateau = |plateau: Plateau| ReduceOnPlateau::new(plateau);
    let on_schedule = |plateau: Plateau| {
        let rate = Schedule::constant(0.1).reduce_on(plateau);
        move |builder: unisono::Builder| builder.optimizer(Sgd::new(rate.clone()))
    };
    let expected = |who: &str| {
        format!("warning: {who} takes the lowest r2 to be the best, and higher values are better")
    };
    assert_eq!(told(&|builder| builder.callback(EarlyStopping::lowest("r2"))), [expected("early stopping")]);
    assert_eq!(
        told(&|builder| builder.callback(plateau(Plateau::lowest("r2")))),
        [expected("reduce on plateau")]
    );
    assert_eq!(told(&on_schedule(Plateau::lowest("r2"))), [expected("the schedule of the learning rate")]);
    let highest = told(&|builder| builder.callback(EarlyStopping::highest("loss")));
    assert_eq!(highest.len(), 1, "{highest:?}");
    for right in [EarlyStopping::highest("r2"), EarlyStopping::lowest("mean absolute error")] {
        assert_eq!(told(&|builder| builder.callback(right.clone())), [""; 0]);
    }
    assert_eq!(told(&on_schedule(Plateau::lowest("loss"))), [""; 0]);
    assert_eq!(told(&on_schedule(Plateau::highest("r2"))), [""; 0]);
}

#[test]
fn rows_of_predictions_are_those_of_the_samples_in_order() {
    let (rows, model) = (rows(), Linear::start());
    let expected: Vec<f64> = rows.iter().map(|row| model.predict(row)).collect();
    for replicas in REPLICAS {
        let data = data(&rows).threads(4);
        let mut trainer = build_from(&model, linear(sgd()).replicas(replicas), &data);
        let found: Vec<f64> = trainer.predict(&data).unwrap().into_iter().map(f64::from).collect();
        assert_near(&format!("{replicas} replicas"), &found, &expected);
    }
}

/// A sample that is missing would move all rows behind it.
#[test]
fn a_bad_sample_does_not_move_rows_of_predictions() {
    let mut rows = rows();
    rows[4].x[0] = f32::NAN;
    let data = data(&rows).require_finite().skip_bad(2);
    let mut trainer = build(linear(sgd()).loss(MeanSquaredError).replicas(1), &data);
    let error = trainer.predict(&data).err().unwrap();
    assert!(error.to_string().contains("so rows would not match its samples"), "{error}");
    let strict = super::data(&rows).require_finite();
    let error = trainer.evaluate(&strict).err().unwrap().to_string();
    assert!(error.contains("sample 4") && error.contains("NaN"), "{error}");
}

/// The sixth sample has it, in the second batch.
#[test]
fn weights_and_targets_that_mean_nothing_are_errors_that_name_the_sample() {
    for (bad, named) in [
        (-1.0, "its weight is negative"),
        (f32::NAN, "field \"w\" holds NaN"),
        (f32::INFINITY, "field \"w\" holds inf"),
    ] {
        let mut rows = rows();
        rows[0].weight = 0.5;
        rows[5].weight = bad;
        let data = data(&rows);
        let mut trainer = build(linear(sgd()).replicas(1), &data);
        let error = trainer.fit(&data, None, 1).err().unwrap().to_string();
        assert!(error.contains("sample 5") && error.contains(named), "a weight {bad}: {error}");
    }
    for bad in [-1.0, 2.0, f32::NAN] {
        let mut rows = rows();
        rows.iter_mut().for_each(|row| row.y = 1.0);
        rows[5].y = bad;
        let data = data(&rows);
        let builder = Trainer::builder(Dense::new(1)).loss(BinaryCrossEntropyWithLogits).optimizer(sgd());
        let mut trainer = build(builder.global_batch(BATCH).replicas(1), &data);
        let error = trainer.fit(&data, None, 1).err().unwrap().to_string();
        assert!(error.contains("sample 5"), "a target {bad}: {error}");
    }
}
