//! Transforms between an optimizer and the trainer: each does its own work and passes everything else on.

use super::*;
use crate::Evaluation;

/// An optimizer with decay, whose learning rate is the number of epochs that it was shown.
struct Probe {
    epochs: usize,
}

impl Optimizer for Probe {
    fn name(&self) -> &str {
        "probe"
    }
    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("step", step as f32), Scalar::new("lr", self.epochs as f32)]
    }
    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.epochs = history.len();
        if history.len() > 2 { Err("too long".into()) } else { Ok(()) }
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        weight - cx.coupled_decay(0.5, weight, gradient) * cx.scalar("lr")
    }
}

fn history(epochs: u32) -> Vec<Epoch> {
    let epoch = |epoch| Epoch { epoch, steps: 0, train: Evaluation::default(), validation: None };
    (0..epochs).map(epoch).collect()
}

/// A transform and its effects.
struct Known {
    add: fn(Chain) -> Chain,
    /// What it does to the gradients of the parameters that are trained.
    prepare: fn(&mut [f64]),
    /// Whether it takes the bias out of weight decay.
    exempts_bias: bool,
    /// Whether it keeps the bias as it is.
    freezes_bias: bool,
}

fn keep(_: &mut [f64]) {}

/// Halves all gradients.
struct Halve;

impl GradientTransform for Halve {
    fn name(&self) -> &str {
        "halve 1"
    }
    fn transform(&self, tape: &unisono_graph::Tape, gradients: &[Gradient]) -> Vec<Var> {
        gradients.iter().map(|g| &g.gradient * tape.constant(0.5)).collect()
    }
}

fn known() -> [Known; 6] {
    let known = |add, prepare, exempts_bias, freezes_bias| Known { add, prepare, exempts_bias, freezes_bias };
    [
        known(
            |chain| chain.clip_norm(0.5),
            |gradients| {
                let scale = (0.5 / (norm(gradients) + 1e-6)).min(1.0);
                gradients.iter_mut().for_each(|g| *g *= scale);
            },
            false,
            false,
        ),
        known(
            |chain| chain.clip_value(0.2),
            |gradients| gradients.iter_mut().for_each(|g| *g = g.clamp(-0.2, 0.2)),
            false,
            false,
        ),
        known(
            |chain| chain.transform_gradients(Halve),
            |gradients| gradients.iter_mut().for_each(|g| *g *= 0.5),
            false,
            false,
        ),
        known(|chain| chain.decay_exempt(|name| name == "0.bias"), keep, true, false),
        known(|chain| chain.no_decay_for_biases_and_norms(), keep, true, false),
        known(|chain| chain.freeze(|name| name == "0.bias"), keep, false, true),
    ]
}

/// Returns the weights after the first step of a [`Probe`] with learning rate 2 inside of two transforms, the
/// inner one first.
fn expected([inner, outer]: [&Known; 2]) -> Vec<f64> {
    let frozen = inner.freezes_bias || outer.freezes_bias;
    let exempt = inner.exempts_bias || outer.exempts_bias;
    let mut gradients = GRADIENT[..if frozen { 4 } else { 6 }].to_vec();
    (outer.prepare)(&mut gradients);
    (inner.prepare)(&mut gradients);
    let weight = |i: usize| if i < 4 { WEIGHT[i] } else { BIAS[i - 4] };
    let decay = |i: usize| if i >= 4 && exempt { 0.0 } else { 0.5 };
    let new = |i: usize| match gradients.get(i) {
        Some(gradient) => weight(i) - 2.0 * (gradient + decay(i) * weight(i)),
        None => weight(i),
    };
    (0..6).map(new).collect()
}

#[test]
fn any_two_transforms_in_any_order_do_their_work_and_pass_the_rest_on() {
    for inner in &known() {
        for outer in &known() {
            let build = || (outer.add)((inner.add)(Probe { epochs: 0 }.into()));
            let mut chain = build();
            assert_eq!(chain.name(), "probe");
            assert_eq!(chain.observe(&history(3)), Err("too long".into()));
            chain.observe(&history(2)).unwrap();
            assert_eq!(chain.scalars(7), [Scalar::new("step", 7.0), Scalar::new("lr", 2.0)]);
            assert!(chain.trains("0.weight"));
            assert_eq!(chain.trains("0.bias"), !inner.freezes_bias && !outer.freezes_bias);
            let expected = expected([inner, outer]);
            close(&run(chain, 1), &expected);

            // In a group the chain does the same; only the names of the scalars differ.
            let mut groups: Chain = Groups::new(Sgd::new(0.1)).group(|_| true, build()).into();
            groups.observe(&history(2)).unwrap();
            assert_eq!(groups.name(), "sgd, probe");
            let names: Vec<String> = groups.scalars(0).into_iter().map(|s| s.name).collect();
            assert_eq!(names, ["group 0/lr", "group 1/step", "group 1/lr"]);
            close(&run(groups, 1), &expected);

            // Around groups the transforms do the same too.
            let groups = Groups::new(Probe { epochs: 0 }).group(|_| false, Sgd::new(0.1));
            let mut around = (outer.add)((inner.add)(groups.into()));
            around.observe(&history(2)).unwrap();
            close(&run(around, 1), &expected);
        }
    }
}

/// An average changes no weight, whatever is around it, and groups may have averages of their own.
#[test]
fn an_average_follows_the_weights() {
    let plain = run(Adam::new(0.1).freeze(|name| name == "0.bias"), 3);
    assert_eq!(run(Adam::new(0.1).average_weights(0.9).freeze(|name| name == "0.bias"), 3), plain);
    let groups =
        Groups::new(Sgd::new(0.1).average_weights(0.5)).group(|name| name == "0.bias", Sgd::new(0.5));
    let without = Groups::new(Sgd::new(0.1)).group(|name| name == "0.bias", Sgd::new(0.5));
    assert_eq!(run(groups, 3), run(without, 3));
    let around = Groups::new(Sgd::new(0.1)).average_weights(0.5);
    let names: Vec<String> = around.finite_scalars(1).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["group 0/lr", "average"]);
    assert_eq!(run(around, 3), run(Sgd::new(0.1), 3));
}

/// The transform that was added last sees the gradients first.
#[test]
fn clips_run_from_the_outermost_to_the_innermost() {
    let [clip_norm, clip_value, ..] = &known();
    let pairs = [[clip_norm, clip_value], [clip_value, clip_norm]];
    let [a, b] = pairs.map(expected);
    assert!(a.iter().zip(&b).any(|(a, b)| (a - b).abs() > 1e-3), "the order makes a difference");
    let chain = Sgd::new(0.1).clip_norm(0.5).clip_value(0.2).freeze(|_| false);
    let text = "Chain { name: \"sgd\", transforms: [ClipNorm(0.5), ClipValue(0.2), Freeze] }";
    assert_eq!(format!("{chain:?}"), text);
}

#[test]
fn an_optimizer_of_a_type_that_is_known_only_at_run_time_makes_a_chain() {
    let boxed: Box<dyn Optimizer> = Box::new(Sgd::new(0.1));
    assert_eq!(run(Chain::from(boxed).clip_value(0.1), 1), run(Sgd::new(0.1).clip_value(0.1), 1));
}
