//! The best checkpoint is found, and its weights can be loaded.

use unisono::{BestBy, Error, Metric, Optimizer, Perplexity, Phase, Saving, Var};
use unisono_tests::{loader, perceptron};

#[test]
fn the_best_checkpoint_is_known_and_its_weights_come_back() {
    let (train, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
    let build = || {
        let builder = perceptron(8).optimizer(unisono::Sgd::new(0.5)).global_batch(16).replicas(1);
        builder.build(&train.fields().unwrap()).unwrap()
    };
    let mut trainer = build();
    assert_eq!(trainer.best().unwrap(), None);
    let dir = tempfile::tempdir().unwrap();
    // The best epoch is not the last one, so the last weights differ from the best ones.
    let saving = Saving::new(dir.path()).keep_last(1).keep_best(BestBy::Lowest("loss".into()));
    trainer.save_to(saving.clone()).unwrap();
    assert_eq!(trainer.best().unwrap(), None);
    assert!(matches!(trainer.load_best().unwrap_err(), Error::Setting { setting: "best", .. }));
    trainer.fit(&train, Some(&held_out), 6).unwrap();
    trainer.set_tensor("3.bias", &[1000.0, 0.0, 0.0]).unwrap();
    trainer.fit(&train, Some(&held_out), 7).unwrap();

    let losses: Vec<f64> = trainer.history().iter().map(|e| e.validation.as_ref().unwrap().loss).collect();
    let lowest = (0..7).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap();
    assert!(lowest < 6, "{losses:?}");
    let (step, path) = trainer.best().unwrap().unwrap();
    assert_eq!(step, trainer.history()[lowest].steps);
    assert!(path.ends_with(format!("checkpoints/step-{step:08}")), "{}", path.display());

    let (before, steps) = (trainer.evaluate(&held_out).unwrap(), trainer.steps());
    assert_eq!(before.loss, losses[6]);
    assert_eq!(trainer.load_best().unwrap(), step);
    assert_eq!(trainer.evaluate(&held_out).unwrap().loss, losses[lowest]);
    assert_eq!((trainer.steps(), trainer.history().len()), (steps, 7), "the run is where it was");

    // Without the option no checkpoint is the best.
    drop(trainer);
    let mut other = build();
    other.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(other.best().unwrap(), None);
    // Another trainer finds the best checkpoint too.
    other.save_to(saving).unwrap();
    other.load_best().unwrap();
    assert_eq!(other.evaluate(&held_out).unwrap().loss, losses[lowest]);
}

/// Where averages predict, the best checkpoint was measured with its averages, and these are loaded.
#[test]
fn the_averages_of_the_best_checkpoint_come_back() {
    let (train, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
    let optimizer = || unisono::Sgd::new(0.5).average_weights(0.5);
    let phases = [Phase::new("all").steps(1).optimizer(optimizer())];
    let builders = [
        perceptron(8).optimizer(optimizer()),
        phases.into_iter().fold(perceptron(8), |builder, phase| builder.phase(phase)),
    ];
    for builder in builders {
        let builder = builder.use_average_weights().global_batch(16).replicas(1);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving::new(dir.path()).keep_last(1).keep_best(BestBy::Lowest("loss".into()));
        trainer.save_to(saving).unwrap();
        trainer.fit(&train, Some(&held_out), 4).unwrap();
        trainer.set_tensor("3.bias", &[1000.0, 0.0, 0.0]).unwrap();
        trainer.fit(&train, Some(&held_out), 5).unwrap();
        let losses: Vec<f64> =
            trainer.history().iter().map(|e| e.validation.as_ref().unwrap().loss).collect();
        let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(losses[4] > lowest, "{losses:?}");
        trainer.load_best().unwrap();
        assert_eq!(trainer.evaluate(&held_out).unwrap().loss, lowest, "{losses:?}");
    }
}

/// Training losses fall below those of samples held out, and are not compared with them.
#[test]
fn a_checkpoint_measured_on_samples_held_out_is_better_than_one_that_is_not() {
    let (train, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let build = |best: &BestBy| {
        let builder = perceptron(8).optimizer(unisono::Sgd::new(0.1)).global_batch(16).replicas(1);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        trainer.save_to(Saving::new(dir.path()).keep_last(1).keep_best(best.clone())).unwrap();
        trainer
    };
    let step = |trainer: &unisono::Trainer| trainer.best().unwrap().unwrap().0;
    for best in [BestBy::Lowest("loss".into()), BestBy::Highest("accuracy".into())] {
        let mut trainer = build(&best);
        trainer.clear_checkpoints().unwrap();
        trainer.fit(&train, None, 1).unwrap();
        assert_eq!(step(&trainer), 3, "nothing else was measured");
        trainer.fit(&train, Some(&held_out), 2).unwrap();
        assert_eq!(step(&trainer), 6, "{best:?}");
        drop(trainer);
        let mut trainer = build(&best);
        trainer.resume().unwrap().unwrap();
        trainer.fit(&train, None, 6).unwrap();
        let [measured, trained] = [1, 5]
            .map(|at| trainer.history()[at].validation.as_ref().unwrap_or(&trainer.history()[at].train).loss);
        assert!(trained < measured, "{trained} {measured}");
        assert_eq!((step(&trainer), trainer.load_best().unwrap()), (6, 6), "{best:?}");
    }
}

/// A loss is not compared with an accuracy.
#[test]
fn what_was_the_best_by_another_metric_is_not_the_best() {
    let (train, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let build = |best| {
        // A rate this large gives a loss above 1, which every accuracy is below.
        let builder = perceptron(8).optimizer(unisono::Sgd::new(2.0)).global_batch(16).replicas(1);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        trainer.save_to(Saving::new(dir.path()).keep_last(1).keep_best(best)).unwrap();
        trainer.resume().unwrap();
        trainer
    };
    let mut first = build(BestBy::Lowest("loss".into()));
    first.fit(&train, Some(&held_out), 1).unwrap();
    assert!(first.history()[0].validation.as_ref().unwrap().loss > 1.0, "{:?}", first.history());
    assert_eq!(first.best().unwrap().unwrap().0, 3);
    drop(first);
    let mut second = build(BestBy::Highest("accuracy".into()));
    assert_eq!(second.best().unwrap(), None);
    second.fit(&train, Some(&held_out), 3).unwrap();
    assert!(second.load_best().unwrap() > 3);
}

/// Keeps notes.
#[derive(Clone, Default)]
struct Notes(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl unisono::Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn the_best_by_a_metric_is_what_the_metric_says() {
    let (train, held_out) = (loader(40, 5).unwrap(), loader(20, 6).unwrap());
    // The rate makes accuracy and perplexity rise and fall.
    let fitted = |best: BestBy| {
        let (dir, notes) = (tempfile::tempdir().unwrap(), Notes::default());
        let builder =
            perceptron(8).optimizer(unisono::Sgd::new(0.5)).metric(Perplexity::new()).metric(Silent);
        let builder = builder.global_batch(16).replicas(1).observer(notes.clone());
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        trainer.save_to(Saving::new(dir.path()).keep_best(best)).map_err(|error| error.to_string())?;
        trainer.fit(&train, Some(&held_out), 4).unwrap();
        let notes: Vec<String> =
            notes.0.lock().unwrap().iter().filter(|x| x.contains("best")).cloned().collect();
        let step = trainer.best().unwrap().unwrap().0;
        Ok::<_, String>((trainer.history().clone(), step, notes))
    };
    let named = |name: &str| BestBy::Metric(name.into());
    for (name, lowest) in [("perplexity", true), ("loss", true), ("accuracy", false)] {
        let (history, step, notes) = fitted(named(name)).unwrap();
        let value = |epoch: &unisono::Epoch| {
            let validation = epoch.validation.as_ref().unwrap();
            let value = if name == "loss" { validation.loss } else { validation.metric(name).unwrap() };
            if lowest { value } else { -value }
        };
        let best = history.iter().min_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
        assert_eq!((step, &notes[..]), (best.steps, &[][..]), "{name}");
    }
    let (_, _, notes) = fitted(BestBy::Highest("perplexity".into())).unwrap();
    let expected =
        "warning: Saving::keep_best takes the highest perplexity to be the best, and lower values are better";
    assert_eq!(notes, [expected]);
    let problem = fitted(named("silent")).unwrap_err();
    assert!(problem.contains("\"silent\" does not say which of its values are better"), "{problem}");
}

/// A metric that does not say which of its values are better.
struct Silent;

impl Metric for Silent {
    fn name(&self) -> &str {
        "silent"
    }
    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        output.tape().constant(0.5)
    }
}
