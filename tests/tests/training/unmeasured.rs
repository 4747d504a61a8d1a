//! Losses and metrics that are not finite are reported, saved and resumed. Only what is trained on has to be
//! finite.

use unisono::checkpoint::{Store, load, newest};
use unisono::data::{Loader, Memory, Values};
use unisono::{Builder, Dense, MeanSquaredError, Metric, Observer, Sgd, Step, Stop, Trainer, Type, Var};

/// A metric that computes 2 y / y, which is NaN for a target of 0.
struct Ratio;

impl Metric for Ratio {
    fn name(&self) -> &str {
        "ratio"
    }

    fn accepts(&self, _: &Type, _: &Type) -> Result<(), String> {
        Ok(())
    }

    fn per_sample(&self, _: &Var, target: &Var) -> Var {
        ((target * 2.0) / target).mean(&[-1])
    }
}

struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn step(&mut self, step: &Step) {
        if step.step == self.0 {
            self.1.ask();
        }
    }
}

fn data(targets: &[f32]) -> Loader {
    let x: Vec<f32> = (0..targets.len()).map(|i| (i % 3) as f32 - 1.0).collect();
    let source = Memory::new("x", [1], Values::F32(x)).unwrap();
    Loader::new(source.with("y", [1], Values::F32(targets.to_vec())).unwrap())
}

fn builder() -> Builder {
    Trainer::builder(Dense::new(1))
        .loss(MeanSquaredError)
        .metric(Ratio)
        .optimizer(Sgd::new(0.1))
        .global_batch(4)
}

/// Stops a run in its second epoch and resumes it from there. `change` may rewrite `trainer.json` before the
/// resume.
fn cut(train: &Loader, held_out: &Loader, change: impl Fn(&str) -> String) -> (String, String) {
    let (first_dir, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stop = Stop::new();
    let fields = train.fields().unwrap();
    let mut first = builder().observer(StopAt(4, stop.clone())).replicas(1).build(&fields).unwrap();
    first.checkpoints(first_dir.path(), 0).unwrap();
    first.stop_on(&stop);
    first.fit(train, Some(held_out), 3).unwrap();
    assert_eq!((first.steps(), first.history().len()), (5, 1));
    drop(first);

    let saved = newest(first_dir.path()).unwrap().unwrap();
    let (step, mut contents) = load(&saved.path).unwrap();
    contents.trainer = change(&contents.trainer.to_string()).parse().unwrap();
    Store::open(dir.path()).unwrap().save(step, &contents).unwrap();

    let mut second = builder().replicas(2).build(&fields).unwrap();
    second.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(second.resume().unwrap().unwrap().step, 5);
    second.fit(train, Some(held_out), 3).unwrap();
    (second.state_sha256().unwrap(), format!("{:?}", second.history()))
}

#[test]
fn a_run_with_a_loss_or_a_metric_that_is_not_finite_can_be_resumed() {
    let train = data(&[1.0, 2.0, 0.0, 1.0, 0.5, 1.0, -1.0, 1.0, 2.0, 1.0]);
    let held_out = data(&[1.0, 1e20, 1.0]);
    let mut whole = builder().replicas(1).build(&train.fields().unwrap()).unwrap();
    whole.fit(&train, Some(&held_out), 3).unwrap();
    let epoch = &whole.history()[0];
    assert!(epoch.train.loss.is_finite() && epoch.train.metric("ratio").unwrap().is_nan(), "{epoch:?}");
    assert_eq!(epoch.validation.as_ref().unwrap().loss, f64::INFINITY);
    let expected = (whole.state_sha256().unwrap(), format!("{:?}", whole.history()));
    assert_eq!(cut(&train, &held_out, str::to_owned), expected);

    // Older versions wrote null for all of these numbers.
    let old = |json: &str| {
        let old = json.replace("\"NaN\"", "null").replace("\"inf\"", "null");
        assert_ne!(old, json);
        old
    };
    let (state, history) = cut(&train, &held_out, old);
    assert_eq!((state, history), (expected.0, expected.1.replacen("inf", "NaN", 1)));
}
