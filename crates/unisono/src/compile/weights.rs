//! Losses with what weighs their samples and labels: themselves, fields of the data, and classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono_graph::{DType, GraphError, Lead, Tape, Type, Var};

use crate::compile::class_weights::{weight_of_labels, weight_of_samples};
use crate::compile::fields::WEIGHT;
use crate::compile::objective::LossOn;
use crate::model::Inputs;

/// The weights of losses that do not come from the field `w`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weighing {
    /// The field with the weights of the samples or labels of an output.
    pub fields: BTreeMap<String, String>,
    /// The weights of an output's classes. Those under `None` are of the only loss.
    pub classes: BTreeMap<Option<String>, Vec<f32>>,
}

impl Weighing {
    /// Returns the weights of an output's classes.
    pub fn classes_of(&self, output: &str) -> Option<&Vec<f32>> {
        self.classes.get(&Some(output.to_owned())).or_else(|| self.classes.get(&None))
    }
}

/// A loss as it was traced.
#[derive(Clone)]
pub(crate) struct Weighed {
    /// The loss of each sample, `[B]`.
    pub each: Var,
    /// The same as often as it counts in the sum of all losses.
    pub counted: Var,
    /// Each sample's weight, `[B]`, without that of the field `w`. `None` stands for 1.
    own: Option<Var>,
    /// By what samples are weighed. Losses for which it is equal have the same weights.
    by: By,
}

/// By what a loss weighs samples.
#[derive(Clone, Debug, Default, PartialEq)]
struct By {
    /// The loss, where it has weights of its own, and the field that these follow from.
    loss: Option<(usize, Option<String>)>,
    /// The output and the field with the labels, where classes have weights.
    classes: Option<(String, Option<String>)>,
    /// The field with weights.
    field: Option<String>,
}

/// Losses with the same weights: their sum for each sample, and the weights, `None` for 1.
pub(crate) struct Group {
    pub loss: Var,
    pub weight: Option<Var>,
}

impl Weighed {
    /// Traces a loss of an output. In training, classes have their weights.
    pub fn trace(
        part: &LossOn,
        weighing: &Weighing,
        inputs: &Inputs,
        [output, target]: [&Var; 2],
        is_training: bool,
    ) -> Self {
        let (tape, LossOn { on, loss, weight: counts }) = (output.tape(), part);
        let field = weighing.fields.get(&on.output).and_then(|name| Some((name, inputs.get(name)?)));
        let classes = weighing.classes_of(&on.output).filter(|_| is_training);
        let has_labels = has_a_label_each(output, target);
        let by_label: Vec<Var> = [
            field.filter(|(_, field)| !field.dims().is_empty()).map(|(_, field)| field.clone()),
            classes.filter(|_| has_labels).and_then(|classes| {
                let traced = tape.in_f32(|| weight_of_labels(classes, loss.classes(output.ty()), target));
                traced.map_err(|problem| tape.fail_here("class weights", problem)).ok()
            }),
        ]
        .into_iter()
        .flatten()
        .collect();
        let (each, mut own, weighs) = match by_label.is_empty() {
            true => of_samples(part, output, target),
            false => of_labels(part, &by_label, output, target),
        };
        let counted = if *counts == 1.0 { each.clone() } else { tape.in_f32(|| &each * *counts) };
        let mut times = |weight: Var| own = Some(own.take().map_or(weight.clone(), |own| own * weight));
        if let Some(classes) = classes.filter(|_| !has_labels) {
            match tape.in_f32(|| weight_of_samples(classes, loss.classes(output.ty()), target, on)) {
                Ok(weight) => times(weight),
                Err(problem) => tape.fail_here("class weights", problem),
            }
        }
        if let Some((_, weight)) = field.filter(|(_, field)| field.dims().is_empty()) {
            times(weight.clone());
        }
        let by = By {
            loss: weighs.then(|| (Arc::as_ptr(loss).cast::<()>() as usize, on.target.clone())),
            classes: classes.map(|_| (on.output.clone(), on.target.clone())),
            field: field.map(|(name, _)| name.clone()),
        };
        Self { each, counted, own, by }
    }

    /// Returns whether samples have weights that do not come from the field `w`.
    pub fn weighs(&self) -> bool {
        self.own.is_some()
    }

    /// Returns each sample's weight, with that of the field `w`. `None` stands for 1.
    pub fn weight(&self, inputs: &Inputs) -> Option<Var> {
        let given = inputs.get(WEIGHT).cloned();
        match (given, self.own.clone()) {
            (Some(given), Some(own)) => Some(given * own),
            (given, own) => own.or(given),
        }
    }
}

/// Returns whether two losses of these have other weights.
pub(crate) fn differ(losses: &[Weighed]) -> bool {
    losses.iter().any(|loss| loss.by != losses[0].by)
}

/// Joins losses that have the same weights.
pub(crate) fn groups(losses: &[Weighed], inputs: &Inputs) -> Vec<Group> {
    let mut groups: Vec<(&By, Group)> = Vec::new();
    for loss in losses {
        match groups.iter_mut().find(|(by, _)| **by == loss.by) {
            Some((_, group)) => group.loss = &group.loss + &loss.counted,
            None => {
                let group = Group { loss: loss.counted.clone(), weight: loss.weight(inputs) };
                groups.push((&loss.by, group));
            }
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Returns whether a sample has several labels, each of which is the number of a class.
fn has_a_label_each(output: &Var, target: &Var) -> bool {
    let classes = output.dims().split_last();
    target.ty().dtype == DType::I32
        && target.ty().count() > 1
        && classes.is_some_and(|(_, labels)| labels == target.dims())
}

/// Traces a loss of each sample, the loss's own weights, and whether there are any.
fn of_samples(part: &LossOn, output: &Var, target: &Var) -> (Var, Option<Var>, bool) {
    let (tape, loss) = (output.tape(), &part.loss);
    let each = tape.scope("loss", || tape.in_f32(|| loss.per_sample(output, target)));
    if each.ty() != &Type::sample(&[]) {
        fail(tape, part, format!("gives {}, not a number for each sample", each.ty()));
    }
    let weight = tape.scope("loss", || loss.weight(target));
    if let Some(weight) = weight.as_ref().filter(|weight| weight.ty() != &Type::sample(&[])) {
        fail(tape, part, format!("weighs with {}, not a number for each sample", weight.ty()));
    }
    let weighs = weight.is_some();
    (each, weight, weighs)
}

/// Traces the weighted mean of a loss over each sample's labels, the sum of the labels' weights, and whether
/// the loss has weights of its own.
fn of_labels(part: &LossOn, weights: &[Var], output: &Var, target: &Var) -> (Var, Option<Var>, bool) {
    let (tape, loss) = (output.tape(), &part.loss);
    let nothing = || (tape.constant(0.0).expand(Lead::Sample, &[]), None, false);
    let Some(each) = tape.scope("loss", || tape.in_f32(|| loss.per_label(output, target))) else {
        let dims = weights[0].dims();
        let problem = format!("has no loss of each label, so weights of {dims:?} a sample weigh nothing");
        fail(tape, part, problem);
        return nothing();
    };
    let own = tape.scope("loss", || loss.label_weight(target));
    if own.is_none() && loss.weight(target).is_some() {
        fail(tape, part, "weighs samples and not labels, so that labels cannot have weights".into());
        return nothing();
    }
    tape.in_f32(|| {
        let dims = weights[0].dims();
        let mut weight: Option<Var> = None;
        for factor in weights.iter().chain(&own) {
            if factor.dims() != dims || !each.dims().starts_with(dims) {
                let problem = format!(
                    "has a loss of each of {:?} labels a sample, which weights of {:?} do not fit",
                    each.dims(),
                    factor.dims()
                );
                fail(tape, part, problem);
                return nothing();
            }
            weight = Some(weight.map_or(factor.clone(), |weight| weight * factor));
        }
        let Some(weight) = weight else { return nothing() };
        let labels = weight.ty().count();
        // A weight for several elements is that of their mean.
        let inner = each.ty().count() / labels.max(1);
        let each =
            if inner == 1 { each.reshape(&[labels]) } else { each.reshape(&[labels, inner]).mean(&[-1]) };
        let weight = weight.reshape(&[labels]);
        let zero = tape.constant(0.0);
        let counts = weight.greater(&zero);
        let total = weight.sum(&[-1]);
        let loss = counts.select(&(&each * &weight), &zero).sum(&[-1]);
        let divisor = total.greater(&zero).select(&total, &tape.constant(1.0));
        (loss / divisor, Some(total), own.is_some())
    })
}

fn fail(tape: &Tape, part: &LossOn, problem: String) {
    tape.fail(GraphError::Op { scope: "loss".into(), op: part.loss.name().into(), problem });
}
