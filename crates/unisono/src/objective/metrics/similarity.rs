//! Cosine similarity.

use unisono_graph::{Type, Var};

use super::regression::like_output;
use super::{Better, Metric};
use crate::objective::losses::mean_of_sample;

/// The least norm that a vector is divided by, PyTorch's `eps`.
const LEAST: f32 = 1e-8;

/// Cosine similarity: x y / (|x| |y|) of the vectors along the last axis, the mean over a sample's vectors
/// and over samples, with the samples' weights (Keras's `CosineSimilarity`, torchmetrics'
/// `CosineSimilarity(reduction="mean")`). Norms below 1e-8 count as 1e-8, as in PyTorch, so that a vector of
/// zeros has a similarity of 0.
///
/// Shapes: outputs x and targets y `[B, ..., features]`. Errors: other shapes, no axis of features.
#[derive(Clone, Copy, Debug, Default)]
pub struct CosineSimilarity;

impl Metric for CosineSimilarity {
    fn name(&self) -> &str {
        "cosine similarity"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        like_output(output, target)?;
        let fits = output.dims == target.dims && !output.dims.is_empty();
        fits.then_some(()).ok_or_else(|| format!("needs vectors of features, got {output} and {target}"))
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let target = target.to_f32();
        let least = output.tape().constant(LEAST);
        let norm = |x: &Var| x.square().sum(&[-1]).sqrt().maximum(&least);
        mean_of_sample(&((output * &target).sum(&[-1]) / norm(output) / norm(&target)))
    }
}
