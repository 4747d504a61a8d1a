//! Recipes for losses. They compute the weighted mean of a public loss over the whole batch.

use std::sync::Arc;

use unisono::{BinaryCrossEntropyWithLogits, CrossEntropy, Huber, Loss, MeanAbsoluteError, MeanSquaredError};
use unisono_graph::{DType, Lead};

use super::{Case, Recipe};

/// Returns the recipe for a case of a loss, or `None` if the op is not a loss.
pub fn recipe(case: &Case) -> Option<Recipe> {
    let loss: Arc<dyn Loss> = loss(case)?.into();
    if case.text("reduction").is_some_and(|r| !r.contains("mean")) {
        return None;
    }
    let role = |names: [&'static str; 2]| names.into_iter().find(|&name| case.inputs.contains_key(name));
    let (output, target) = (role(["logits", "x"])?, role(["labels", "target"])?);
    Some(Recipe::one(&["logits", "labels", "x", "target", "weights"], move |x| {
        let (output, target) = (&x[output], &x[target]);
        let each = loss.per_sample(output, target);
        let weight = match (x.get("weights").cloned(), loss.weight(target)) {
            (Some(given), Some(own)) => given * own,
            (Some(weight), None) | (None, Some(weight)) => weight,
            (None, None) => output.tape().constant(1.0).expand(Lead::Sample, &[]),
        };
        (each * &weight).sum_shards() / weight.sum_shards()
    }))
}

/// Returns the loss that a case names.
pub fn loss(case: &Case) -> Option<Box<dyn Loss>> {
    Some(match case.op.as_str() {
        "cross_entropy" => {
            let smoothing = case.number("label_smoothing").unwrap_or(0.0) as f32;
            let mut loss = CrossEntropy::new().label_smoothing(smoothing);
            if let Some(label) = case.number("ignore_index") {
                loss = loss.ignore_index(label as i32);
            }
            let target = case.inputs.get("labels").or_else(|| case.inputs.get("target"));
            let probabilities = target.is_some_and(|t| t.dtype == DType::F32);
            Box::new(if probabilities { loss.probabilities() } else { loss })
        }
        "mse" => Box::new(MeanSquaredError),
        "l1" => Box::new(MeanAbsoluteError),
        "huber" => Box::new(Huber::new(case.number("delta").unwrap_or(1.0) as f32)),
        "bce_with_logits" => Box::new(BinaryCrossEntropyWithLogits),
        _ => return None,
    })
}
