//! Weights of classes in training.

use unisono_graph::{Lead, Var};

use crate::Error;
use crate::compile::objective::On;
use crate::compile::parts::Parts;

/// Checks the weights by themselves.
///
/// # Errors
/// There are losses of several outputs or fields, or a weight is negative or not finite, or all are 0.
pub(crate) fn check(parts: &Parts) -> Result<(), Error> {
    let wrong = |problem: String| Err(Error::setting("class weights", problem));
    for (output, weights) in &parts.weighing.classes {
        let of = output.as_ref().map(|output| format!("those of {output:?}: ")).unwrap_or_default();
        if let Some(weight) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return wrong(format!("{of}{weight} is negative or not finite"));
        }
        if weights.iter().all(|weight| *weight == 0.0) {
            return wrong(format!("{of}all are 0"));
        }
    }
    if !parts.weighing.classes.contains_key(&None) {
        return Ok(());
    }
    if parts.objective().losses.len() > 1 {
        return wrong("they are for a model with one loss: class_weights_of sets those of an output".into());
    }
    // The samples of all phases weigh the same, so the labels must be those of each.
    let labels = parts.objective().losses.first().map(|loss| &loss.on);
    for phase in &parts.phases {
        if let Some(other) = phase.losses.iter().find(|loss| Some(&loss.on) != labels) {
            return wrong(format!(
                "they are for a model with one loss, and the phase {:?} has that of {:?} as {:?}: \
                 class_weights_of sets those of an output",
                phase.name,
                other.on.output,
                other.on.target()
            ));
        }
    }
    Ok(())
}

/// Returns what each sample counts by its class, `[B]`, given the number of classes and the loss's target.
///
/// # Errors
/// The target is not one label a sample, or there is not a weight for each class. The error is the message.
pub(crate) fn weight_of_samples(
    weights: &[f32],
    classes: usize,
    target: &Var,
    on: &On,
) -> Result<Var, String> {
    if on.target.is_none() {
        return Err(format!("the loss {:?} is a value of the model, which has no labels", on.output));
    }
    let label = match target.dims() {
        [] => target.clone(),
        [1] => target.reshape(&[]),
        dims => return Err(format!("the field {:?} is {dims:?}, not one label a sample", on.target())),
    };
    weight_of_labels(weights, classes, &label)
}

/// Returns what each label counts by its class, in the shape of the labels, given the number of classes.
///
/// # Errors
/// There is not a weight for each class. The error is the message.
pub(crate) fn weight_of_labels(weights: &[f32], classes: usize, labels: &Var) -> Result<Var, String> {
    if classes == 0 {
        return Err("the loss is of quantities, which have no classes: weigh samples by a field \"w\"".into());
    }
    if weights.len() != classes {
        return Err(format!("there are {} weights for {classes} classes", weights.len()));
    }
    let (tape, label) = (labels.tape(), labels.to_f32());
    let constant = |x: f32| tape.constant(x).expand(Lead::Sample, labels.dims());
    // A hinge's classes are -1 and 1, a probability between the classes 0 and 1 of a binary loss is of the
    // nearer one, and what an ignored label counts is the loss's business.
    if let [zero, one] = *weights {
        return Ok(label.greater(&constant(0.5)).select(&constant(one), &constant(zero)));
    }
    // An ignored label is of no class, and counts nothing anyway.
    let mut weight = constant(0.0);
    for (class, own) in weights.iter().enumerate() {
        let is_class = label.eq_mask(&constant(class as f32));
        weight = is_class.select(&constant(*own), &weight);
    }
    Ok(weight)
}
