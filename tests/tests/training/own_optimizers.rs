//! Transforms of gradients that a user defines, and steps at which an optimizer's numbers are not finite.

use std::path::Path;

use unisono::data::{Batch, Draws, Field, Loader, Sample};
use unisono::{
    Builder, Chain, Dense, Dropout, Epoch, Error, Gradient, GradientTransform, Groups, Optimizer, Relu,
    Scalar, Schedule, Sequential, Sgd, Tape, Trainer, Update, Var,
};
use unisono_tests::{CLASSES, loader};

const EPOCHS: u32 = 3;

/// Returns a trainer whose steps are four an epoch on 50 samples.
fn build(optimizer: impl Into<Chain>, replicas: usize, data: &Loader) -> Trainer {
    let model =
        Sequential::new().add(Dense::new(8)).add(Relu).add(Dropout::new(0.25)).add(Dense::new(CLASSES));
    let builder = Trainer::builder(model).optimizer(optimizer).seed(11).global_batch(16).shards(4);
    builder.replicas(replicas).build(&data.fields().unwrap()).unwrap()
}

/// Subtracts from each gradient of a matrix its mean.
struct Centralise;

impl GradientTransform for Centralise {
    fn name(&self) -> &str {
        "centralise 1"
    }
    fn transform(&self, _: &Tape, gradients: &[Gradient]) -> Vec<Var> {
        let centralised = gradients.iter().map(|g| match g.gradient.dims() {
            [_, _] => &g.gradient - g.gradient.mean(&[0, 1]),
            _ => g.gradient.clone(),
        });
        centralised.collect()
    }
}

/// Divides all gradients by the largest of their elements' absolute values, and multiplies them by 0.1.
struct Rescale;

impl GradientTransform for Rescale {
    fn name(&self) -> &str {
        "rescale 1"
    }
    fn transform(&self, tape: &Tape, gradients: &[Gradient]) -> Vec<Var> {
        let axes = |g: &Var| (0..g.dims().len() as isize).collect::<Vec<_>>();
        let largest = gradients.iter().map(|g| g.gradient.abs().max(&axes(&g.gradient)));
        let Some(largest) = largest.reduce(|a, b| a.maximum(&b)) else { return vec![] };
        let factor = tape.constant(0.1) / (largest + 1e-6);
        gradients.iter().map(|g| &g.gradient * &factor).collect()
    }
}

#[test]
fn a_users_transform_of_gradients_gives_the_same_bytes_on_any_number_of_replicas() {
    let data = loader(50, 5).unwrap();
    let run = |optimizer: Chain, replicas| {
        let mut trainer = build(optimizer, replicas, &data);
        let start = trainer.tensor("0.weight").unwrap().unwrap();
        trainer.fit(&data, None, EPOCHS).unwrap();
        let end = trainer.tensor("0.weight").unwrap().unwrap();
        let moved: Vec<f32> = end.iter().zip(&start).map(|(end, start)| end - start).collect();
        (trainer.state_sha256().unwrap(), moved)
    };
    let plain = || Chain::from(Sgd::new(0.1));
    let rescaled = || Sgd::new(0.1).transform_gradients(Rescale).transform_gradients(Centralise);
    let ((one, moved), (three, _)) = (run(rescaled(), 1), run(rescaled(), 3));
    assert_eq!(one, three);
    let sum = |moved: &[f32]| moved.iter().sum::<f32>().abs();
    let size = moved.iter().map(|x| x.abs()).sum::<f32>();
    assert!(size > 0.1 && sum(&moved) < 1e-4 * size, "the weights' sum moved by {} of {size}", sum(&moved));
    let (other, moved) = run(plain(), 1);
    assert_ne!(one, other);
    assert!(sum(&moved) > 1e-3, "without the transform it moves");
}

/// A learning rate that is good but for one step.
fn wrong_at(bad_step: u64, lr: f64) -> Schedule {
    Schedule::function(move |step| if step == bad_step { lr } else { 0.1 })
}

/// A rule of a user whose scalar is infinite at step 7.
struct Own;

impl Optimizer for Own {
    fn name(&self) -> &str {
        "own"
    }
    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("pace", 0.1 / (7.0 - step as f32).abs())]
    }
    fn observe(&mut self, _: &[Epoch]) -> Result<(), String> {
        Ok(())
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        weight - gradient * cx.scalar("pace")
    }
}

/// Fits until the optimizer's numbers are not finite, and checks that this is an error of its step, before
/// which everything is as it was. Returns the trainer.
fn refused_at_step_7(optimizer: Chain, problem: &str, data: &Loader, dir: &Path) -> Trainer {
    let mut trainer = build(optimizer, 2, data);
    trainer.checkpoints(dir, 0).unwrap();
    let error = trainer.fit(data, None, EPOCHS).unwrap_err();
    assert!(matches!(error, Error::Setting { setting: "optimizer", .. }), "{error}");
    let expected = format!("optimizer: {problem}, and must be finite");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(trainer.steps(), 7);
    assert!(trainer.tensor("0.weight").unwrap().unwrap().iter().all(|x| x.is_finite()));
    let saved = unisono::SavedRun::newest(dir).unwrap().unwrap();
    assert_eq!(saved.steps(), 7, "what was done before is saved");
    trainer
}

#[test]
fn a_schedule_that_is_nan_at_step_7_is_an_error_before_that_step() {
    let data = loader(50, 5).unwrap();
    let mut expected = build(Sgd::new(0.1), 1, &data);
    expected.fit(&data, None, EPOCHS).unwrap();
    let expected = expected.state_sha256().unwrap();
    for (lr, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-1e300, &format!("{}", -1e300))] {
        let dir = tempfile::tempdir().unwrap();
        let problem = format!("sgd: the learning rate of step 7 is {shown}");
        let mut trainer = refused_at_step_7(Sgd::new(wrong_at(7, lr)).into(), &problem, &data, dir.path());
        // Another attempt is the same error, and the state stays what it was.
        let before = trainer.state_sha256().unwrap();
        assert!(trainer.fit(&data, None, EPOCHS).is_err());
        assert_eq!((trainer.state_sha256().unwrap(), trainer.steps()), (before, 7));
        drop(trainer);
        let mut mended = build(Sgd::new(0.1), 3, &data);
        mended.checkpoints(dir.path(), 0).unwrap();
        // The schedule is another one, which makes it another run.
        assert!(mended.resume().is_err());
        assert_eq!(mended.force_resume().unwrap().unwrap().step, 7);
        mended.fit(&data, None, EPOCHS).unwrap();
        assert_eq!(mended.state_sha256().unwrap(), expected);
    }
}

#[test]
fn numbers_of_groups_and_of_a_users_optimizer_are_looked_at_too() {
    let data = loader(50, 5).unwrap();
    let groups =
        Groups::new(Sgd::new(0.1)).group(|name| name.ends_with("bias"), Sgd::new(wrong_at(7, f64::NAN)));
    let cases: [(Chain, &str); 2] = [
        (groups.into(), "sgd: the learning rate of step 7 is NaN"),
        (Own.into(), "own: the scalar \"pace\" of step 7 is inf"),
    ];
    for (optimizer, problem) in cases {
        let dir = tempfile::tempdir().unwrap();
        refused_at_step_7(optimizer, problem, &data, dir.path());
    }
}

/// Gradient descent on flat tensors, which keeps the weights before the last step and adds a part of the
/// difference.
struct Flat;

impl Optimizer for Flat {
    fn name(&self) -> &str {
        "flat"
    }
    fn scalars(&self, _: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", 0.1)]
    }
    fn observe(&mut self, _: &[Epoch]) -> Result<(), String> {
        Ok(())
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let flat = |x: &Var| x.reshape(&[x.ty().count()]);
        let before = cx.state("before", weight);
        cx.set(&before, &(weight * 1.0));
        let step = flat(gradient) * cx.scalar("lr") - (flat(weight) - flat(&before)) * 0.01;
        (flat(weight) - step).reshape(weight.dims())
    }
}

/// Returns 16 samples which all have this weight.
fn of_weight(weight: f32) -> Loader {
    let weigh = move |sample: &mut Sample, _: &mut Draws| sample.set("w", Field::f32([], [weight]));
    loader(16, 5).unwrap().map("weigh", weigh).batch(16)
}

/// Returns batches of samples whose weights are all these, one after the other.
fn weighed(weights: &[f32]) -> Vec<Batch> {
    let batch = |&weight: &f32| of_weight(weight).epoch(0).unwrap().next().unwrap().unwrap();
    weights.iter().map(batch).collect()
}

/// Returns the builder of a trainer for such batches.
fn for_weighed(optimizer: impl Into<Chain>, replicas: usize) -> Builder {
    let builder = Trainer::builder(Dense::new(CLASSES)).optimizer(optimizer).seed(11);
    builder.global_batch(16).shards(4).replicas(replicas)
}

fn build_for_weighed(builder: Builder) -> Trainer {
    builder.build(&of_weight(1.0).fields().unwrap()).unwrap()
}

/// An optimizer of a user may keep old weights, and compute new ones in another shape. Where all weights of
/// samples are 0, its 0 / 0 is nobody's business.
#[test]
fn an_optimizer_that_keeps_old_weights_has_those_of_before_the_step() {
    let run = |replicas| {
        let mut trainer = build_for_weighed(for_weighed(Flat, replicas));
        let mut weights = vec![trainer.tensor("weight").unwrap().unwrap()];
        for batch in weighed(&[1.0, 0.0, 1.0, 1.0]) {
            if trainer.step(&batch).unwrap().committed {
                weights.push(trainer.tensor("weight").unwrap().unwrap());
            }
        }
        let before = trainer.tensor("weight/before").unwrap().unwrap();
        (weights, before, trainer.state_sha256().unwrap())
    };
    let (weights, before, hash) = run(1);
    assert_eq!(weights.len(), 4);
    assert_eq!(before, weights[2]);
    assert!(before != weights[3]);
    assert_eq!(run(3).2, hash);
}

/// The first step that counts is the first one that commits: averages begin with it, and Adam's corrections.
#[test]
fn a_step_whose_weights_are_all_0_is_not_counted() {
    for replicas in [1, 2] {
        let run = |builder: Builder, weights: &[f32]| {
            let mut trainer = build_for_weighed(builder);
            let held_out = of_weight(1.0);
            let mut losses = vec![trainer.evaluate(&held_out).unwrap().loss];
            for batch in weighed(weights) {
                trainer.step(&batch).unwrap();
                losses.push(trainer.evaluate(&held_out).unwrap().loss);
            }
            (losses, trainer.tensor("weight").unwrap().unwrap())
        };
        let adam = || Chain::from(unisono::Adam::new(Schedule::cosine(0.02, 9).warm_up(2)));
        let averaged = || for_weighed(adam().average_weights(0.9), replicas).use_average_weights();
        let (losses, weight) = run(averaged(), &[0.0, 0.0, 1.0, 0.0, 1.0]);
        let (expected, same) = run(averaged(), &[1.0, 1.0]);
        assert_eq!([0, 1, 2].map(|at| losses[at]), [expected[0]; 3]);
        assert_eq!([3, 4, 5].map(|at| losses[at]), [1, 1, 2].map(|at| expected[at]));
        assert_eq!(weight, same);
        let (plain, _) = run(for_weighed(adam(), replicas), &[1.0, 1.0]);
        assert_eq!(plain[1], expected[1], "an average is the weight itself after the first step");
    }
}
