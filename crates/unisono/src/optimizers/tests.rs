mod composition;
mod settings;
mod sign_sgd;

use unisono_graph::{Array, Feed, Frame, StateKind, Tape, Type, interpret};

use super::*;
use sign_sgd::SignSgd;

const WEIGHT: [f64; 4] = [0.5, -1.0, 2.0, 0.25];
const BIAS: [f64; 2] = [0.1, -0.2];
/// The gradients of weight and bias. At each step they are multiplied by step + 1.
const GRADIENT: [f64; 6] = [0.3, -0.2, 0.05, 1.5, 0.7, -0.4];

/// Returns weight and bias after steps of an optimizer in the f64 interpreter.
fn run(optimizer: impl Into<Chain>, steps: u64) -> Vec<f64> {
    let optimizer = optimizer.into();
    let tape = Tape::new();
    let declare = |(name, dims): (&str, &[usize])| Gradient {
        name: name.into(),
        weight: tape.state(name, dims, StateKind::Parameter),
        gradient: tape.input(&format!("d{name}"), Type::global(dims)),
    };
    let gradients = [("0.weight", &[2usize, 2][..]), ("0.bias", &[2][..])].map(declare);
    trace_update(&tape, &optimizer, gradients.to_vec());
    let graph = tape.finish().unwrap();
    let mut states: Vec<Array> =
        graph.states.iter().map(|s| Array::new(&s.ty.dims, vec![0.0; s.ty.count()])).collect();
    (states[0].data, states[1].data) = (WEIGHT.to_vec(), BIAS.to_vec());
    for step in 0..steps {
        let mut inputs: Vec<Array> = [(&[2usize, 2][..], 0..4), (&[2][..], 4..6)]
            .map(|(dims, range)| {
                Array::new(dims, GRADIENT[range].iter().map(|g| g * (step + 1) as f64).collect())
            })
            .to_vec();
        let scalars = optimizer.scalars(step);
        assert_eq!(scalars.len() + 2, graph.inputs.len());
        inputs.extend(scalars.iter().map(|s| Array::scalar(f64::from(s.value))));
        let feed = Feed { frame: Frame { shards: vec![1] }, inputs, states: states.clone() };
        interpret(&graph, &feed).updates.into_iter().for_each(|(i, new)| states[i] = new);
    }
    states[0].data.iter().chain(&states[1].data).copied().collect()
}

/// Returns the same by a rule for one element. The rule takes the element's memory, its weight, its gradient
/// and the step from 1, and returns the new weight.
fn plain(steps: u64, rule: impl Fn(&mut [f64; 2], f64, f64, f64) -> f64) -> Vec<f64> {
    let element = |(&start, &g): (&f64, &f64)| {
        let mut memory = [0.0; 2];
        (1..=steps).fold(start, |w, t| rule(&mut memory, w, g * t as f64, t as f64))
    };
    WEIGHT.iter().chain(&BIAS).zip(&GRADIENT).map(element).collect()
}

fn close(a: &[f64], b: &[f64]) {
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-7), "{a:?} is not {b:?}");
}

#[test]
fn sgd_and_its_momentum() {
    close(&run(Sgd::new(0.1), 3), &plain(3, |_, w, g, _| w - 0.1 * g));
    let nesterov = plain(4, |m, w, g, _| {
        let g = g + 0.01 * w;
        m[0] = 0.9 * m[0] + g;
        w - 0.05 * (g + 0.9 * m[0])
    });
    close(&run(Sgd::new(0.05).momentum(0.9).nesterov().weight_decay(0.01), 4), &nesterov);
}

/// SignSgd is the optimizer that CONTRIBUTING.md shows as an example.
#[test]
fn the_optimizer_of_the_contributing_guide_works() {
    close(&run(SignSgd::new(0.1), 3), &plain(3, |_, w, g, _| w - 0.1 * g.signum()));
    let with_momentum = plain(4, |m, w, g, _| {
        m[0] = 0.9 * m[0] + g;
        w - 0.1 * m[0].signum()
    });
    close(&run(SignSgd::new(0.1).momentum(0.9), 4), &with_momentum);
    let mut own = SignSgd::new(0.1);
    assert!(own.schedule_mut().is_some() && own.check().is_ok());
    assert!(SignSgd::new(f64::NAN).check().is_err());
    let settings = format!("{:?}", own.settings());
    assert!(settings.contains("lr") && settings.contains("momentum"), "{settings}");
}

#[test]
fn adam_couples_decay_and_adamw_does_not() {
    let adam = |m: &mut [f64; 2], g: f64, t: f64| {
        m[0] = 0.9 * m[0] + 0.1 * g;
        m[1] = 0.999 * m[1] + 0.001 * g * g;
        m[0] / (1.0 - 0.9f64.powf(t)) / ((m[1] / (1.0 - 0.999f64.powf(t))).sqrt() + 1e-8)
    };
    let coupled = plain(5, |m, w, g, t| w - 0.01 * adam(m, g + 0.1 * w, t));
    close(&run(Adam::new(0.01).weight_decay(0.1), 5), &coupled);
    let decoupled = plain(5, |m, w, g, t| w * (1.0 - 0.01 * 0.1) - 0.01 * adam(m, g, t));
    close(&run(AdamW::new(0.01).weight_decay(0.1), 5), &decoupled);
}

#[test]
fn rmsprop_and_adagrad() {
    let rmsprop = plain(4, |m, w, g, _| {
        m[0] = 0.9 * m[0] + 0.1 * g * g;
        m[1] = 0.5 * m[1] + g / (m[0].sqrt() + 1e-8);
        w - 0.01 * m[1]
    });
    close(&run(RmsProp::new(0.01).alpha(0.9).momentum(0.5), 4), &rmsprop);
    let under_root = plain(4, |m, w, g, _| {
        m[0] = 0.9 * m[0] + 0.1 * g * g;
        w - 0.01 * g / (m[0] + 0.01).sqrt()
    });
    close(&run(RmsProp::new(0.01).alpha(0.9).epsilon(0.01).epsilon_under_root(), 4), &under_root);
    let centred = plain(4, |m, w, g, _| {
        m[0] = 0.9 * m[0] + 0.1 * g * g;
        m[1] = 0.9 * m[1] + 0.1 * g;
        w - 0.01 * g / ((m[0] - m[1] * m[1]).sqrt() + 1e-8)
    });
    close(&run(RmsProp::new(0.01).alpha(0.9).centered(), 4), &centred);
    let adagrad = plain(4, |m, w, g, t| {
        m[0] += g * g;
        w - 0.1 / (1.0 + (t - 1.0) * 0.5) * g / (m[0].sqrt() + 1e-10)
    });
    close(&run(Adagrad::new(0.1).lr_decay(0.5), 4), &adagrad);
}

/// Biases have no second axis: Muon leaves them to AdamW, and Adafactor keeps their squares whole.
#[test]
fn optimizers_of_matrices_have_a_rule_for_biases() {
    let muon = run(Muon::new(0.5).others(AdamW::new(0.01).weight_decay(0.1)), 3);
    close(&muon[4..], &run(AdamW::new(0.01).weight_decay(0.1), 3)[4..]);
    assert!(muon[..4].iter().zip(&WEIGHT).all(|(new, old)| (new - old).abs() > 0.1), "{muon:?}");
    let adafactor = run(Adafactor::new(0.1).weight_decay(0.2), 1);
    // The first squared gradient is all of the average, so that the step is the sign, as long as w is on
    // average.
    let size = 0.1 * norm(&BIAS) / 2f64.sqrt();
    let expected: Vec<f64> =
        BIAS.iter().zip(&GRADIENT[4..]).map(|(w, g)| w * (1.0 - 0.1 * 0.2) - size * g.signum()).collect();
    close(&adafactor[4..], &expected);
}

/// Exempt from decay, the rules with decoupled decay leave it out.
#[test]
fn decoupled_decay_knows_exemptions() {
    let pairs: [(Chain, Chain); 4] = [
        (Lion::new(0.1).weight_decay(0.3).decay_exempt(|_| true), Lion::new(0.1).into()),
        (Muon::new(0.1).decay_exempt(|_| true), Muon::new(0.1).weight_decay(0.0).into()),
        (Adafactor::new(0.1).weight_decay(0.3).decay_exempt(|_| true), Adafactor::new(0.1).into()),
        (NAdam::new(0.1).weight_decay(0.3).decoupled().decay_exempt(|_| true), NAdam::new(0.1).into()),
    ];
    for (exempt, without) in pairs {
        let name = exempt.name().to_owned();
        let (exempt, without) = (run(exempt, 2), run(without, 2));
        assert!(exempt.iter().zip(&without).all(|(a, b)| (a - b).abs() < 1e-9), "{name}");
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn lars_and_lamb_scale_by_norms() {
    let ratio = 0.001 * norm(&WEIGHT) / (norm(&GRADIENT[..4]) + 0.01 * norm(&WEIGHT));
    let lars = Lars::new(0.5).weight_decay(0.01).no_decay_for_biases_and_norms();
    let expected =
        plain(1, |_, w, g, _| if BIAS.contains(&w) { w - 0.5 * g } else { w - 0.5 * ratio * (g + 0.01 * w) });
    close(&run(lars, 1), &expected);
    // At the first step Adam's direction is the sign of the gradient.
    let direction: Vec<f64> = WEIGHT.iter().zip(&GRADIENT).map(|(w, g)| g.signum() + 0.01 * w).collect();
    let ratio = norm(&WEIGHT) / norm(&direction);
    let expected: Vec<f64> = WEIGHT.iter().zip(&direction).map(|(w, d)| w - 0.1 * ratio * d).collect();
    let lamb = run(Lamb::new(0.1).weight_decay(0.01), 1);
    lamb.iter().zip(&expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} is not {b}"));
}

/// A gradient of 0 says nothing about the step's size, so that the decay alone is as large as it says.
#[test]
fn lars_does_not_scale_where_a_norm_is_0() {
    let tape = Tape::new();
    let weight = tape.state("w", &[2], StateKind::Parameter);
    let gradient = tape.input("dw", Type::global(&[2]));
    let lars: Chain = Lars::new(0.5).weight_decay(0.01).into();
    trace_update(&tape, &lars, vec![Gradient { name: "w".into(), weight, gradient }]);
    let graph = tape.finish().unwrap();
    let scalars = lars.scalars(0);
    let scalars = scalars.iter().map(|s| Array::scalar(f64::from(s.value)));
    let inputs = std::iter::once(Array::new(&[2], vec![0.0; 2])).chain(scalars).collect();
    let mut states: Vec<Array> =
        graph.states.iter().map(|s| Array::new(&s.ty.dims, vec![0.0; s.ty.count()])).collect();
    states[0].data = vec![2.0, -1.0];
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs, states };
    close(&interpret(&graph, &feed).updates[&0].data, &[2.0 * 0.995, -0.995]);
}

#[test]
fn gradients_are_clipped_together_or_one_by_one() {
    let scale = |t: f64| (0.5 / (norm(&GRADIENT) * t + 1e-6)).min(1.0);
    close(&run(Sgd::new(0.1).clip_norm(0.5), 2), &plain(2, |_, w, g, t| w - 0.1 * g * scale(t)));
    close(&run(Sgd::new(0.1).clip_norm(50.0), 2), &plain(2, |_, w, g, _| w - 0.1 * g));
    close(&run(Sgd::new(0.1).clip_value(0.25), 2), &plain(2, |_, w, g, _| w - 0.1 * g.clamp(-0.25, 0.25)));
}

#[test]
fn parameters_have_groups_exemptions_and_rest() {
    close(&run(Sgd::new(0.1).freeze(|name| name.ends_with("bias")), 2)[4..], &BIAS);
    close(
        &run(Sgd::new(0.1).freeze(|name| name.ends_with("bias")), 1)[..4],
        &plain(1, |_, w, g, _| w - 0.1 * g)[..4],
    );
    let groups =
        Groups::new(Sgd::new(0.1)).group(|name| name.ends_with("bias"), Sgd::new(0.5)).clip_norm(100.0);
    let trained = run(groups, 2);
    close(&trained[..4], &plain(2, |_, w, g, _| w - 0.1 * g)[..4]);
    close(&trained[4..], &plain(2, |_, w, g, _| w - 0.5 * g)[4..]);
    let exempt = run(Sgd::new(0.1).weight_decay(0.3).decay_exempt(|name| name == "0.bias"), 1);
    close(&exempt[4..], &plain(1, |_, w, g, _| w - 0.1 * g)[4..]);
    close(&exempt[..4], &plain(1, |_, w, g, _| w - 0.1 * (g + 0.3 * w))[..4]);
}

#[test]
fn learning_rates_follow_their_schedule() {
    let trained = run(Sgd::new(Schedule::step(0.1, 2, 0.5)), 4);
    let lr = |t: f64| if t < 2.5 { 0.1 } else { 0.05 };
    close(&trained, &plain(4, |_, w, g, t| w - lr(t) * g));
}
