//! Metrics over a whole data set: the same bits on any number of replicas, over a kill in the middle of an
//! epoch, and in a second program that goes on.

use std::path::Path;

use unisono::checkpoint::{Store, load, newest};
use unisono::data::{Loader, Memory, Values};
use unisono::{
    Accuracy, Auc, Builder, ConfusionMatrix, CosineSimilarity, Dense, Epoch, F1, FBeta, Iou, Matthews,
    MeanAbsoluteError, MeanSquaredError, Metric, MetricKind, MetricState, MetricValue, Observer, Perplexity,
    PrecisionScore, R2, RecallScore, Reduction, RootMeanSquaredError, SampleValues, Saving, Sgd, Step, Stop,
    TopKAccuracy, Trainer, Var,
};
use unisono_tests::{CLASSES, loader, perceptron};

/// Returns a builder of a model of [`loader`]'s classes with every metric of classes.
fn classes() -> Builder {
    perceptron(5)
        .metric(TopKAccuracy::new(2))
        .metric(PrecisionScore::macro_average(CLASSES))
        .metric(RecallScore::weighted_average(CLASSES))
        .metric(F1::micro_average(CLASSES))
        .metric(FBeta::of_class(CLASSES, 2).beta(0.5))
        .metric(Iou::macro_average(CLASSES))
        .metric(Matthews::new(CLASSES))
        .metric(ConfusionMatrix::new(CLASSES))
        .metric(Auc::roc().one_vs_rest(CLASSES))
        .metric(Auc::pr().one_vs_rest(CLASSES))
        .metric(Perplexity::new())
}

/// Returns samples with targets of 0 and 1, and weights.
fn weighted(samples: usize) -> Loader {
    let x: Vec<f32> = (0..samples * 2).map(|i| ((i * i + 3 * i) % 17) as f32 / 8.0 - 1.0).collect();
    let y: Vec<f32> = (0..samples).map(|i| f32::from((i * i) % 5 < 2)).collect();
    let w: Vec<f32> = (0..samples).map(|i| (i % 4) as f32 / 2.0).collect();
    let source = Memory::new("x", [2], Values::F32(x)).unwrap().with("y", [1], Values::F32(y)).unwrap();
    Loader::new(source.with("w", [], Values::F32(w)).unwrap()).shuffle(3).threads(1)
}

/// Returns a builder of a regression on [`weighted`] with every metric of one output, and one of a user.
fn outputs() -> Builder {
    Trainer::builder(Dense::new(1))
        .loss(MeanSquaredError)
        .optimizer(Sgd::new(0.05))
        .metric(MeanSquaredError)
        .metric(MeanAbsoluteError)
        .metric(RootMeanSquaredError)
        .metric(R2)
        .metric(CosineSimilarity)
        .metric(Auc::roc())
        .metric(Auc::pr())
        .metric(F1::binary().probabilities().threshold(0.3))
        .metric(PrecisionScore::binary().probabilities().threshold(0.6))
        .metric(Matthews::binary().probabilities())
        .metric(ConfusionMatrix::binary().probabilities())
        .metric(MaxError)
}

/// The largest absolute error of all samples, and how often it grew.
struct MaxError;

impl Metric for MaxError {
    fn name(&self) -> &str {
        "max error"
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        (output - target).abs()
    }
    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for MaxError {
    fn start(&self, _: usize) -> MetricState {
        MetricState::zeros(2)
    }
    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        let error = f64::from(sample.values[0]);
        if error > state.sums[0] {
            state.sums = vec![error, state.sums[1] + 1.0];
        }
    }
    fn finish(&self, state: &MetricState) -> MetricValue {
        (state.sums[0] + 1000.0 * state.sums[1]).into()
    }
}

/// A builder, with the data that it is trained on and evaluated on.
type Task = (fn() -> Builder, Loader, Loader);

fn tasks() -> [Task; 2] {
    [(classes, loader(26, 5).unwrap(), loader(11, 6).unwrap()), (outputs, weighted(26), weighted(11))]
}

/// Asks a run to stop after some steps.
struct StopAfter(u64, Stop);

impl Observer for StopAfter {
    fn step(&mut self, step: &Step) {
        if step.step + 1 == self.0 {
            self.1.ask();
        }
    }
}

fn built(builder: fn() -> Builder, data: &Loader, replicas: usize, stop: Option<StopAfter>) -> Trainer {
    let mut builder = builder().global_batch(8).shards(8).replicas(replicas).digest_every(1);
    if let Some(stop) = stop {
        builder = builder.observer(stop);
    }
    builder.build(&data.fields().unwrap()).unwrap()
}

/// Returns all that a run measured, as the bytes of its history, with the tables of a last evaluation.
fn measured(trainer: &mut Trainer, held_out: &Loader) -> (String, String, String) {
    let last = trainer.evaluate(held_out).unwrap();
    let tables = format!("{:?}", last.tables);
    (serde_json::to_string(trainer.history()).unwrap(), tables, trainer.state_sha256().unwrap())
}

#[test]
fn replicas_and_a_kill_amid_an_epoch_do_not_show_in_metrics() {
    for (builder, train, held_out) in tasks() {
        let mut whole = built(builder, &train, 1, None);
        whole.fit(&train, Some(&held_out), 2).unwrap();
        let expected = measured(&mut whole, &held_out);
        assert!(!expected.0.contains("NaN"), "{}", expected.0);
        for replicas in [2, 3, 7] {
            let mut trainer = built(builder, &train, replicas, None);
            trainer.fit(&train, Some(&held_out), 2).unwrap();
            assert_eq!(measured(&mut trainer, &held_out), expected, "{replicas} replicas");
        }
        // Four steps make an epoch, so the checkpoint is within the second one.
        let dir = tempfile::tempdir().unwrap();
        let stop = Stop::new();
        let mut first = built(builder, &train, 2, Some(StopAfter(6, stop.clone())));
        first.stop_on(&stop);
        first.checkpoints(dir.path(), 0).unwrap();
        first.fit(&train, Some(&held_out), 2).unwrap();
        drop(first);
        // A second program is killed: of its steps nothing is saved.
        let mut killed = built(builder, &train, 1, None);
        killed.checkpoints(dir.path(), 0).unwrap();
        killed.resume().unwrap();
        for batch in train.clone().batch(8).epoch(0).unwrap().take(1) {
            killed.step(&batch.unwrap()).unwrap();
        }
        drop(killed);
        let mut second = built(builder, &train, 3, None);
        second.checkpoints(dir.path(), 0).unwrap();
        assert_eq!(second.resume().unwrap().unwrap().step, 6);
        second.fit(&train, Some(&held_out), 2).unwrap();
        assert_eq!(measured(&mut second, &held_out), expected, "over the kill");
    }
}

/// Copies the newest checkpoint to another directory with a change of `trainer.json`.
fn changed(from: &Path, to: &Path, change: impl Fn(&mut serde_json::Value)) {
    let saved = newest(from).unwrap().unwrap();
    let (step, mut contents) = load(&saved.path).unwrap();
    change(&mut contents.trainer);
    Store::open(to).unwrap().save(step, &contents).unwrap();
}

#[test]
fn states_of_metrics_that_do_not_fit_are_refused_and_old_sums_are_read() {
    let (train, dir) = (loader(26, 5).unwrap(), tempfile::tempdir().unwrap());
    let build = || {
        let builder = Trainer::builder(Dense::new(CLASSES)).metric(Accuracy).global_batch(8).replicas(1);
        builder.build(&train.fields().unwrap()).unwrap()
    };
    let mut whole = build();
    whole.fit(&train, None, 1).unwrap();
    let mut first = build();
    first.checkpoints(dir.path(), 0).unwrap();
    for batch in train.clone().batch(8).epoch(0).unwrap().take(3) {
        first.step(&batch.unwrap()).unwrap();
    }
    first.save().unwrap();
    drop(first);
    let resumed = |change: &dyn Fn(&mut serde_json::Value)| {
        let other = tempfile::tempdir().unwrap();
        changed(dir.path(), other.path(), |trainer| change(&mut trainer["sections"]["running"]));
        let mut second = build();
        second.checkpoints(other.path(), 0).unwrap();
        assert_eq!(second.resume().map_err(|error| error.to_string())?.unwrap().step, 3);
        second.fit(&train, None, 1).unwrap();
        Ok::<_, String>(second.history().clone())
    };
    assert_eq!(resumed(&|_| {}).unwrap(), *whole.history());
    // Version 1 had the sums of means alone.
    let old = |running: &mut serde_json::Value| {
        running["version"] = 1.into();
        let sum = running["value"]["metrics"][0]["sums"][0].take();
        running["value"]["metrics"] = serde_json::json!([sum]);
    };
    assert_eq!(resumed(&old).unwrap(), *whole.history());
    let more = |running: &mut serde_json::Value| {
        running["value"]["metrics"][0]["sums"] = serde_json::json!([1.0, 2.0, 3.0]);
    };
    let problem = resumed(&more).unwrap_err();
    assert!(problem.ends_with("the metric \"accuracy\" of the run has 3 sums, not 2"), "{problem}");
    let problem = resumed(&|running| running["value"]["metrics"] = serde_json::json!([])).unwrap_err();
    assert!(problem.ends_with("the run has the states of 0 metrics, not 1"), "{problem}");
}

/// Keeps a million values of each sample, and has more sums than a list of JSON could have.
struct Large;

impl Metric for Large {
    fn name(&self) -> &str {
        "large"
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        (output - target).abs()
    }
    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for Large {
    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(7 << 20)
    }
    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        state.sums[0] += f64::from(sample.values[0]);
        if let Some(last) = state.sums.last_mut() {
            *last = f64::NEG_INFINITY;
        }
        state.kept.extend(vec![sample.values[0]; 1 << 20]);
    }
    fn finish(&self, state: &MetricState) -> MetricValue {
        let sum: f64 = state.kept.iter().step_by(1 << 19).map(|&kept| f64::from(kept)).sum();
        (state.sums[0] + sum + 1.0 / state.sums[(7 << 20) - 1]).into()
    }
    fn kind(&self) -> MetricKind {
        MetricKind::AtEnd
    }
}

#[test]
fn large_states_of_metrics_are_saved_within_an_epoch() {
    let data = weighted(6).batch(1);
    let build = || {
        let builder = Trainer::builder(Dense::new(1)).loss(MeanSquaredError).metric(Large);
        builder.global_batch(1).replicas(1).audit_every(0).build(&data.fields().unwrap()).unwrap()
    };
    let mut whole = build();
    whole.fit(&data, None, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut first = build();
    first.checkpoints(dir.path(), 0).unwrap();
    for batch in data.epoch(0).unwrap().take(4) {
        first.step(&batch.unwrap()).unwrap();
    }
    first.save().unwrap();
    let state = first.state_sha256().unwrap();
    drop(first);
    let mut second = build();
    second.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(second.resume().unwrap().unwrap().step, 4);
    assert_eq!(second.state_sha256().unwrap(), state);
    second.fit(&data, None, 1).unwrap();
    assert_eq!(second.history(), whole.history());
}

/// Keeps what each step has, and the tables of each epoch.
struct Names(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Observer for Names {
    fn step(&mut self, step: &Step) {
        let names = step.so_far.metrics.iter().chain(&step.now.metrics).map(|(name, _)| name.clone());
        self.0.lock().unwrap().extend(names.chain(step.so_far.tables.iter().map(|(name, _)| name.clone())));
    }
    fn epoch(&mut self, epoch: &Epoch) {
        let tables = epoch.train.tables.iter().chain(&epoch.validation.as_ref().unwrap().tables);
        self.0.lock().unwrap().extend(tables.map(|(name, table)| format!("{name} {:?}", table.shape())));
    }
}

#[test]
fn a_table_is_in_an_evaluation_and_not_in_the_history() {
    let (train, held_out) = (loader(12, 5).unwrap(), loader(11, 6).unwrap());
    let names = Names(Default::default());
    let seen = names.0.clone();
    let builder = Trainer::builder(Dense::new(CLASSES)).metric(ConfusionMatrix::new(CLASSES));
    let builder = builder.metric(Accuracy).metric(Auc::roc().one_vs_rest(CLASSES)).observer(names);
    let mut trainer = builder.global_batch(12).replicas(1).build(&train.fields().unwrap()).unwrap();
    let best = Saving::new(tempfile::tempdir().unwrap().path())
        .keep_best(unisono::BestBy::Highest("confusion matrix".into()));
    let problem = trainer.save_to(best).unwrap_err().to_string();
    assert!(
        problem.ends_with("nothing is called \"confusion matrix\"; there is loss, accuracy, roc auc"),
        "{problem}"
    );
    trainer.fit(&train, Some(&held_out), 1).unwrap();
    let expected = ["accuracy", "accuracy", "confusion matrix [3, 3]", "confusion matrix [3, 3]"];
    assert_eq!(*seen.lock().unwrap(), expected, "a step has neither the table nor the area");
    let epoch = &trainer.history()[0];
    assert!(epoch.train.tables.is_empty() && epoch.validation.as_ref().unwrap().tables.is_empty());
    assert!(epoch.train.metric("roc auc").is_some() && epoch.train.metric("confusion matrix").is_none());
    let evaluation = trainer.evaluate(&held_out).unwrap();
    let table = evaluation.table("confusion matrix").unwrap();
    let sum: f64 = table.rows().flatten().sum();
    let hits: f64 = (0..CLASSES).filter_map(|class| table.get(class, class)).sum();
    assert_eq!(sum, 11.0);
    assert!((hits / sum - evaluation.metric("accuracy").unwrap()).abs() < 1e-12);
}
