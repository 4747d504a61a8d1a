//! What an optimizer sees of one parameter, and the tracing of a step.

use std::collections::BTreeMap;

use unisono_graph::{StateKind, Tape, Type, Var};

use super::Chain;

/// A number that the host computes for each step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scalar {
    /// The name, unique within its optimizer.
    pub name: String,
    /// The value in this step.
    pub value: f32,
}

impl Scalar {
    /// Creates a scalar.
    pub fn new(name: &str, value: f32) -> Self {
        Self { name: name.into(), value }
    }
}

/// A parameter and the gradient that arrived at it.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The parameter's name, for example `0.weight`.
    pub name: String,
    /// The parameter's value before the step.
    pub weight: Var,
    /// The gradient of the mean loss of the whole global batch.
    pub gradient: Var,
}

/// The context of an optimizer while it traces the update of one parameter.
#[derive(Debug)]
pub struct Update {
    tape: Tape,
    parameter: String,
    scalars: Vec<(String, Var)>,
    group: String,
    /// The phase's name and a slash, in a run with phases.
    phase: String,
    decays: bool,
}

impl Update {
    /// Returns the parameter's name, for example `0.weight`.
    pub fn parameter(&self) -> &str {
        &self.parameter
    }

    /// Returns a scalar of this step, `[]`.
    ///
    /// Errors: [`Optimizer::scalars`](super::Optimizer::scalars) has none of this name.
    pub fn scalar(&self, name: &str) -> Var {
        let full = format!("{}{name}", self.group);
        match self.scalars.iter().find(|(n, _)| *n == full) {
            Some((_, var)) => var.clone(),
            None => {
                self.tape.fail_here("optimizer", format!("there is no scalar {full:?}"));
                self.tape.constant(0.0)
            }
        }
    }

    /// Returns the state `name` of this parameter, such as a momentum, with the shape of `like`. It is zeros
    /// before the first step, and is saved as `parameter/name`.
    pub fn state(&mut self, name: &str, like: &Var) -> Var {
        let name = format!("{}/{}{name}", self.parameter, self.phase);
        self.tape.state(&name, like.dims(), StateKind::Optimizer)
    }

    /// Sets a state's value after the step.
    pub fn set(&mut self, state: &Var, value: &Var) {
        self.tape.update(state, value);
    }

    /// Returns whether weight decay applies to this parameter.
    pub fn decays(&self) -> bool {
        self.decays
    }

    /// Returns gradient + decay weight, or only the gradient if the parameter is exempt from weight decay.
    pub fn coupled_decay(&self, decay: f64, weight: &Var, gradient: &Var) -> Var {
        if decay == 0.0 || !self.decays { gradient.clone() } else { weight * decay as f32 + gradient }
    }

    /// Returns m = momentum m + step, and stores it as the state `momentum_buffer`. If the momentum is 0, it
    /// returns the step.
    pub fn momentum(&mut self, momentum: f64, weight: &Var, step: &Var) -> Var {
        if momentum == 0.0 {
            return step.clone();
        }
        let old = self.state("momentum_buffer", weight);
        let new = &old * momentum as f32 + step;
        self.set(&old, &new);
        new
    }

    /// Takes this parameter out of weight decay.
    pub(super) fn exempt(&mut self) {
        self.decays = false;
    }

    /// Runs `rule`, the names of whose scalars start with `group`.
    pub(super) fn in_group<T>(&mut self, group: &str, rule: impl FnOnce(&mut Self) -> T) -> T {
        let inner = format!("{}{group}", self.group);
        let outer = std::mem::replace(&mut self.group, inner);
        let result = rule(self);
        self.group = outer;
        result
    }
}

/// Traces a step of an optimizer: its scalars become inputs of `tape`, and every parameter that is trained
/// and what is kept for it get new values. A trainer does this; call it to trace steps of your own.
///
/// Errors: [`Chain::check`] fails, or a scalar of step 0 is not finite.
pub fn trace_update(tape: &Tape, optimizer: &Chain, gradients: Vec<Gradient>) {
    trace_update_of(tape, optimizer, gradients, &[], "");
}

/// Traces a step as [`trace_update`] does. What is kept for a parameter is saved as `parameter/phase/name` if
/// the phase is not empty. `statistics` are the new values of statistics by their names: where the optimizer
/// averages weights, it averages them alike.
pub(crate) fn trace_update_of(
    tape: &Tape,
    optimizer: &Chain,
    gradients: Vec<Gradient>,
    statistics: &[(String, Var)],
    phase: &str,
) {
    let first = match optimizer.check().and_then(|()| optimizer.finite_scalars(0)) {
        Ok(first) => first,
        Err(problem) => return tape.fail_here("optimizer", problem),
    };
    let scalars: Vec<(String, Var)> =
        first.into_iter().map(|s| (s.name.clone(), tape.input(&s.name, Type::global(&[])))).collect();
    let phase = if phase.is_empty() { String::new() } else { format!("{phase}/") };
    let of = |parameter: &str| Update {
        tape: tape.clone(),
        parameter: parameter.to_owned(),
        scalars: scalars.clone(),
        group: String::new(),
        phase: phase.clone(),
        decays: true,
    };
    let mut gradients: Vec<Gradient> = gradients.into_iter().filter(|g| optimizer.trains(&g.name)).collect();
    let order: Vec<String> = gradients.iter().map(|g| g.name.clone()).collect();
    gradients.sort_by(|a, b| a.name.cmp(&b.name));
    let prepared = optimizer.prepare(gradients);
    let mut by_name: BTreeMap<&str, &Gradient> = BTreeMap::new();
    for gradient in &prepared {
        by_name.entry(&gradient.name).or_insert(gradient);
    }
    for name in order {
        let Some(Gradient { weight, gradient, .. }) = by_name.get(&*name) else {
            tape.fail_here("optimizer", format!("{} lost the gradient of {name}", optimizer.name()));
            return;
        };
        let scope = format!("{} of {name}", optimizer.name());
        let new = tape.scope(&scope, || optimizer.update(&mut of(&name), weight, gradient));
        tape.update(weight, &new);
    }
    for (name, new) in statistics {
        optimizer.follow_statistic(&mut of(name), new);
    }
}

/// Returns the Euclidean norm of a tensor, `[]`.
pub(super) fn norm(x: &Var) -> Var {
    x.square().sum_all().sqrt()
}

/// Returns the common norm of all gradients, summed in their order, or `None` if there are none.
pub(crate) fn norm_of_all(gradients: &[Gradient]) -> Option<Var> {
    let squares = gradients.iter().map(|g| g.gradient.square().sum_all());
    Some(squares.reduce(|a, b| a + b)?.sqrt())
}

/// Returns a / b, or 1 where one of them is 0.
pub(super) fn ratio(a: &Var, b: &Var) -> Var {
    let [zero, one] = [0.0, 1.0].map(|x| a.tape().constant(x));
    let both = a.greater(&zero) * b.greater(&zero);
    both.select(&(a / b.maximum(&a.tape().constant(f32::MIN_POSITIVE))), &one)
}
