//! The trainer and its input: samples that are left out, and the report of where the time went.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use unisono::checkpoint::WeightPrecision;
use unisono::data::{Loader, Memory, Values};
use unisono::{Observer, Predictor};
use unisono_tests::{FEATURES, blobs, perceptron};

/// Returns [`blobs`] with two samples that cannot be trained on.
fn with_bad_samples(samples: usize) -> Loader {
    let good = blobs(samples, 3).unwrap();
    let (Some(Values::F32(x)), Some(Values::I32(y))) = (good.array("x"), good.array("y")) else {
        panic!("blobs have features and labels")
    };
    let mut x = x.clone();
    for bad in [5, 17] {
        x[bad * FEATURES + 2] = f32::NAN;
    }
    let source = Memory::labelled(x, [FEATURES], y.clone()).unwrap();
    Loader::new(source).shuffle(4).threads(2).require_finite().skip_bad(2)
}

#[test]
fn skipped_samples_are_part_of_the_run_and_of_its_checkpoints() {
    let run = |loader: &Loader, replicas: usize| {
        let mut trainer =
            perceptron(8).global_batch(6).replicas(replicas).build(&loader.fields().unwrap()).unwrap();
        trainer.fit(loader, None, 3).unwrap();
        assert_eq!(trainer.skipped(), [5, 17]);
        assert_eq!(trainer.history().iter().map(|e| e.train.samples).collect::<Vec<_>>(), [21, 21, 21]);
        trainer.state_sha256().unwrap()
    };
    let loader = with_bad_samples(23);
    let expected = run(&loader, 1);
    assert_eq!(run(&loader, 3), expected);

    // The run ends after its first epoch and goes on elsewhere, where the bad samples are good by now.
    let dir = tempfile::tempdir().unwrap();
    let fields = loader.fields().unwrap();
    let mut first = perceptron(8).global_batch(6).replicas(2).build(&fields).unwrap();
    first.checkpoints(dir.path(), 3).unwrap();
    first.fit(&loader, None, 1).unwrap();
    drop(first);
    let mut second = perceptron(8).global_batch(6).replicas(1).build(&fields).unwrap();
    second.checkpoints(dir.path(), 3).unwrap();
    second.resume().unwrap().unwrap();
    second.fit(&loader, None, 3).unwrap();
    assert_eq!(second.state_sha256().unwrap(), expected);
}

/// Rows behind one that is missing would be taken for those of other samples.
#[test]
fn predictions_lack_no_sample_and_evaluations_tell_of_those_that_they_lack() {
    struct Notes(Arc<Mutex<Vec<String>>>);
    impl Observer for Notes {
        fn note(&mut self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }
    let (loader, notes) = (with_bad_samples(23), Arc::default());
    let builder = perceptron(8).global_batch(6).replicas(1).observer(Notes(Arc::clone(&notes)));
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    assert_eq!(trainer.evaluate(&loader).unwrap().samples, 21);
    let told = notes.lock().unwrap().iter().filter(|note| note.contains("an evaluation skipped")).count();
    assert_eq!(told, 1, "{:?}", notes.lock().unwrap());
    let dir = tempfile::tempdir().unwrap();
    trainer.export(dir.path().join("model.safetensors"), WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::builder().replicas(1).open(dir.path().join("model.safetensors")).unwrap();
    for predicted in [trainer.predict_all(&loader), predictor.predict(&loader)] {
        let message = predicted.unwrap_err().to_string();
        assert!(message.contains("the loader skipped") && message.contains("NaN"), "{message}");
    }
    let good = Loader::new(blobs(23, 3).unwrap()).skip_bad(2);
    assert_eq!(trainer.predict_all(&good).unwrap(), predictor.predict(&good).unwrap());
}

#[test]
fn more_bad_samples_than_allowed_end_the_run_and_name_one() {
    let loader = with_bad_samples(23).skip_bad(1);
    let mut trainer = perceptron(8).global_batch(6).build(&loader.fields().unwrap()).unwrap();
    let message = trainer.fit(&loader, None, 1).unwrap_err().to_string();
    assert!(message.contains("sample 5") || message.contains("sample 17"), "{message}");
}

#[test]
fn the_closing_report_names_the_slow_transform() {
    let loader = Loader::new(blobs(40, 3).unwrap())
        .threads(1)
        .map("scale", |sample, _| {
            sample.f32_mut("x").unwrap().iter_mut().for_each(|x| *x *= 0.5);
        })
        .map("doze", |_, _| std::thread::sleep(Duration::from_millis(5)));
    let mut trainer = perceptron(8).global_batch(8).replicas(1).build(&loader.fields().unwrap()).unwrap();
    trainer.fit(&loader, None, 1).unwrap();
    let report = trainer.report().to_string();
    assert!(report.contains("slowest stage map 'doze'"), "{report}");
    assert_eq!(trainer.input().unwrap().consumed, 40);
}
