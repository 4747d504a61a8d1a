//! The programs of a trainer: what each of them computes, traced and compiled. Their states have the same
//! numbers.

mod fits;
mod measured;
mod predictions;
mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_graph::{
    Graph, GraphError, Layout, Program, StateDecl, StateKind, StatePlacement, Tape, Type, Var, simplify,
};

use crate::compile::averages::Averages;
use crate::compile::carries;
use crate::compile::fields::{Fields, WEIGHT};
use crate::compile::objective::{LossOn, On};
use crate::compile::opposed::Opposed;
use crate::compile::parts::Parts;
use crate::compile::weights::{Weighed, differ};
use crate::error::caught;
use crate::identity::graph::of_graph;
use crate::identity::part::Part;
use crate::identity::start::start_values;
use crate::model::context::{LayerNotes, Mode, Parameter, SummaryLine};
use crate::model::functional::{Inputs, Outputs};
use crate::{Context, Error, Initializer};
use fits::{fits, same_model, same_states};
use measured::{measured, measures_samples_alone};
pub(crate) use measured::{weight_of_loss, weight_of_output};
pub(crate) use predictions::{declare_predictions, predicted};
use predictions::{predictions_of, trace_predict};
use update::{kept_by, of_training, phase_graphs};

/// The name of the output with each sample's loss.
pub(crate) const LOSS: &str = "loss";
/// The name of the output with each sample's weight, where the loss has weights of its own.
pub(crate) const LOSS_WEIGHT: &str = "loss weight";
/// The name of the output with the sum of the weights.
pub(crate) const WEIGHT_SUM: &str = "weight sum";
/// The name of the output with the sum of the model's penalties.
pub(crate) const PENALTY: &str = "penalty";
/// The name of the output with the sum of the absolute values of the penalty's gradient. That gradient is in
/// no sum over samples, so nothing else would notice if it were not finite.
pub(crate) const PENALTY_GRADIENT: &str = "gradient of the penalty";
/// The name of the input that the loss is multiplied by in mixed precision.
pub(crate) const SCALE: &str = "loss scale";
/// The name of the input that the summed gradients are multiplied by in mixed precision.
pub(crate) const INVERSE: &str = "1 / loss scale";

/// Makes the ids of the programs and the table of the functions that trace them of one list.
macro_rules! programs {
    ($($(#[doc = $doc:literal])+ $id:ident: $trace:path,)+) => {
        /// A program of a trainer, see [`crate::Trainer::program`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ProgramId {
            $($(#[doc = $doc])+ $id,)+
        }

        impl ProgramId {
            /// All programs, in the order in which replicas number them.
            pub const ALL: &[Self] = &[$(Self::$id),+];

            /// Traces the program's graph, given the forward pass in training, and the states of the training
            /// step where averages are used.
            fn trace(self, parts: &Parts, fields: &Fields, given: Given<'_>) -> Result<Graph, Error> {
                match self {
                    $(Self::$id => $trace(parts, fields, given),)+
                }
            }
        }
    };
}

programs! {
    /// A training step: loss, metrics, gradients and the optimizer's update.
    Train: trace_train,
    /// An evaluation: loss and metrics of a batch.
    Evaluate: trace_evaluate,
    /// A prediction: the model's output for a batch.
    Predict: trace_predict,
}

impl ProgramId {
    /// Returns the number that replicas know the program by.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// The compiled graphs, with what the host needs to run them.
pub(crate) struct Programs {
    /// The programs by [`ProgramId::index`], and behind them those of a training step in the second phase and
    /// further ones. The first one's is [`ProgramId::Train`].
    compiled: Vec<Arc<Program>>,
    /// The forward pass in training, from which the interpreter finds out where numbers went bad.
    pub forward: Graph,
    /// The model's layers.
    pub summary: Vec<SummaryLine>,
    /// The start values of the states by index. `None` stands for zeros.
    pub initializers: Vec<Option<Initializer>>,
    /// The axis of the output channels of each kernel by name.
    pub channels: BTreeMap<String, usize>,
    /// The type of the first field that the model takes.
    pub input: Type,
    /// The names and types of the model's outputs in a prediction; at least one.
    pub outputs: Vec<(String, Type)>,
    /// The losses, each with the type of its output.
    pub losses: Vec<(LossOn, Type)>,
    /// What the model's layers tell the user.
    pub notes: LayerNotes,
    /// Losses that may work against each other.
    pub opposed: Option<Opposed>,
    /// The outputs that are the result of an activation, with its name.
    pub activations: BTreeMap<String, &'static str>,
    /// The outputs that dense layers return.
    pub linear: BTreeSet<String>,
    /// The upper limits of the ids in each field, see [`Fields::ids`].
    pub ids: BTreeMap<String, Vec<usize>>,
    /// The averages that optimizers keep.
    pub averages: Averages,
    /// The parameters that a step of no phase changes, as the optimizer freezes them or no loss depends on
    /// them. Those that the model only applies frozen are not among them.
    pub kept: Vec<String>,
    /// What is traced, as parts of the run's identity.
    pub identity: Traced,
}

/// What is traced, as parts of a run's identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Traced {
    /// The forward pass in training, with loss and metrics.
    pub model: Part,
    /// What the parameters start with.
    pub start: Part,
    /// The whole training step, with gradients and the optimizer's rule.
    pub training: Part,
}

impl Programs {
    /// Traces and compiles all programs.
    ///
    /// # Errors
    /// Shapes that do not fit, naming the layer; a carry that is known too late.
    pub fn trace(parts: &Parts, fields: &Fields, layout: Layout) -> Result<Self, Error> {
        Self::trace_like(parts, fields, layout, None)
    }

    /// Traces and compiles all programs, with the states where they lie in the programs for the longest
    /// samples, if these are for others.
    ///
    /// # Errors
    /// Those of [`Programs::trace`].
    pub fn trace_like(
        parts: &Parts,
        fields: &Fields,
        layout: Layout,
        longest: Option<&Self>,
    ) -> Result<Self, Error> {
        let traced = caught(|| Self::trace_all(parts, fields, layout, longest));
        traced.unwrap_or_else(|message| {
            let what = "a loss, a metric or an optimizer, while the model was traced,".to_owned();
            Err(Error::Panic { what, message })
        })
    }

    fn trace_all(
        parts: &Parts,
        fields: &Fields,
        layout: Layout,
        longest: Option<&Self>,
    ) -> Result<Self, Error> {
        let trace = Trace::new(parts, fields, Mode::Train, None)?;
        let forward = trace.tape.finish()?;
        let Trace { cx, inputs, outputs, .. } = &trace;
        let limits =
            |(name, _): (&str, &Type)| Some((name.to_owned(), cx.id_limits(&forward, inputs.get(name)?)?));
        let ids = fields.iter().filter_map(limits).collect();
        let output_type = |name: &str| outputs.get(name).map(|output| output.ty().clone());
        let losses = parts.all_losses();
        let losses: Vec<(LossOn, Type)> =
            losses.filter_map(|loss| Some((loss.clone(), output_type(&loss.on.output)?))).collect();
        let activation = |(name, output): (&str, &Var)| Some((name.to_owned(), output.activation()?));
        let activations = outputs.iter().filter_map(activation).collect();
        let linear = cx.layer_notes().linear_of(outputs.iter());
        let opposed = Opposed::find(&forward, parts, outputs);
        let mut identity = Traced { model: of_graph(&simplify(&forward)), ..Traced::default() };
        if longest.is_none() {
            same_model(parts, fields, &identity.model)?;
        }
        let mut compiled: Vec<Arc<Program>> = Vec::new();
        let first = longest.map(Self::train);
        let mut phases = phase_graphs(parts, fields, longest)?;
        let (mut states, mut averages): (Vec<StateDecl>, _) = (Vec::new(), Averages::default());
        let (mut predictions, mut kept) = (Vec::new(), Vec::new());
        for id in ProgramId::ALL {
            let graph = match id {
                ProgramId::Train if !phases.is_empty() => phases.remove(0),
                _ => {
                    let used = parts.uses_averages.then_some((&averages, &*states));
                    let longest = first.map(|first| first.graph());
                    id.trace(parts, fields, Given { forward: &trace, used, longest })?
                }
            };
            if *id == ProgramId::Train {
                states.clone_from(&graph.states);
                let graphs: Vec<&Graph> = std::iter::once(&graph).chain(&phases).collect();
                averages = Averages::of(&parts.phases, &graphs);
                kept = kept_by(&graphs);
                kept.retain(|name| cx.is_trained(name));
                identity.training = of_training(parts, &graph, &phases);
            }
            same_states(*id, &graph.states, &states)?;
            if *id == ProgramId::Predict {
                predictions = predictions_of(&graph);
            }
            compiled.push(compile_like(&graph, layout, first.or(compiled.first()))?);
        }
        for graph in &phases {
            compiled.push(compile_like(graph, layout, first.or(compiled.first()))?);
        }
        let mut programs = Self {
            compiled,
            forward,
            summary: cx.summary().to_vec(),
            initializers: Vec::new(),
            channels: cx.channels(),
            input: fields.iter().next().map_or_else(|| Type::sample(&[]), |(_, ty)| ty.clone()),
            outputs: predictions,
            losses,
            notes: cx.layer_notes().clone(),
            opposed,
            activations,
            linear,
            ids,
            averages,
            kept,
            identity,
        };
        if let Some(name) = programs.trains().find_map(|program| carries::too_late(program)) {
            let problem = format!("{name:?} depends on what is known only when the step commits");
            return Err(Error::setting("carries", problem));
        }
        let asked: Vec<Parameter> = [cx.parameters(), cx.statistics()].concat();
        programs.identity.start = start_values(&asked);
        let start: BTreeMap<&str, &Initializer> = asked.iter().map(|p| (&*p.name, &p.initializer)).collect();
        let initializer = |name: &str| start.get(name).map(|&initializer| initializer.clone());
        programs.initializers = programs.train().states().iter().map(|s| initializer(&s.name)).collect();
        Ok(programs)
    }

    /// Returns a program.
    pub fn get(&self, id: ProgramId) -> &Arc<Program> {
        &self.compiled[id.index()]
    }

    /// Returns the number among all programs of that of a training step in a phase.
    pub fn number_in(phase: usize) -> usize {
        if phase == 0 { ProgramId::Train.index() } else { ProgramId::ALL.len() + phase - 1 }
    }

    /// Returns the program of a training step in a phase.
    pub fn train_in(&self, phase: usize) -> &Arc<Program> {
        &self.compiled[Self::number_in(phase)]
    }

    /// Returns the programs of training steps in all phases.
    pub fn trains(&self) -> impl Iterator<Item = &Arc<Program>> {
        (0..=self.compiled.len() - ProgramId::ALL.len()).map(|phase| self.train_in(phase))
    }

    /// Returns the program of a training step, in the first phase, whose states are the run's.
    pub fn train(&self) -> &Arc<Program> {
        self.get(ProgramId::Train)
    }

    /// Returns all programs by their numbers, as replicas take them.
    pub fn all(&self) -> Vec<Arc<Program>> {
        self.compiled.clone()
    }

    /// Returns the indices of the states of certain kinds.
    pub fn states_of(&self, kinds: &[StateKind]) -> Vec<usize> {
        let states = self.train().states();
        (0..states.len()).filter(|&i| kinds.contains(&states[i].kind)).collect()
    }
}

/// Compiles a program, whose states lie where they lie in the first one if that has these states.
fn compile_like(
    graph: &Graph,
    layout: Layout,
    first: Option<&Arc<Program>>,
) -> Result<Arc<Program>, GraphError> {
    let types = |states: &[StateDecl]| states.iter().map(|state| state.ty.clone()).collect::<Vec<_>>();
    let first = first.filter(|first| types(first.states()).starts_with(&types(&graph.states)));
    let like = first.map(|first| StatePlacement::Like(first.state_layout()));
    let states = like.unwrap_or(match layout.states_apart {
        true => StatePlacement::Apart,
        false => StatePlacement::ByUpdate,
    });
    let program = Program::compile_placed(graph, layout, states)?;
    if program.is_resident() {
        let problem = "memory that stays on devices is for the signatures of a predictor".into();
        return Err(GraphError::Op { scope: String::new(), op: "resident".into(), problem });
    }
    let conditions = crate::compile::outputs::conditions(&program);
    Ok(Arc::new(program.with_conditions(conditions)))
}

/// What the trace of a program is given.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// The forward pass in training.
    forward: &'a Trace,
    /// The averages and the states of the training step, where averages are used in the places of weights.
    used: Option<(&'a Averages, &'a [StateDecl])>,
    /// The training step for the longest samples, where these programs are for others.
    longest: Option<&'a Graph>,
}

impl Given<'_> {
    /// Returns the values that the model takes in the places of its states, after they have been declared.
    fn declare(&self, tape: &Tape) -> Result<BTreeMap<String, Var>, Error> {
        self.used.map_or_else(|| Ok(BTreeMap::new()), |(averages, states)| averages.declare(tape, states))
    }
}

/// A traced forward pass with loss and metrics as outputs.
struct Trace {
    tape: Tape,
    cx: Context,
    inputs: Inputs,
    outputs: Outputs,
    losses: Vec<Weighed>,
}

impl Trace {
    /// Traces the forward pass. `given` may have averages, which are used then.
    fn new(parts: &Parts, fields: &Fields, mode: Mode, given: Option<Given<'_>>) -> Result<Self, Error> {
        let tape = Tape::with_precision(parts.precision);
        let mut cx = Context::new(&tape, mode);
        if let Some(given) = given {
            cx.give(given.declare(&tape)?);
        }
        cx.freeze_statistics(parts.frozen_statistics.clone());
        let inputs = fields.declare(&tape);
        let outputs = parts.model.forward(&mut cx, &inputs).with_added(&cx);
        cx.limit_lookups();
        // An error of the model comes before what follows from it.
        check(&tape)?;
        fits(&tape, parts, &inputs, &outputs);
        check(&tape)?;
        let compared = |on: &On| compared(on, &inputs, &outputs);
        let losses = trace_losses(parts, &parts.objective().losses, &inputs, &outputs, mode);
        let sum = losses.iter().map(|loss| loss.counted.clone()).reduce(|sum, loss| sum + loss);
        tape.output(LOSS, &sum.unwrap_or_else(|| tape.constant(0.0)));
        check(&tape)?;
        declare_weights(&tape, parts, &losses, &inputs);
        for (at, (metric, on)) in
            parts.objective().metrics.iter().zip(&parts.objective().measured).enumerate()
        {
            let Some((output, target)) = compared(on) else { continue };
            let each = match losses.get(at).filter(|_| at < parts.objective().measured_losses) {
                Some(loss) => loss.each.clone(),
                None => {
                    let traced = caught(|| tape.in_f32(|| metric.per_sample(output, target)));
                    traced.map_err(|message| {
                        let what = format!("the metric {:?}, while the model was traced,", metric.name());
                        Error::Panic { what, message }
                    })?
                }
            };
            let each = measured(&tape, &**metric, each);
            // In training a layer may normalise by the batch, and a loss may compare the samples of one.
            if mode == Mode::Evaluate && at >= parts.objective().measured_losses {
                measures_samples_alone(&tape, &**metric, &each, output)?;
            }
            tape.output(metric.name(), &each);
        }
        carries::trace(&tape, &cx);
        check(&tape)?;
        Ok(Self { tape, cx, inputs, outputs, losses })
    }
}

/// Returns an output and what it is compared with, which is the output where it has no target.
fn compared<'a>(on: &On, inputs: &'a Inputs, outputs: &'a Outputs) -> Option<(&'a Var, &'a Var)> {
    let output = outputs.get(&on.output)?;
    Some((output, on.target.as_deref().map_or(Some(output), |target| inputs.get(target))?))
}

/// Traces losses of outputs with their weights.
fn trace_losses(
    parts: &Parts,
    losses: &[LossOn],
    inputs: &Inputs,
    outputs: &Outputs,
    mode: Mode,
) -> Vec<Weighed> {
    let traced = losses.iter().filter_map(|part| {
        let (output, target) = compared(&part.on, inputs, outputs)?;
        Some(Weighed::trace(part, &parts.weighing, inputs, [output, target], mode == Mode::Train))
    });
    traced.collect()
}

/// Declares the weights of samples as outputs: those in the loss, or in each loss where they are not the
/// same, and those that the data give for the metrics of an output.
fn declare_weights(tape: &Tape, parts: &Parts, losses: &[Weighed], inputs: &Inputs) {
    if !differ(losses) {
        let weight = losses.first().filter(|loss| loss.weighs()).and_then(|loss| loss.weight(inputs));
        weight.iter().for_each(|weight| tape.output(LOSS_WEIGHT, weight));
    } else {
        for (number, loss) in losses.iter().enumerate().filter(|(_, loss)| loss.weighs()) {
            loss.weight(inputs).iter().for_each(|weight| tape.output(&weight_of_loss(number), weight));
        }
    }
    for (output, field) in &parts.weighing.fields {
        let Some(field) = inputs.get(field).filter(|field| field.ty() == &Type::sample(&[])) else {
            continue;
        };
        let weight = inputs.get(WEIGHT).map_or_else(|| field.clone(), |given| given * field);
        tape.output(&weight_of_output(output), &weight);
    }
}

/// Returns the first error of a trace so far.
fn check(tape: &Tape) -> Result<(), GraphError> {
    tape.error().map_or(Ok(()), Err)
}

/// Traces a training step: what comes behind the forward pass.
fn trace_train(parts: &Parts, _: &Fields, given: Given<'_>) -> Result<Graph, Error> {
    given.forward.with_update(parts, None, [&[], &[]], given.longest)
}

/// Traces an evaluation.
fn trace_evaluate(parts: &Parts, fields: &Fields, given: Given<'_>) -> Result<Graph, Error> {
    Ok(Trace::new(parts, fields, Mode::Evaluate, Some(given))?.tape.finish()?)
}

#[cfg(test)]
mod tests;
