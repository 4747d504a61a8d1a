//! Moving averages in the places of weights, wherever a model is used and not trained.

use std::collections::BTreeMap;

use unisono_graph::{Graph, StateDecl, StateKind, Tape, Type, Var};

use crate::Error;
use crate::compile::phases::Phase;
use crate::optimizers::{AVERAGE, Scalar};

/// The averages that optimizers keep, by the names of the parameters and of the statistics that training
/// moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Averages(BTreeMap<String, Kept>);

/// The averages of a parameter or a statistic. Each phase of a run can keep one.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// The numbers of the phases that train the parameter. There are none in a run without phases.
    trainers: Vec<usize>,
    /// What each average is: the number of the phase whose optimizer keeps it, in a run with phases, and the
    /// state that has it.
    states: Vec<(Option<usize>, String)>,
    /// The inputs that say which of the averages is used. At most one of them is 1.
    flags: Vec<String>,
}

/// When a phase trained last: the epoch, and a number that grows from one training to the next.
pub(crate) type Last = (u32, u64);

impl Averages {
    /// Returns the averages that are kept by the training step, or by those of the phases.
    pub fn of(phases: &[Phase], graphs: &[&Graph]) -> Self {
        let mut averages: BTreeMap<String, Kept> = BTreeMap::new();
        let Some(first) = graphs.first() else { return Self::default() };
        let has = |name: &str| {
            first.states.iter().any(|state| state.name == name && state.kind == StateKind::Optimizer)
        };
        let parameters = first.states.iter().enumerate();
        let of_model = [StateKind::Parameter, StateKind::Statistic];
        for (index, state) in parameters.filter(|(_, state)| of_model.contains(&state.kind)) {
            let name = &state.name;
            let trains = |at: &usize| graphs.get(*at).is_some_and(|graph| graph.updates.contains_key(&index));
            let trainers: Vec<usize> = (0..phases.len()).filter(trains).collect();
            let of = |at: &usize| (Some(*at), format!("{name}/{}/{AVERAGE}", phases[*at].name));
            let alone = phases.is_empty().then(|| (None, format!("{name}/{AVERAGE}")));
            let states = trainers.iter().map(of).chain(alone);
            let states: Vec<(Option<usize>, String)> = states.filter(|(_, state)| has(state)).collect();
            if !states.is_empty() {
                let flags = states.iter().map(|(phase, _)| flag(phases, *phase, &trainers)).collect();
                averages.insert(name.clone(), Kept { trainers, states, flags });
            }
        }
        Self(averages)
    }

    /// Returns the names of the states with averages of a parameter.
    pub fn states_of(&self, parameter: &str) -> impl Iterator<Item = &str> {
        self.0.get(parameter).into_iter().flat_map(|kept| kept.states.iter().map(|(_, state)| &**state))
    }

    /// Returns each parameter of which an average is there with the state that has it, given when each phase
    /// trained last, or the run without phases.
    pub fn in_use(
        &self,
        phases: &[Phase],
        last: impl Fn(Option<usize>) -> Option<Last>,
    ) -> Vec<(&str, &str)> {
        let mut used = Vec::new();
        for (name, kept) in &self.0 {
            let at = kept.in_use(phases, &last);
            used.extend(at.map(|at| (&**name, &*kept.states[at].1)));
        }
        used
    }

    /// Declares the states of a training step on the tape of another program, which then knows them by the
    /// same numbers. Returns the values that the model takes in the places of its states: averages, where
    /// there are some.
    ///
    /// # Errors
    /// No parameter has an average.
    pub fn declare(&self, tape: &Tape, states: &[StateDecl]) -> Result<BTreeMap<String, Var>, Error> {
        if states.is_empty() {
            return Ok(BTreeMap::new());
        }
        if self.0.is_empty() {
            let problem = "no parameter has an average: Optimizer::average_weights keeps them";
            return Err(Error::setting("average weights", problem));
        }
        let declared =
            |state: &StateDecl| (state.name.clone(), tape.state(&state.name, &state.ty.dims, state.kind));
        let mut values: BTreeMap<String, Var> = states.iter().map(declared).collect();
        let mut inputs: BTreeMap<&str, Var> = BTreeMap::new();
        for (parameter, kept) in &self.0 {
            for ((_, state), flag) in kept.states.iter().zip(&kept.flags) {
                let is_used = inputs.entry(flag).or_insert_with(|| tape.input(flag, Type::global(&[])));
                if let (Some(weight), Some(average)) = (values.get(parameter), values.get(state)) {
                    let used = is_used.select(average, weight);
                    values.insert(parameter.clone(), used);
                }
            }
        }
        Ok(values)
    }

    /// Returns the inputs that say which averages are used, each once.
    pub fn flags(&self, phases: &[Phase], last: impl Fn(Option<usize>) -> Option<Last>) -> Vec<Scalar> {
        let mut flags: BTreeMap<&str, f32> = BTreeMap::new();
        for kept in self.0.values() {
            let used = kept.in_use(phases, &last);
            for (at, flag) in kept.flags.iter().enumerate() {
                flags.insert(flag, if used == Some(at) { 1.0 } else { 0.0 });
            }
        }
        flags.into_iter().map(|(name, value)| Scalar::new(name, value)).collect()
    }

    /// Whether an input of a program is one of the flags.
    pub fn is_flag(&self, input: &str) -> bool {
        self.0.values().any(|kept| kept.flags.iter().any(|flag| flag == input))
    }
}

impl Kept {
    /// Returns the number of the average that is used: that of the phase which trained the parameter last,
    /// among those that average it and whose epochs are not over. Where a phase that keeps no average has
    /// taken over, and before the first step, it is none.
    fn in_use(&self, phases: &[Phase], last: &impl Fn(Option<usize>) -> Option<Last>) -> Option<usize> {
        let epoch = self.trainers.iter().filter_map(|&phase| last(Some(phase))).map(|(epoch, _)| epoch).max();
        let is_over = |phase: usize| epoch.is_some_and(|epoch| !phases[phase].epochs.contains(&epoch));
        let order = |(at, (phase, _)): (usize, &(Option<usize>, String))| {
            let (_, order) = last(*phase)?;
            (!phase.is_some_and(is_over)).then_some((order, at))
        };
        self.states.iter().enumerate().filter_map(order).max().map(|(_, at)| at)
    }
}

/// Returns the name of the input that says whether the average of a phase is used, for the parameters that
/// these phases train. Those of one phase and those that it shares with another one can differ in it.
fn flag(phases: &[Phase], phase: Option<usize>, trainers: &[usize]) -> String {
    let Some(phase) = phase else { return AVERAGE.to_owned() };
    let others = trainers.iter().filter(|&&other| other != phase).map(|&other| &*phases[other].name);
    others
        .fold(format!("{AVERAGE} of {}", phases[phase].name), |name, other| format!("{name} beside {other}"))
}
