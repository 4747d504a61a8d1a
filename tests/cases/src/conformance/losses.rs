//! Recipes for losses. They compute the weighted mean of a public loss over the whole batch.

use std::sync::Arc;

use unisono::{
    BarlowTwins, BinaryCrossEntropyWithLogits, BinaryFocal, Contrastive, CosineDistance, CosineEmbedding,
    CrossEntropy, Ctc, Dice, Hinge, Huber, InBatchSoftmax, KlDivergence, LogCosh, Loss, MeanAbsoluteError,
    MeanSquaredError, MultiMargin, NtXent, PoissonNll, TripletHard, TripletMargin,
};
use unisono_graph::{DType, Lead};

use super::{Case, Recipe};

/// Returns the recipe for a case of a loss, or `None` if the op is not a loss.
pub fn recipe(case: &Case) -> Option<Recipe> {
    if case.op == "loss" {
        return recipe(&case.part("loss")?);
    }
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
        "ctc" => Box::new(Ctc),
        "log_cosh" => Box::new(LogCosh),
        "cosine_distance" => Box::new(CosineDistance),
        _ => return with_settings(case),
    })
}

/// Returns the loss that a case names, if it is one whose settings all come from the case.
fn with_settings(case: &Case) -> Option<Box<dyn Loss>> {
    let number = |name: &str, default: f64| case.number(name).unwrap_or(default) as f32;
    let margin = number("margin", 1.0);
    Some(match case.op.as_str() {
        "kl_divergence" if case.flag("log_probabilities") => {
            Box::new(KlDivergence::new().log_probabilities())
        }
        "kl_divergence" => Box::new(KlDivergence::new()),
        "poisson_nll" => {
            let loss = PoissonNll::new().epsilon(number("eps", 1e-8));
            let loss = if case.flag("log_input") { loss } else { loss.rates() };
            Box::new(if case.flag("full") { loss.full() } else { loss })
        }
        "hinge" => {
            let loss = Hinge::new().margin(margin);
            Box::new(if case.flag("squared") { loss.squared() } else { loss })
        }
        "multi_margin" => {
            let loss = MultiMargin::new().margin(margin);
            Box::new(if case.number("p") == Some(2.0) { loss.squared() } else { loss })
        }
        "binary_focal" => {
            let loss = BinaryFocal::new().gamma(number("gamma", 2.0));
            Box::new(match case.number("alpha") {
                Some(alpha) => loss.alpha(alpha as f32),
                None => loss.no_alpha(),
            })
        }
        "dice" => {
            let loss = Dice::new().smooth(number("smooth", 1.0));
            Box::new(if case.flag("probabilities") { loss.probabilities() } else { loss })
        }
        "cosine_embedding" => Box::new(CosineEmbedding::new(margin)),
        "contrastive" => Box::new(Contrastive::new(margin)),
        "nt_xent" => Box::new(NtXent::new(number("temperature", 1.0), case.dims("x")[0])),
        "in_batch_softmax" => Box::new(InBatchSoftmax::new(number("temperature", 1.0), case.dims("x")[0])),
        "barlow_twins" => Box::new(BarlowTwins::new(number("off_diagonal", 1.0))),
        "triplet_hard" => Box::new(TripletHard::new(margin, case.dims("x")[0])),
        "triplet_margin" => Box::new(TripletMargin::new(margin)),
        _ => return None,
    })
}
