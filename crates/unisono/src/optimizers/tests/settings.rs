//! Settings that cannot work are errors that name optimizer and setting.

use unisono_graph::{StateKind, Tape, Type};

use super::super::*;

/// A rule of a user, who gave no check of settings.
struct Own;

impl Optimizer for Own {
    fn name(&self) -> &str {
        "own"
    }
    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("pace", 0.0 / step as f32)]
    }
    fn observe(&mut self, _: &[Epoch]) -> Result<(), String> {
        Ok(())
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        weight - gradient * cx.scalar("pace")
    }
}

/// A transform that gives so many numbers for all gradients.
struct Wrong(usize);

impl GradientTransform for Wrong {
    fn name(&self) -> &str {
        "wrong 1"
    }
    fn transform(&self, tape: &Tape, _: &[Gradient]) -> Vec<Var> {
        vec![tape.constant(1.0); self.0]
    }
}

/// Returns the error of tracing an optimizer, which a trainer's build returns.
fn error(optimizer: impl Into<Chain>) -> String {
    let tape = Tape::new();
    let weight = tape.state("w", &[2], StateKind::Parameter);
    let gradient = tape.input("dw", Type::global(&[2]));
    trace_update(&tape, &optimizer.into(), vec![Gradient { name: "w".into(), weight, gradient }]);
    tape.finish().map_or_else(|error| error.to_string(), |_| "taken".into())
}

#[test]
fn each_is_named() {
    let nan = f64::NAN;
    let cases: Vec<(Chain, &str)> = vec![
        (Sgd::new(nan).into(), "sgd: the learning rate of step 0 is NaN, and must be finite"),
        (Sgd::new(1e300).into(), "sgd: the learning rate of step 0 is 1000000"),
        (
            Sgd::new(Schedule::function(|step| 0.0 / step as f64)).into(),
            "sgd: the learning rate of step 0 is NaN",
        ),
        (AdamW::new(Schedule::cosine(nan, 9).warm_up(3)).into(), "adamw: the learning rate of step 0 is NaN"),
        (Adadelta::new(0.1).epsilon(0.0).into(), "adadelta: epsilon is 0, and must be finite and above 0"),
        (Sgd::new(0.1).momentum(-0.5).into(), "sgd: momentum is -0.5, and must be in [0, 1]"),
        (Sgd::new(0.1).weight_decay(nan).into(), "sgd: weight_decay is NaN"),
        (Adam::new(0.1).betas(-0.1, 0.9).into(), "adam: beta1 is -0.1, and must be in [0, 1)"),
        (Adam::new(0.1).betas(0.9, 1.0).into(), "adam: beta2 is 1, and must be in [0, 1)"),
        (AdamW::new(0.1).betas(nan, 0.9).into(), "adamw: beta1 is NaN"),
        (AdamW::new(0.1).epsilon(-1e-8).into(), "adamw: epsilon is -0.00000001"),
        (AdamW::new(0.1).weight_decay(-0.1).into(), "adamw: weight_decay is -0.1"),
        (Lamb::new(0.1).epsilon(f64::INFINITY).into(), "lamb: epsilon is inf"),
        (Lars::new(0.1).trust(nan).into(), "lars: trust is NaN"),
        (Lars::new(0.1).momentum(nan).into(), "lars: momentum is NaN"),
        (Adagrad::new(0.1).lr_decay(-1.0).into(), "adagrad: lr_decay is -1"),
        (Adagrad::new(0.1).epsilon(nan).into(), "adagrad: epsilon is NaN"),
        (RmsProp::new(0.1).alpha(1.5).into(), "rmsprop: alpha is 1.5, and must be in [0, 1)"),
        (RmsProp::new(0.1).epsilon(nan).into(), "rmsprop: epsilon is NaN"),
        (Adadelta::new(nan).into(), "adadelta: the learning rate of step 0 is NaN"),
        (Adadelta::new(1.0).rho(1.0).into(), "adadelta: rho is 1, and must be in [0, 1)"),
        (Adadelta::new(1.0).epsilon(-1.0).into(), "adadelta: epsilon is -1"),
        (Adamax::new(0.1).betas(0.9, 1.5).into(), "adamax: beta2 is 1.5"),
        (Adamax::new(0.1).epsilon(0.0).into(), "adamax: epsilon is 0, and must be at least 1.2e-38"),
        (NAdam::new(0.1).momentum_decay(-1.0).into(), "nadam: momentum_decay is -1"),
        (NAdam::new(0.1).weight_decay(nan).into(), "nadam: weight_decay is NaN"),
        (Lion::new(0.1).betas(0.9, nan).into(), "lion: beta2 is NaN, and must be in [0, 1)"),
        (Lion::new(0.1).weight_decay(-1.0).into(), "lion: weight_decay is -1"),
        (
            Adafactor::new(0.1).beta2_decay(0.5).into(),
            "adafactor: beta2_decay is 0.5, and must be finite and not above 0",
        ),
        (
            Adafactor::new(0.1).epsilons(0.0, 1e-3).into(),
            "adafactor: epsilon1 is 0, and must be finite and at least 1e-18",
        ),
        (Adafactor::new(0.1).epsilons(1e-7, -1.0).into(), "adafactor: epsilon2 is -1"),
        (Adafactor::new(0.1).clip(nan).into(), "adafactor: clip is NaN"),
        (Muon::new(0.1).momentum(1.0).into(), "muon: momentum is 1, and must be in [0, 1)"),
        (Muon::new(0.1).iterations(0).into(), "muon: iterations is 0, and must be in 1..100"),
        (Muon::new(0.1).others(AdamW::new(0.1).epsilon(nan)).into(), "muon: others: epsilon is NaN"),
        (Sgd::new(Schedule::cosine_restarts(0.1, 0, 1)).into(), "sgd: restarts after 0 steps"),
        (Sgd::new(0.1).clip_norm(f32::NAN), "clip_norm is NaN, and must be above 0"),
        (Sgd::new(0.1).average_weights(1.0), "the decay of average_weights is 1, and must be in [0, 1)"),
        (Sgd::new(0.1).average_weights(0.9).average_weights(0.5), "average_weights is there twice"),
        (Sgd::new(0.1).average_weights(0.0), "the decay of average_weights is 0: the average is then the"),
        (Sgd::new(0.1).clip_value(-1.0), "clip_value is -1, and must be above 0"),
        (Sgd::new(0.1).clip_value(0.0), "clip_value is 0, and must be above 0: omit it"),
        (Sgd::new(0.1).clip_norm(0.0), "clip_norm is 0, and must be above 0: omit it"),
        (Sgd::new(0.1).momentum(1.5).into(), "sgd: momentum is 1.5, and must be in [0, 1]"),
        (Lars::new(0.1).momentum(1.5).into(), "lars: momentum is 1.5, and must be in [0, 1]"),
        (RmsProp::new(0.1).momentum(1.5).into(), "rmsprop: momentum is 1.5, and must be in [0, 1]"),
        (Sgd::new(Schedule::cosine(0.1, 0)).into(), "sgd: a cosine over 0 steps needs at least 1"),
        (
            Groups::new(Sgd::new(0.1)).group(|_| false, Adam::new(nan).clip_norm(1.0)).into(),
            "adam: the learning rate of step 0 is NaN",
        ),
        (Sgd::new(0.1).sharpness_aware(0.0), "rho of sharpness_aware is 0, and must be finite and above 0"),
        (Sgd::new(0.1).sharpness_aware(0.1).sharpness_aware(0.2), "sharpness_aware is there twice"),
        (
            Groups::new(Sgd::new(0.1)).group(|_| true, Sgd::new(0.1).sharpness_aware(0.1)).into(),
            "sharpness_aware is in a group: put it around the groups",
        ),
        (Own.into(), "own: the scalar \"pace\" of step 0 is NaN, and must be finite"),
        (Adam::new(3e38).betas(0.999, 0.9).into(), "adam: the scalar \"step\" of step 0 is inf"),
        (AdamW::new(0.1).weight_decay(1e300).into(), "adamw: weight_decay is 1000000"),
        (Sgd::new(0.1).transform_gradients(Wrong(2)), "wrong 1: 1 gradients became 2"),
        (Sgd::new(0.1).transform_gradients(Wrong(1)), "wrong 1: the gradient of w, [2], became []"),
    ];
    for (optimizer, problem) in cases {
        let error = error(optimizer);
        assert!(error.contains(&format!("optimizer: {problem}")), "{problem:?} is not in: {error}");
    }
}

#[test]
fn settings_at_their_ends_are_taken() {
    let ends: [Chain; 4] = [
        Sgd::new(0.0).momentum(1.0).into(),
        Adam::new(0.1).betas(0.0, 0.0).epsilon(0.0).into(),
        RmsProp::new(0.1).alpha(0.0).into(),
        Sgd::new(0.1).clip_norm(1e-30).clip_value(f32::INFINITY),
    ];
    for optimizer in ends {
        assert_eq!(error(optimizer), "taken");
    }
}

/// The biases' learning rate is checked at each step, as that of the matrices is.
#[test]
fn muon_checks_both_learning_rates_of_a_step() {
    let falling = Schedule::function(|step| 3e-4 * (1.0 - step as f64 / 10.0));
    let muon: Chain = Muon::new(0.02).others(AdamW::new(falling)).into();
    assert!(muon.finite_scalars(9).is_ok());
    let error = muon.finite_scalars(11).unwrap_err();
    assert!(error.starts_with("muon: others: the learning rate of step 11 is -"), "{error}");
}
