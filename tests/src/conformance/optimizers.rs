//! Cases of optimizers: the public optimizers run on the gradients of a case.

use unisono::{Adagrad, Adam, AdamW, Chain, Gradient, Lamb, Lars, RmsProp, Schedule, Sgd, trace_update};
use unisono_graph::{Array, Program, StateKind, Tape, Type};

use super::Case;

/// The compiled update of an optimizer, with the inputs of each step.
pub struct Steps {
    /// The program that updates the states.
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
    Ok(Steps { inputs: inputs.collect(), states, program })
}

/// Returns the optimizer that a case names, or `None` if it names none.
pub fn optimizer(case: &Case) -> Option<Result<Chain, String>> {
    let lr = || case.number("lr").map(Schedule::constant);
    let number = |name: &str, default: f64| case.number(name).unwrap_or(default);
    let (momentum, decay) = (number("momentum", 0.0), number("weight_decay", 0.0));
    let epsilon = |default: f64| number("eps", default);
    let [beta1, beta2] = case.numbers("betas").and_then(|b| b.try_into().ok()).unwrap_or([0.9, 0.999]);
    let Some(lr) = lr() else { return is_known(&case.op).then(|| Err("there is no lr".into())) };
    Some(Ok(match case.op.as_str() {
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
        _ => return None,
    }))
}

fn is_known(op: &str) -> bool {
    ["sgd", "sgd_momentum", "sgd_nesterov", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars"]
        .contains(&op)
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
