//! Code of a program's own that panics, wherever the library calls it: an error that names it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use unisono::data::{ContentHash, Coverage, DataError, FieldSpec, Sample, Source};
use unisono::{
    Better, Logged, Metric, MetricState, MetricValue, Reduction, ReplicaReport, SampleValues, Schedule,
    Start, Var,
};

use super::*;

/// A place that panics once it is armed.
#[derive(Clone)]
struct Mine {
    at: &'static str,
    armed: Arc<AtomicBool>,
}

impl Mine {
    fn new(at: &'static str, armed: bool) -> Self {
        Self { at, armed: Arc::new(AtomicBool::new(armed)) }
    }

    fn step_on(&self, at: &str) {
        assert!(!(self.at == at && self.armed.load(Ordering::Relaxed)), "stepped on {at}");
    }
}

/// Returns what a call gives. It must not unwind.
fn kept<T>(what: &str, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panic!("{what}: unwinds"))
}

impl Callback for Mine {
    fn name(&self) -> &str {
        self.step_on("name");
        "mine"
    }

    fn influence(&self) -> Influence {
        self.step_on("influence");
        Influence::None
    }

    fn watches(&self) -> Option<(&str, Better)> {
        self.step_on("watches");
        None
    }

    fn check(&self, _: &Epoch) -> Result<(), String> {
        self.step_on("check");
        Ok(())
    }

    fn state(&self) -> Value {
        self.step_on("state");
        Value::Null
    }

    fn restore(&mut self, _: &Value) -> Result<(), String> {
        self.step_on("restore");
        Ok(())
    }

    fn awaits_steps(&self) -> bool {
        self.step_on("awaits_steps");
        true
    }
}

#[test]
fn every_function_of_a_callback_may_panic() {
    let (train, _) = data();
    for at in ["name", "influence", "watches", "check", "state"] {
        let panics = builder(1).callback(Mine::new(at, true));
        let error = kept(at, || panics.build(&train.fields().unwrap())).err().unwrap();
        let name = if at == "name" { "number 1" } else { "mine" };
        let text = format!("callback {name:?}: panicked in Callback::{at}: stepped on {at}");
        assert_eq!(error.to_string(), text);
    }
    let mut sound = build(builder(1));
    sound.fit(&train, None, 2).unwrap();
    for at in ["name", "influence", "check", "awaits_steps"] {
        let mine = Mine::new(at, false);
        let mut trainer = build(builder(1).callback(mine.clone()));
        mine.armed.store(true, Ordering::Relaxed);
        let fitted = kept(at, || trainer.fit(&train, None, 2).map(drop));
        if at == "awaits_steps" {
            let text = "callback \"mine\": panicked in Callback::awaits_steps: stepped on awaits_steps";
            assert_eq!(fitted.unwrap_err().to_string(), text);
            mine.armed.store(false, Ordering::Relaxed);
            trainer.fit(&train, None, 2).unwrap();
        } else {
            fitted.unwrap();
        }
        assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let mine = Mine::new("restore", false);
    let run = |mine: &Mine| {
        let mut trainer = build(builder(1).callback(mine.clone()));
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer
    };
    run(&mine).fit(&train, None, 1).unwrap();
    mine.armed.store(true, Ordering::Relaxed);
    let error = kept("restore", || run(&mine).resume()).unwrap_err();
    assert!(error.to_string().ends_with("panicked in Callback::restore: stepped on restore"), "{error}");
}

/// An observer with a mine in it.
struct Watches(Mine);

impl Observer for Watches {
    fn files(&self) -> Vec<std::path::PathBuf> {
        self.0.step_on("files");
        Vec::new()
    }
    fn on_all_ranks(&self) -> bool {
        self.0.step_on("on_all_ranks");
        false
    }
    fn started(&mut self, _: &Start<'_>) {
        self.0.step_on("started");
    }
    fn step(&mut self, _: &Step) {
        self.0.step_on("step");
    }
    fn epoch(&mut self, _: &Epoch) {
        self.0.step_on("epoch");
    }
    fn replicas(&mut self, _: u64, _: &[ReplicaReport]) {
        self.0.step_on("replicas");
    }
    fn wants_weights(&self, _: u32) -> bool {
        self.0.step_on("wants_weights");
        true
    }
    fn weights(&mut self, _: u64, _: &[(&str, Vec<f32>)]) {
        self.0.step_on("weights");
    }
    fn logged(&mut self, _: u64, _: &str, _: &Logged) {
        self.0.step_on("logged");
    }
    fn ended(&mut self) {
        self.0.step_on("ended");
    }
    fn take_problem(&mut self) -> Option<String> {
        self.0.step_on("take_problem");
        None
    }
}

/// The fit ends with an error, saved, and the next one goes on without the observer.
#[test]
fn every_function_of_an_observer_may_panic() {
    let (train, _) = data();
    let mut sound = build(builder(1));
    sound.fit(&train, None, 2).unwrap();
    for at in ["started", "step", "epoch", "replicas", "wants_weights", "weights", "ended", "take_problem"] {
        let seen = Notes::default();
        let watches = Watches(Mine::new(at, true));
        let mut trainer = build(builder(1).observer(watches).observer(seen.clone()));
        let error = kept(at, || trainer.fit(&train, None, 2).map(drop)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Panic { .. }), "{at}: {text}");
        assert!(text.contains("Watches (Observer::") && text.contains(at), "{at}: {text}");
        trainer.fit(&train, None, 2).unwrap();
        assert_eq!(trainer.history(), sound.history(), "{at}");
        assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap(), "{at}");
    }
    let fields = train.fields().unwrap();
    let built = kept("files", || builder(1).observer(Watches(Mine::new("files", true))).build(&fields));
    let error = built.err().unwrap().to_string();
    assert!(error.contains("Observer::files) panicked: stepped on files"), "{error}");
    // In a loop of one's own the next step says it.
    let mut trainer = build(builder(1).observer(Watches(Mine::new("logged", true))));
    let batch = train.clone().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    kept("logged", || trainer.log("a", 1.0));
    let error = trainer.step(&batch).unwrap_err();
    assert!(error.to_string().contains("Observer::logged) panicked: stepped on logged"), "{error}");
    trainer.step(&batch).unwrap();
}

/// A source with a mine in it.
struct Mined(Arc<dyn Source>, Mine);

impl Source for Mined {
    fn len(&self) -> u64 {
        self.1.step_on("len");
        self.0.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.1.step_on("fields");
        self.0.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.1.step_on("fetch");
        if self.1.at == "describe" && self.1.armed.load(Ordering::Relaxed) {
            return Err(DataError::other("no sample"));
        }
        self.0.fetch(index)
    }
    fn describe(&self, index: u64) -> String {
        self.1.step_on("describe");
        self.0.describe(index)
    }
    fn field_classes(&self, field: &str) -> Option<&[String]> {
        self.1.step_on("field_classes");
        self.0.field_classes(field)
    }
    fn notes(&self) -> Vec<String> {
        self.1.step_on("notes");
        self.0.notes()
    }
    fn fingerprint(&self) -> u64 {
        self.1.step_on("fingerprint");
        self.0.fingerprint()
    }
    fn coverage(&self) -> Coverage {
        self.1.step_on("coverage");
        Coverage::Hashed
    }
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.1.step_on("hash_content");
        self.0.hash_content(samples, hash)
    }
}

#[test]
fn every_function_of_a_source_may_panic() {
    let (train, held_out) = data();
    let all = ["len", "fields", "fetch", "describe", "field_classes", "notes", "fingerprint", "coverage"];
    for at in all {
        let mine = Mine::new(at, false);
        let mined = Loader::new(Mined(train.shared_source(), mine.clone())).shuffle(5);
        let mut trainer = build(builder(1));
        mine.armed.store(true, Ordering::Relaxed);
        let error = kept(at, || trainer.fit(&mined, None, 1).map(drop)).unwrap_err().to_string();
        assert!(
            error.contains(at) && error.contains(if at == "describe" { "no sample" } else { at }),
            "{error}"
        );
        if !["fingerprint", "coverage"].contains(&at) {
            kept(at, || trainer.evaluate(&mined)).unwrap_err();
            kept(at, || trainer.fit(&train, Some(&mined), 1).map(drop)).unwrap_err();
        }
        mine.armed.store(false, Ordering::Relaxed);
        trainer.fit(&mined, Some(&held_out), 2).unwrap();
    }
    // Data that cannot be hashed are noted, with the cause.
    let notes = Notes::default();
    let mined = Loader::new(Mined(train.shared_source(), Mine::new("hash_content", true)));
    build(builder(1).observer(notes.clone())).fit(&mined, None, 1).unwrap();
    let told = notes.0.lock().unwrap().join("\n");
    assert!(told.contains("hash_content: panicked: stepped on hash_content"), "{told}");
}

#[test]
fn a_schedule_that_panics_is_an_error_before_its_step() {
    let (train, _) = data();
    let schedule = |armed: Arc<AtomicBool>| {
        let rate = move |step| {
            assert!(step != 2 || !armed.load(Ordering::Relaxed), "no rate");
            0.5
        };
        perceptron(8).optimizer(Sgd::new(Schedule::function(rate))).global_batch(16).replicas(1)
    };
    let armed = Arc::new(AtomicBool::new(true));
    let mut trainer = build(schedule(armed.clone()));
    let error = kept("at", || trainer.fit(&train, None, 2).map(drop)).unwrap_err().to_string();
    assert_eq!(error, "optimizer: sgd: the schedule panicked at step 2: no rate");
    assert_eq!(trainer.steps(), 2);
    armed.store(false, Ordering::Relaxed);
    trainer.fit(&train, None, 2).unwrap();
    let mut sound = build(builder(1));
    sound.fit(&train, None, 2).unwrap();
    assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
    // The first step, and the search that a build makes for what it depends on.
    let never = perceptron(8).optimizer(Sgd::new(Schedule::function(|_| panic!("never"))));
    let error = kept("build", || never.build(&train.fields().unwrap())).err().unwrap().to_string();
    assert!(error.contains("the schedule panicked at step 0: never"), "{error}");
}

/// A metric with a mine in its reduction.
struct Measures(Mine);

impl Metric for Measures {
    fn name(&self) -> &str {
        "mined"
    }
    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        self.0.step_on("per_sample");
        output.mean(&[1])
    }
    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for Measures {
    fn start(&self, _: usize) -> MetricState {
        self.0.step_on("start");
        MetricState::zeros(1)
    }
    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        self.0.step_on("update");
        state.sums[0] += f64::from(sample.values[0]);
    }
    fn finish(&self, state: &MetricState) -> MetricValue {
        self.0.step_on("finish");
        MetricValue::Number(state.sums[0])
    }
}

/// The step has happened, its metric is NaN, and the fit says why.
#[test]
fn every_function_of_a_metric_may_panic() {
    let (train, held_out) = data();
    let panics = builder(1).metric(Measures(Mine::new("per_sample", true)));
    let error = kept("build", || panics.build(&train.fields().unwrap())).err().unwrap().to_string();
    assert!(error.contains("the metric \"mined\"") && error.ends_with("panicked: stepped on per_sample"));
    let mut sound = build(builder(1).metric(Measures(Mine::new("", false))));
    sound.fit(&train, Some(&held_out), 2).unwrap();
    for at in ["start", "update", "finish"] {
        let mine = Mine::new(at, true);
        let mut trainer = build(builder(1).metric(Measures(mine.clone())));
        for panics in [trainer.fit(&train, None, 2).map(drop), trainer.evaluate(&held_out).map(drop)] {
            let error = panics.unwrap_err().to_string();
            let text = format!("the reduction of the metric \"mined\" panicked: stepped on {at}");
            assert_eq!(error, text);
        }
        assert_eq!(trainer.steps(), 1);
        mine.armed.store(false, Ordering::Relaxed);
        let history = trainer.fit(&train, Some(&held_out), 2).unwrap();
        assert_eq!(history[1], sound.history()[1], "{at}");
        // What was not counted is no number, where the state lacks it.
        assert_eq!(history[0].train.metric("mined").unwrap().is_nan(), at != "finish", "{at}");
        assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap(), "{at}");
    }
}
