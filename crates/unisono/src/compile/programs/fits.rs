//! What has to fit together before programs are traced further: outputs, losses and metrics.

use unisono_graph::{GraphError, StateDecl, Tape, simplify};

use super::{
    LOSS, LOSS_WEIGHT, PENALTY, PENALTY_GRADIENT, ProgramId, Trace, WEIGHT_SUM, weight_of_loss,
    weight_of_output,
};
use crate::Error;
use crate::compile::fields::Fields;
use crate::compile::objective::{LossOn, On};
use crate::compile::parts::Parts;
use crate::identity::graph::of_graph;
use crate::identity::part::Part;
use crate::model::context::Mode;
use crate::model::{Inputs, Outputs};

/// Returns whether a name is that of a value that a trainer measures by itself.
fn is_own_name(parts: &Parts, name: &str) -> bool {
    [LOSS, LOSS_WEIGHT, WEIGHT_SUM, PENALTY, PENALTY_GRADIENT].contains(&name)
        || (0..parts.objective().losses.len()).any(|number| weight_of_loss(number) == name)
        || parts.weighing.fields.keys().any(|output| weight_of_output(output) == name)
}

/// Reports what does not fit together: the model's outputs, the losses, the metrics and their names.
pub(super) fn fits(tape: &Tape, parts: &Parts, inputs: &Inputs, outputs: &Outputs) {
    let fail_in = |scope: &str, op: &str, problem| {
        tape.fail(GraphError::Op { scope: scope.into(), op: op.into(), problem });
    };
    let fail = |op: &str, problem| fail_in("loss", op, problem);
    let names: Vec<&str> = outputs.iter().map(|(name, _)| name).collect();
    if let Some(name) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        fail("model", format!("two of the model's outputs and losses have the name {:?}", name.1));
    }
    let compared = |op: &str, on: &On| {
        let output = outputs.get(&on.output);
        let target = on.target.as_deref().map_or(output, |target| inputs.get(target));
        if output.is_none() && on.target.is_none() {
            let problem = format!(
                "the model adds {:?} in training but not in evaluations: add it in both, with the value 0 where it \
                 does not count",
                on.output
            );
            fail(op, problem);
        } else if output.is_none() {
            fail(op, on.not_among(&names));
        }
        output.zip(target)
    };
    for LossOn { on, loss, .. } in parts.all_losses() {
        let Some((output, target)) = compared(loss.name(), on) else { continue };
        if let Err(problem) = loss.accepts(output.ty(), target.ty()) {
            fail(loss.name(), problem);
        }
    }
    for (at, (metric, on)) in parts.objective().metrics.iter().zip(&parts.objective().measured).enumerate() {
        let name = metric.name();
        if parts.objective().metrics[..at].iter().any(|other| other.name() == name) {
            fail_in("metrics", name, "two metrics have this name".into());
        } else if is_own_name(parts, name) {
            fail_in(
                "metrics",
                name,
                "a metric cannot have this name, which is that of a value of the trainer's own".into(),
            );
        }
        let Some((output, target)) = compared(name, on) else { continue };
        if let Err(problem) = metric.accepts(output.ty(), target.ty()) {
            fail_in("metrics", name, problem);
        }
    }
}

/// Checks that a program declares the states of the training step, as far as it declares any.
///
/// # Errors
/// The model declares others in this mode; the error names the first.
pub(super) fn same_states(id: ProgramId, states: &[StateDecl], trained: &[StateDecl]) -> Result<(), Error> {
    let differs = |at: &usize| {
        let (own, trained) = (&states[*at], trained.get(*at));
        trained.is_none_or(|trained| (&own.name, &own.ty) != (&trained.name, &trained.ty))
    };
    let Some(at) = (0..states.len()).find(differs) else { return Ok(()) };
    let shown = |state: &StateDecl| format!("{} {}", state.name, state.ty);
    let there = trained.get(at).map_or_else(|| "none".to_owned(), shown);
    let mode = if id == ProgramId::Predict { "prediction" } else { "evaluation" };
    let problem = format!(
        "tensor {at} is {} in {mode}, and {there} in training: declare the same parameters and statistics, in the same \
         order, in both modes (Context::is_training)",
        shown(&states[at])
    );
    Err(Error::setting("model", problem))
}

/// Checks that a model that is traced again is the same.
///
/// # Errors
/// It has drawn numbers, or counted how often it was traced.
pub(super) fn same_model(parts: &Parts, fields: &Fields, first: &Part) -> Result<(), Error> {
    let again = Trace::new(parts, fields, Mode::Train, None)?.tape.finish()?;
    if of_graph(&simplify(&again)) == *first {
        return Ok(());
    }
    let problem = "it is another one each time it is traced, for training, evaluations and predictions: layers must not \
                   draw numbers of their own or count (Var::dropout and the ops of Tape draw in the graph)";
    Err(Error::setting("model", problem))
}
