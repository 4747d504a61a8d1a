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
            _ => Schedule::constant(lr),
        })
    };
    let number = |name: &str, default: f64| case.number(name).unwrap_or(default);
    let (momentum, decay) = (number("momentum", 0.0), number("weight_decay", 0.0));
    let epsilon = |default: f64| number("eps", default);
    let [beta1, beta2] = case.numbers("betas").and_then(|b| b.try_into().ok()).unwrap_or([0.9, 0.999]);
    let Some(lr) = lr() else { return is_known(&case.op).then(|| Err("there is no lr".into())) };
    Some(Ok(match case.op.as_str() {
        "average_weights" => Chain::from(Sgd::new(lr)).average_weights(case.number("decay")?),
        "sgd" | "sgd_momentum" | "sgd_nesterov" => {
            let sgd = Sgd::new(lr).momentum(momentum).weight_decay(decay);
            clipped(case, if case.flag("nesterov") { sgd.nesterov() } else { sgd })
        }
        "adam" => clipped(case, Adam::new(lr).betas(beta1, beta2).epsilon(epsilon(1e-8)).weight_decay(decay)),
        "adamw" => {
            clipped(case, AdamW::new(lr).betas(beta1, beta2).epsilon(epsilon(1e-8)).weight_decay(decay))
        }
        "rmsprop" => {
            let rule = RmsProp::new(lr).alpha(number("alpha", 0.99)).epsilon(epsilon(1e-8));
            let rule = rule.momentum(momentum).weight_decay(decay);
            clipped(case, if case.flag("centered") { rule.centred() } else { rule })
        }
        "adagrad" => {
            let rule = Adagrad::new(lr).lr_decay(number("lr_decay", 0.0)).epsilon(epsilon(1e-10));
            clipped(case, rule.weight_decay(decay))
        }
        "lamb" => clipped(case, Lamb::new(lr).betas(beta1, beta2).epsilon(epsilon(1e-6)).weight_decay(decay)),
        "lars" => {
            let rule = Lars::new(lr).momentum(momentum).weight_decay(decay);
            clipped(case, rule.trust(number("trust", 0.001)))
        }
        "adadelta" => {
            let rule = Adadelta::new(lr).rho(number("rho", 0.9)).epsilon(epsilon(1e-6));
            clipped(case, rule.weight_decay(decay))
        }
        "adamax" => {
            clipped(case, Adamax::new(lr).betas(beta1, beta2).epsilon(epsilon(1e-8)).weight_decay(decay))
        }
        "nadam" => {
            let rule = NAdam::new(lr).betas(beta1, beta2).epsilon(epsilon(1e-8)).weight_decay(decay);
            let rule = rule.momentum_decay(number("momentum_decay", 4e-3));
            clipped(case, if case.flag("decoupled_weight_decay") { rule.decoupled() } else { rule })
        }
        "lion" => clipped(case, Lion::new(lr).betas(beta1, beta2).weight_decay(decay)),
        "adafactor" => {
            let [epsilon1, epsilon2] = case.numbers("eps")?.try_into().ok()?;
            let rule = Adafactor::new(lr).epsilons(epsilon1, epsilon2).clip(number("d", 1.0));
            clipped(case, rule.beta2_decay(number("beta2_decay", -0.8)).weight_decay(decay))
        }
        "muon" => {
            let rule =
                Muon::new(lr).momentum(number("momentum", 0.95)).weight_decay(number("weight_decay", 0.1));
            let rule = rule.iterations(number("ns_steps", 5.0) as usize);
            let nesterov = case.attrs.get("nesterov").is_none_or(|value| value == true);
            clipped(case, if nesterov { rule } else { rule.no_nesterov() })
        }
        _ => return None,
    }))
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

/// Adds the clipping that a case asks for to an optimizer.
fn clipped(case: &Case, optimizer: impl Into<Chain>) -> Chain {
    let chain = optimizer.into();
    match (case.number("clip_grad_norm"), case.number("clip_grad_value")) {
        (Some(norm), _) => chain.clip_norm(norm as f32),
        (None, Some(value)) => chain.clip_value(value as f32),
        (None, None) => chain,
    }
}
