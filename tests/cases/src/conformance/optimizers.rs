//! Cases of optimizers: the public optimizers run on the gradients of a case.

use unisono::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Chain, Gradient, Lamb, Lars, Lion, Muon, NAdam,
    RmsProp, Schedule, Sgd, trace_update,
};
use unisono_graph::{Array, Graph, Program, StateKind, Tape, Type};

use super::Case;

/// The compiled update of an optimizer, with the inputs of each step.
pub struct Steps {
    /// The graph that updates the states.
    pub graph: Graph,
    /// The program of the graph.
    pub program: Program,
    /// The states before the first step. The first one is the weight.
    pub states: Vec<Array>,
    /// The inputs of the program for each step.
    pub inputs: Vec<Vec<Array>>,
}

/// Returns the steps of a case, or `None` if it is not a case of an optimizer.
pub fn steps(case: &Case) -> Option<Result<Steps, String>> {
    if case.op == "optimizer" {
        return case.part("optimizer").and_then(|part| steps(&part));
    }
    Some(optimizer(case)?.and_then(|optimizer| trace(case, &optimizer)))
}

fn trace(case: &Case, optimizer: &Chain) -> Result<Steps, String> {
    let (Some(start), Some(gradients)) = (case.inputs.get("w"), case.inputs.get("g")) else {
        return Err("an optimizer needs w and g".into());
    };
    let tape = Tape::new();
    let weight = tape.state("w", &start.dims, StateKind::Parameter);
    let gradient = tape.input("g", Type::global(&start.dims));
    trace_update(&tape, optimizer, vec![Gradient { name: "w".into(), weight, gradient }]);
    let graph = tape.finish().map_err(|e| e.to_string())?;
    let program = Program::compile(&graph).map_err(|e| e.to_string())?;
    let zeros = |dims: &[usize]| Array::new(dims, vec![0.0; dims.iter().product()]);
    let mut states: Vec<Array> = program.states().iter().map(|s| zeros(&s.ty.dims)).collect();
    states[0] = Array::new(&start.dims, start.data.clone());
    let each = gradients.data.chunks(start.data.len().max(1)).enumerate();
    let inputs = each.map(|(step, gradient)| {
        let scalars = optimizer.scalars(step as u64);
        let input = |name: &str| match scalars.iter().find(|s| s.name == name) {
            Some(scalar) => Array::scalar(f64::from(scalar.value)),
            None => Array::new(&start.dims, gradient.to_vec()),
        };
        program.inputs().iter().map(|i| input(&i.name)).collect()
    });
    Ok(Steps { inputs: inputs.collect(), states, graph, program })
}

/// Returns the optimizer that a case names, or `None` if it names none.
pub fn optimizer(case: &Case) -> Option<Result<Chain, String>> {
    let lr = || {
        let lr = case.number("lr")?;
        Some(match case.numbers("restarts").as_deref() {
            Some([first, factor, end]) => {
                Schedule::cosine_restarts(lr, *first as u64, *factor as u64).end(*end)
            }
            _ => schedule(case, lr)?,
        })
    };
    /// Sets what the case has; all else keeps the optimizer's own defaults.
    macro_rules! set {
        ($rule:expr, $($setting:ident: $attr:literal),*) => {{
            let mut rule = $rule;
            $(if let Some(value) = case.number($attr) {
                rule = rule.$setting(value);
            })*
            rule
        }};
    }
    /// Sets the betas too.
    macro_rules! with_betas {
        ($rule:expr) => {{
            let rule = set!($rule, weight_decay: "weight_decay");
            match case.numbers("betas").as_deref() {
                Some(&[beta1, beta2]) => rule.betas(beta1, beta2),
                _ => rule,
            }
        }};
    }
    let Some(lr) = lr() else { return is_known(&case.op).then(|| Err("there is no lr".into())) };
    Some(Ok(match case.op.as_str() {
        "average_weights" => Chain::from(Sgd::new(lr)).average_weights(case.number("decay")?),
        "sgd" | "sgd_momentum" | "sgd_nesterov" => {
            let sgd = set!(Sgd::new(lr), momentum: "momentum", weight_decay: "weight_decay");
            clipped(case, if case.flag("nesterov") { sgd.nesterov() } else { sgd })
        }
        "adam" => clipped(case, set!(with_betas!(Adam::new(lr)), epsilon: "eps")),
        "adamw" => clipped(case, set!(with_betas!(AdamW::new(lr)), epsilon: "eps")),
        "rmsprop" => {
            let rule = set!(RmsProp::new(lr), alpha: "alpha", epsilon: "eps", momentum: "momentum");
            let rule = set!(rule, weight_decay: "weight_decay");
            clipped(case, if case.flag("centered") { rule.centered() } else { rule })
        }
        "adagrad" => {
            let rule = set!(Adagrad::new(lr), lr_decay: "lr_decay", epsilon: "eps");
            clipped(case, set!(rule, weight_decay: "weight_decay"))
        }
        "lamb" => clipped(case, set!(with_betas!(Lamb::new(lr)), epsilon: "eps")),
        "lars" => {
            let rule = set!(Lars::new(lr), momentum: "momentum", weight_decay: "weight_decay");
            clipped(case, set!(rule, trust: "trust"))
        }
        "adadelta" => {
            let rule = set!(Adadelta::new(lr), rho: "rho", epsilon: "eps");
            clipped(case, set!(rule, weight_decay: "weight_decay"))
        }
        "adamax" => clipped(case, set!(with_betas!(Adamax::new(lr)), epsilon: "eps")),
        "nadam" => {
            let rule = set!(with_betas!(NAdam::new(lr)), epsilon: "eps", momentum_decay: "momentum_decay");
            clipped(case, if case.flag("decoupled_weight_decay") { rule.decoupled() } else { rule })
        }
        "lion" => clipped(case, with_betas!(Lion::new(lr))),
        "adafactor" => {
            let rule = set!(Adafactor::new(lr), clip: "d", beta2_decay: "beta2_decay");
            let rule = set!(rule, weight_decay: "weight_decay");
            clipped(
                case,
                match case.numbers("eps").as_deref() {
                    Some(&[epsilon1, epsilon2]) => rule.epsilons(epsilon1, epsilon2),
                    _ => rule,
                },
            )
        }
        "muon" => {
            let mut rule = set!(Muon::new(lr), momentum: "momentum", weight_decay: "weight_decay");
            if let Some(iterations) = case.number("ns_steps") {
                rule = rule.iterations(iterations as usize);
            }
            let nesterov = case.attrs.get("nesterov").is_none_or(|value| value == true);
            clipped(case, if nesterov { rule } else { rule.no_nesterov() })
        }
        _ => return None,
    }))
}

/// Returns the schedule in a case's attribute `schedule`, or that of a constant rate if there is none.
fn schedule(case: &Case, lr: f64) -> Option<Schedule> {
    let Some(settings) = case.attrs.get("schedule") else { return Some(Schedule::constant(lr)) };
    let (whole, number) = (|name| settings.get(name)?.as_u64(), |name| settings.get(name)?.as_f64());
    let schedule = match settings.get("kind")?.as_str()? {
        "step" => Schedule::step(lr, whole("every")?, number("factor")?),
        "cosine" => Schedule::cosine(lr, whole("steps")?).end(number("end")?),
        "restarts" => Schedule::cosine_restarts(lr, whole("first")?, whole("factor")?).end(number("end")?),
        "polynomial" => Schedule::polynomial(lr, whole("steps")?, number("power")?),
        "one_cycle" => Schedule::one_cycle(lr, whole("steps")?),
        _ => return None,
    };
    Some(schedule.warm_up(whole("warm_up").unwrap_or(0)))
}

fn is_known(op: &str) -> bool {
    const KNOWN: [&str; 16] = [
        "average_weights",
        "sgd",
        "sgd_momentum",
        "sgd_nesterov",
        "adam",
        "adamw",
        "rmsprop",
        "adagrad",
        "lamb",
        "lars",
        "adadelta",
        "adamax",
        "nadam",
        "lion",
        "adafactor",
        "muon",
    ];
    KNOWN.contains(&op)
}

/// Adds the transforms that a case asks for to an optimizer.
fn clipped(case: &Case, optimizer: impl Into<Chain>) -> Chain {
    let mut chain = optimizer.into();
    // The transform that was added last comes first: here the norm, then the values.
    if let Some(value) = case.number("clip_grad_value") {
        chain = chain.clip_value(value as f32);
    }
    if let Some(norm) = case.number("clip_grad_norm") {
        chain = chain.clip_norm(norm as f32);
    }
    if let Some(decay) = case.number("average") {
        chain = chain.average_weights(decay);
    }
    if let Some(rho) = case.number("sharpness") {
        chain = chain.sharpness_aware(rho as f32);
    }
    if case.flag("exempt") {
        chain = chain.no_decay_for_biases_and_norms();
    }
    match case.text("freeze").map(str::to_owned) {
        Some(prefix) => chain.freeze(move |name| name.starts_with(&prefix)),
        None => chain,
    }
}
