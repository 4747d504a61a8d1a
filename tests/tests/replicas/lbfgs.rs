//! Steps of L-BFGS: the numbers of PyTorch, the same bytes whoever computes, and what is refused by name.

use std::path::Path;
use std::sync::{Arc, Mutex};

use unisono::cluster::{Fault, Script};
use unisono::data::Loader;
use unisono::{
    Audits, BatchNorm, Builder, Cluster, Dense, Dropout, Error, Flatten, Groups, Initializer, Lbfgs,
    LossScale, Model, NtXent, Observer, Optimizer, Outputs, Phase, Precision, Relu, Sequential, Sgd, Stop,
    Tanh, Trainer,
};
use unisono_examples::digits_of;
use unisono_tests::{CLASSES, FEATURES, blobs, on_ranks};

const DIGITS: usize = 1797;

/// A logistic regression from zeros, with 0.0005 of the sum of the squared weights as a penalty.
fn regression(rule: Lbfgs) -> Builder {
    let model = Model::new(|cx, x| {
        let weight = cx.parameter("weight", &[10, 64], Initializer::Zeros);
        let bias = cx.parameter("bias", &[10], Initializer::Zeros);
        cx.penalty(&(weight.square().sum_all() * 0.0005));
        Outputs::new().with("output", &(x["x"].matmul_t(&weight) + bias))
    });
    Trainer::builder(model).optimizer(rule).adapter("cpu").replicas(1)
}

/// The loss after each step, and all evaluations: as `tests/oracle/lbfgs.py` prints it in f64. The losses of
/// PyTorch's f32 differ from these by up to 2e-6.
#[test]
fn a_regression_on_the_digits_goes_where_pytorchs_goes() {
    let digits = Loader::new(digits_of(0..10, &[64]).unwrap());
    let short = Lbfgs::new().max_iter(10).history_size(10);
    let of_short: [(f64, u32); 4] = [
        (0.34025309726326836, 12),
        (0.27337159410090234, 12),
        (0.26428996449963743, 11),
        (0.26309789181441334, 11),
    ];
    let of_default = [(0.26776229640987825, 25), (0.2625445346363778, 21), (0.26187104222870283, 22)];
    // Three batches count as one: 1797 samples are 800 + 800 + 197.
    for (rule, batch, expected) in
        [(short.clone(), DIGITS, &of_short[..]), (short, 800, &of_short), (Lbfgs::new(), DIGITS, &of_default)]
    {
        let builder = regression(rule).global_batch(batch);
        let mut trainer = builder.build(&digits.fields().unwrap()).unwrap();
        for (at, &(loss, evaluations)) in expected.iter().enumerate() {
            let step = trainer.lbfgs_step(&digits).unwrap();
            assert!((step.loss - loss).abs() < 5e-6, "step {at}, batches of {batch}: {step:?}, not {loss}");
            assert_eq!(step.evaluations, evaluations, "step {at}, batches of {batch}: {step:?}");
        }
    }
}

/// The minimum is known to more digits than steps in f32 find.
#[test]
fn a_regression_on_the_digits_ends_in_its_minimum() {
    let digits = Loader::new(digits_of(0..10, &[64]).unwrap());
    let builder = regression(Lbfgs::new().tolerance_change(1e-8)).global_batch(DIGITS);
    let mut trainer = builder.build(&digits.fields().unwrap()).unwrap();
    let ended = (0..12).map(|_| trainer.lbfgs_step(&digits).unwrap()).find(|step| step.end.is_converged());
    let ended = ended.expect("no step says that it has converged");
    assert!((ended.loss - 0.2618645522).abs() < 3e-7, "{ended:?}");
    let weight = trainer.tensor("weight").unwrap().unwrap();
    let norm = weight.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
    assert!((norm - 15.547679).abs() < 5e-3, "{norm}");
}

fn data() -> Loader {
    Loader::new(blobs(50, 5).unwrap()).threads(1)
}

/// A small network whose data take four batches.
fn network() -> Builder {
    let model = Sequential::new().add(Dense::new(9)).add(Tanh).add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(Lbfgs::new().max_iter(4)).global_batch(16).seed(11).adapter("cpu")
}

/// Does three steps. Returns the digest, and what each step said.
fn run(builder: Builder) -> Result<(String, String), Error> {
    let data = data();
    let mut trainer = builder.build(&data.fields()?)?;
    let steps = (0..3).map(|_| trainer.lbfgs_step(&data)).collect::<Result<Vec<_>, Error>>()?;
    assert!(steps[2].loss < steps[0].loss_before / 2.0, "{steps:?}");
    Ok((trainer.state_sha256()?, format!("{steps:?}, {} batches", trainer.steps())))
}

#[test]
fn replicas_do_not_show() {
    let alone = run(network().replicas(1)).unwrap();
    for replicas in [2, 3, 7] {
        assert_eq!(run(network().replicas(replicas)).unwrap(), alone, "{replicas} replicas");
    }
}

#[test]
fn a_replica_that_is_lost_does_not_show() {
    let alone = run(network().replicas(1)).unwrap();
    for point in ["step-0", "step-5", "step-7:segment-1", "step-30"] {
        let name = format!("lbfgs lost {point}:replica-1:{point}");
        fail::cfg(&name, "return(lose)").unwrap();
        let scope = format!("lbfgs lost {point}:");
        assert_eq!(run(network().replicas(3).fault_scope(&scope)).unwrap(), alone, "{point}");
    }
}

#[test]
fn machines_do_not_show() {
    let alone = run(network().replicas(1)).unwrap();
    for ended in
        on_ranks(2, Script::default(), |cluster: Cluster| run(network().replicas(2).cluster(cluster)))
    {
        assert_eq!(ended.unwrap(), alone);
    }
    let script = Script { seed: 1, faults: vec![Fault::Lost { rank: 1, after: 40 }] };
    let ended = on_ranks(2, script, |cluster| run(network().replicas(1).cluster(cluster)));
    assert!(ended[1].is_err(), "rank 1 is lost");
    assert_eq!(ended[0].as_ref().unwrap(), &alone);
}

/// The steps to which a run went back.
#[derive(Clone, Default)]
struct Back(Arc<Mutex<Vec<u64>>>);

impl Observer for Back {
    fn rolled_back(&mut self, step: u64) {
        self.0.lock().unwrap().push(step);
    }
}

/// A replica that computes wrongly from some step on is found by an audit. The step is made again from its
/// beginning; where the audit before was in an earlier step, the caller makes that again.
#[test]
fn a_replica_that_is_wrong_does_not_show() {
    let alone = run(network().replicas(1)).unwrap();
    let data = data();
    for first in [2, 9, 21, 33] {
        let scope = format!("lbfgs wrong {first}:");
        for step in first..200 {
            fail::cfg(format!("{scope}replica-1:step-{step}"), "return(gradient)").unwrap();
        }
        let back = Back::default();
        let builder = network().replicas(3).audits(Audits::Every(2)).observer(back.clone());
        let mut trainer = builder.fault_scope(&scope).build(&data.fields().unwrap()).unwrap();
        let mut said: Vec<(u64, unisono::LbfgsStep)> = Vec::new();
        while said.len() < 3 {
            match trainer.lbfgs_step(&data) {
                Ok(step) => said.push((trainer.steps(), step)),
                Err(Error::RolledBack { step, .. }) => said.retain(|(end, _)| *end <= step),
                Err(error) => panic!("{first}: {error}"),
            }
        }
        assert_eq!(trainer.state_sha256().unwrap(), alone.0, "wrong from batch {first} on");
        assert_eq!(back.0.lock().unwrap().len(), 1, "wrong from batch {first} on");
    }
}

/// Returns a trainer that has resumed the run in a directory.
fn resumed(dir: &Path, replicas: usize) -> Trainer {
    let mut trainer = network().replicas(replicas).build(&data().fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer.resume().unwrap();
    trainer
}

#[test]
fn a_run_that_is_saved_and_resumed_ends_in_the_same_bytes() {
    let alone = run(network().replicas(1)).unwrap();
    let (data, dir) = (data(), tempfile::tempdir().unwrap());
    for replicas in [1, 3, 2] {
        let mut trainer = resumed(dir.path(), replicas);
        trainer.lbfgs_step(&data).unwrap();
        trainer.save().unwrap();
    }
    let mut trainer = resumed(dir.path(), 1);
    assert_eq!(trainer.state_sha256().unwrap(), alone.0);
    // What it remembers is a part of the state.
    let mut without = network().replicas(1).build(&data.fields().unwrap()).unwrap();
    without.load_tensors(&trainer.weights().unwrap(), &unisono::checkpoint::Plan::new()).unwrap();
    let steps = [&mut trainer, &mut without].map(|trainer| trainer.lbfgs_step(&data).unwrap());
    assert_ne!(steps[0], steps[1]);
}

#[test]
fn after_an_error_the_parameters_are_those_from_before_the_step() {
    let data = data();
    let mut trainer = network().replicas(1).build(&data.fields().unwrap()).unwrap();
    trainer.lbfgs_step(&data).unwrap();
    let before = (trainer.steps(), trainer.state_sha256().unwrap());
    let bad = data.clone().try_map("bad", |_, _| Err("bad".into()));
    let source = blobs(50, 5).unwrap();
    let x = source.array("x").and_then(|x| x.as_f32()).unwrap();
    let cut = |at: usize| {
        let marked = x[at * FEATURES];
        data.clone().try_map("cut", move |sample, _| {
            if sample.f32_mut("x").is_some_and(|x| x[0] == marked) { Err("cut".into()) } else { Ok(()) }
        })
    };
    for loader in [bad, cut(49), cut(17)] {
        trainer.lbfgs_step(&loader).unwrap_err();
        let weights = trainer.weights().unwrap();
        assert_eq!(trainer.steps(), before.0);
        let mut other = network().replicas(1).build(&data.fields().unwrap()).unwrap();
        other.lbfgs_step(&data).unwrap();
        assert_eq!(weights, other.weights().unwrap());
    }
    let stop = Stop::default();
    stop.ask();
    trainer.stop_on(&stop);
    assert!(matches!(trainer.lbfgs_step(&data), Err(Error::Stopped)));
    stop.reset();
    // A step that goes too far has no finite loss.
    let model = Sequential::new().add(Dense::new(9)).add(Relu).add(Dense::new(CLASSES));
    let wild = Trainer::builder(model).optimizer(Lbfgs::new().lr(1e38)).adapter("cpu").replicas(1);
    let mut wild = wild.build(&data.fields().unwrap()).unwrap();
    let start = wild.weights().unwrap();
    wild.lbfgs_step(&data).unwrap_err();
    assert_eq!(wild.weights().unwrap(), start);
    // The run goes on as if nothing had been.
    let expected = run(network().replicas(1)).unwrap();
    for _ in 0..2 {
        trainer.lbfgs_step(&data).unwrap();
    }
    assert_eq!(trainer.state_sha256().unwrap(), expected.0);
}

/// Returns the error of building a trainer.
fn refused(builder: Builder) -> String {
    builder.replicas(1).build(&data().fields().unwrap()).err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn what_changes_between_evaluations_is_refused_by_name() {
    let of = |model: Sequential| Trainer::builder(model).optimizer(Lbfgs::new());
    let dense = || Sequential::new().add(Dense::new(CLASSES));
    let phase = Phase::new("a").optimizer(Lbfgs::new());
    for (builder, problem) in [
        (of(dense().add(Dropout::new(0.5))), " draws random numbers in training, as dropout does"),
        (of(dense().add(BatchNorm::new())), "would move the statistic \"1.running_mean\""),
        (of(dense()).precision(Precision::Mixed).loss_scale(LossScale::default()), "lbfgs: the loss scale"),
        (of(dense()).shard_optimizer(1), "lbfgs: the host keeps the state"),
        (of(dense()).phase(phase), "lbfgs is in the phase \"a\""),
        (of(dense()).optimizer(Lbfgs::new().clip_norm(1.0)), "lbfgs: only freeze can be around it"),
        (
            of(dense()).optimizer(Groups::new(Sgd::new(0.1)).group(|_| true, Lbfgs::new())),
            "lbfgs cannot be in a group",
        ),
        (of(dense()).optimizer(Lbfgs::new().max_iter(0)), "lbfgs: max_iter is 0"),
    ] {
        let error = refused(builder);
        assert!(error.contains(problem), "{error:?} does not have {problem:?}");
    }
    assert_eq!(refused(of(dense().add(BatchNorm::new())).freeze_statistics(|_| true)), "");
}

#[test]
fn loaders_and_calls_that_do_not_fit_are_refused_by_name() {
    let data = data();
    let build = |builder: Builder| builder.replicas(1).build(&data.fields().unwrap()).unwrap();
    let mut trainer = build(network());
    let drawing = data.clone().map("jitter", |sample, draws| {
        let amount = draws.normal();
        sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += amount);
    });
    for (loader, problem) in [
        (data.clone().shuffle(1), "lbfgs: the loader shuffles"),
        (data.clone().lanes(), "lbfgs: the loader makes buckets or lanes"),
        (data.clone().drop_last(true), "drop_last leaves out 2"),
        (drawing, "map 'jitter' changed at random"),
    ] {
        let error = trainer.lbfgs_step(&loader).unwrap_err().to_string();
        assert!(error.contains(problem), "{error:?} does not have {problem:?}");
    }
    // A contrastive loss of four batches is not that of all samples; with one batch it is.
    let contrast = |batch: usize| {
        let model = Model::new(move |cx, x| {
            let seen = cx.apply("seen", &Dense::new(4), &x["x"]);
            cx.loss("contrast", &NtXent::new(0.5, batch).between(&seen, &(&seen * 0.5)), 1.0);
            Outputs::new().with("seen", &seen)
        });
        let builder = Trainer::builder(model).optimizer(Lbfgs::new()).adapter("cpu");
        build(builder.global_batch(batch)).lbfgs_step(&data)
    };
    let error = contrast(16).unwrap_err().to_string();
    assert!(error.contains("set the global batch to all samples"), "{error}");
    contrast(50).unwrap();
    let batch = data.clone().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    for error in [trainer.step(&batch).err(), trainer.fit(&data, None, 1).err()] {
        let error = error.unwrap().to_string();
        assert!(error.ends_with("call Trainer::lbfgs_step"), "{error}");
    }
    let error = build(network().optimizer(Sgd::new(0.1))).lbfgs_step(&data).unwrap_err().to_string();
    assert!(error.contains("sgd is not lbfgs"), "{error}");
}

/// Frozen parameters stay, and the others are trained.
#[test]
fn frozen_parameters_stay() {
    let data = data();
    let model = Sequential::new().add(Dense::new(9)).add(Relu).add(Dense::new(CLASSES));
    let rule = Lbfgs::new().freeze(|name| name.starts_with("0."));
    let builder = Trainer::builder(model).optimizer(rule).global_batch(50).replicas(1);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let before = trainer.weights().unwrap();
    let step = trainer.lbfgs_step(&data).unwrap();
    assert!(step.loss < step.loss_before);
    let after = trainer.weights().unwrap();
    let same: Vec<&String> = before.keys().filter(|name| before[*name] == after[*name]).collect();
    assert_eq!(same, ["0.bias", "0.weight"]);
}

/// Keeps what observers are told.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// The first step looks at the values of the samples as a fit does, and an evaluation compares its own.
#[test]
fn values_of_another_size_are_noted() {
    let pixels = |divided_by: f32| {
        let x: Vec<f32> = (0..960).map(|i| ((i * 37) % 256) as f32 / divided_by).collect();
        let y: Vec<i32> = (0..60).map(|i| i % 2).collect();
        Loader::new(unisono::data::Memory::labelled(x, [4, 4], y).unwrap())
    };
    let (data, notes) = (pixels(1.0), Notes::default());
    let builder = Trainer::builder(Sequential::new().add(Flatten).add(Dense::new(2)));
    let builder = builder.optimizer(Lbfgs::new()).observer(notes.clone());
    let mut trainer = builder.global_batch(60).replicas(1).build(&data.fields().unwrap()).unwrap();
    trainer.lbfgs_step(&data).unwrap();
    trainer.evaluate(&pixels(255.0)).unwrap();
    let notes = notes.0.lock().unwrap();
    let told = |text: &str| notes.iter().filter(|note| note.contains(text)).count();
    assert_eq!(told("whole numbers up to 255"), 1, "{notes:?}");
    assert_eq!(told("apply transforms such as normalize or rescale to all loaders"), 1, "{notes:?}");
    assert_eq!(told("shuffle"), 0, "{notes:?}");
}
