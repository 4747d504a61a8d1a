//! Moving averages in the places of weights, wherever a model is used and not trained.

use std::collections::BTreeMap;

use unisono_graph::{StateDecl, StateKind, Tape, Type, Var};

use crate::Error;
use crate::compile::parts::Parts;
use crate::compile::phases::Phase;
use crate::optimizers::{AVERAGE, Scalar};

/// The average of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AverageOf {
    /// The name of the state that has it.
    pub state: String,
    /// The number of the phase whose optimizer keeps it, in a run with phases.
    pub phase: Option<usize>,
}

/// Returns the averages that optimizers keep, by the names of the parameters. Where several phases average
/// one parameter, it is the first one's.
pub(crate) fn averages(parts: &Parts, states: &[StateDecl]) -> BTreeMap<String, AverageOf> {
    let has =
        |name: &str| states.iter().any(|state| state.name == name && state.kind == StateKind::Optimizer);
    let average = |parameter: &str| {
        if parts.phases.is_empty() {
            let state = format!("{parameter}/{AVERAGE}");
            return has(&state).then_some(AverageOf { state, phase: None });
        }
        let of = |(at, phase): (usize, &Phase)| AverageOf {
            state: format!("{parameter}/{}/{AVERAGE}", phase.name),
            phase: Some(at),
        };
        parts.phases.iter().enumerate().map(of).find(|average| has(&average.state))
    };
    let parameters = states.iter().filter(|state| state.kind == StateKind::Parameter);
    parameters.filter_map(|state| Some((state.name.clone(), average(&state.name)?))).collect()
}

/// Returns the name of the input that says whether the averages of a phase are there: 1, or 0 before its
/// optimizer's first step.
fn flag(parts: &Parts, phase: Option<usize>) -> String {
    match phase.and_then(|at| parts.phases.get(at)) {
        Some(phase) => format!("{AVERAGE} of {}", phase.name),
        None => AVERAGE.to_owned(),
    }
}

/// Declares the states of a training step on the tape of another program, which then knows them by the same
/// numbers. Returns the values that the model takes in the places of its states: averages, where there are
/// some.
///
/// # Errors
/// No parameter has an average.
pub(crate) fn declare(
    tape: &Tape,
    parts: &Parts,
    states: &[StateDecl],
) -> Result<BTreeMap<String, Var>, Error> {
    if states.is_empty() {
        return Ok(BTreeMap::new());
    }
    let averages = averages(parts, states);
    if averages.is_empty() {
        let problem = "no parameter has an average: Optimizer::average_weights keeps them";
        return Err(Error::setting("average weights", problem));
    }
    let declared =
        |state: &StateDecl| (state.name.clone(), tape.state(&state.name, &state.ty.dims, state.kind));
    let mut values: BTreeMap<String, Var> = states.iter().map(declared).collect();
    let mut flags: BTreeMap<String, Var> = BTreeMap::new();
    for (parameter, AverageOf { state, phase }) in &averages {
        let name = flag(parts, *phase);
        let is_there = flags.entry(name.clone()).or_insert_with(|| tape.input(&name, Type::global(&[])));
        if let (Some(weight), Some(average)) = (values.get(parameter), values.get(state)) {
            let used = is_there.select(average, weight);
            values.insert(parameter.clone(), used);
        }
    }
    Ok(values)
}

/// Returns the inputs that say which averages are there, given how many steps the optimizer of a phase has
/// done.
pub(crate) fn flags(parts: &Parts, steps: impl Fn(Option<usize>) -> u64) -> Vec<Scalar> {
    if !parts.uses_averages {
        return Vec::new();
    }
    let phases: Vec<Option<usize>> =
        if parts.phases.is_empty() { vec![None] } else { (0..parts.phases.len()).map(Some).collect() };
    let scalar = |phase| Scalar::new(&flag(parts, phase), if steps(phase) > 0 { 1.0 } else { 0.0 });
    phases.into_iter().map(scalar).collect()
}

/// Whether an input of a program is one of the flags.
pub(crate) fn is_flag(parts: &Parts, input: &str) -> bool {
    flags(parts, |_| 0).iter().any(|scalar| scalar.name == input)
}
