//! Losses of vectors that are to lie near each other or far apart: embeddings of pairs and of triplets.

use unisono_data::Field;
use unisono_graph::{Type, Var};

use super::binary::{binary_target, within};
use super::hinge::positive;
use super::{Loss, mean_of_quantities, mean_of_sample};

/// What is added to each difference of a distance, as in PyTorch's `pairwise_distance`, so that the root
/// has a gradient where two vectors are equal.
pub(super) const APART: f32 = 1e-6;
/// What is added to the square of a norm, as in PyTorch's `cosine_embedding_loss`.
const LEAST_SQUARE: f32 = 1e-12;

/// Cosine distance, 1 - cos(x, y), of the vectors along the last axis, the mean over a sample's other axes.
/// Keras's `CosineSimilarity` is this less 1; PyTorch's `CosineEmbeddingLoss` is this for a label of 1.
///
/// Shapes: outputs x and targets y `[B, ..., E]` to `[B]`. Errors: outputs without an axis.
#[derive(Clone, Copy, Debug, Default)]
pub struct CosineDistance;

/// Cosine embedding loss of pairs (PyTorch's `CosineEmbeddingLoss`): 1 - cos(a, b) for pairs with the
/// label 1, max(cos(a, b) - margin, 0) for those with -1.
///
/// Shapes: outputs `[B, 2, E]`, a and b of each pair, and labels `[B]` or `[B, 1]` of f32 or i32 to `[B]`.
///
/// Errors: outputs or labels of other shapes, a label other than -1 and 1, a margin outside of [-1, 1].
#[doc(alias = "CosineEmbeddingLoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct CosineEmbedding {
    margin: f32,
}

/// Contrastive loss of pairs (Hadsell et al. 2006): with the Euclidean distance d of a and b, d^2 / 2 for
/// pairs with the label 1, which belong together, and max(margin - d, 0)^2 / 2 for those with 0. The
/// margin of [`Contrastive::default`] is 1.
///
/// As in PyTorch's `pairwise_distance`, 1e-6 is added to each difference.
///
/// Shapes: outputs `[B, 2, E]`, a and b of each pair, and labels `[B]` or `[B, 1]` of f32 or i32 to `[B]`.
///
/// Errors: outputs or labels of other shapes, a label outside of [0, 1], a margin that is not a finite number
/// above 0.
#[derive(Clone, Copy, Debug)]
pub struct Contrastive {
    margin: f32,
}

/// Triplet margin loss (Schroff et al. 2015; PyTorch's `TripletMarginLoss`): max(d(anchor, positive) -
/// d(anchor, negative) + margin, 0) with the Euclidean distance d. The margin of
/// [`TripletMargin::default`] is 1.
///
/// As in PyTorch, 1e-6 is added to each difference.
///
/// Shapes: outputs `[B, 3, E]`, anchor, positive and negative of each triplet, to `[B]`. Targets are not
/// used: they may be of any shape, but there must be a field for them, such as `x`
/// ([`Builder::loss_between`](crate::Builder::loss_between)).
///
/// Errors: outputs of another shape, a margin that is not a finite number above 0.
#[doc(alias = "TripletMarginLoss")]
#[derive(Clone, Copy, Debug)]
pub struct TripletMargin {
    margin: f32,
}

impl CosineEmbedding {
    /// Creates the loss with a margin in [-1, 1]: pairs that do not belong together may have cosines up to
    /// it. The margin of [`CosineEmbedding::default`] is 0.
    pub fn new(margin: f32) -> Self {
        Self { margin }
    }

    /// Traces the loss of pairs a and b `[B, E]` with labels `[B]` of f32. Returns `[B]`.
    pub fn between(&self, a: &Var, b: &Var, labels: &Var) -> Var {
        let cos = cosine(a, b);
        let apart = (&cos - self.margin).relu();
        labels.greater(&labels.tape().constant(0.0)).select(&(1.0 - cos), &apart)
    }
}

impl Contrastive {
    /// Creates the loss with a margin above 0: pairs that do not belong together are to be that far apart.
    pub fn new(margin: f32) -> Self {
        Self { margin }
    }

    /// Traces the loss of pairs a and b `[B, E]` with labels `[B]` of f32. Returns `[B]`.
    pub fn between(&self, a: &Var, b: &Var, labels: &Var) -> Var {
        let distance = distance(a, b);
        let missing = (self.margin - &distance).relu();
        (labels * distance.square() + (1.0 - labels) * missing.square()) * 0.5
    }
}

impl TripletMargin {
    /// Creates the loss with a margin above 0: the negative is to be that much farther away than the
    /// positive.
    pub fn new(margin: f32) -> Self {
        Self { margin }
    }

    /// Traces the loss of triplets, `[B, E]` each. Returns `[B]`.
    pub fn between(&self, anchor: &Var, positive: &Var, negative: &Var) -> Var {
        (distance(anchor, positive) - distance(anchor, negative) + self.margin).relu()
    }
}

impl Default for Contrastive {
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl Default for TripletMargin {
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl CosineDistance {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        1.0 - cosine(output, target)
    }
}

impl Loss for CosineDistance {
    fn name(&self) -> &str {
        "cosine distance"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        if output.dims.is_empty() {
            return Err(format!("outputs need an axis of features, the model gives {output}"));
        }
        Ok(output.clone())
    }

    mean_of_quantities!();
}

impl Loss for CosineEmbedding {
    fn name(&self) -> &str {
        "cosine embedding"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        if !(-1.0..=1.0).contains(&self.margin) {
            return Err(format!("margin {} is not in [-1, 1]", self.margin));
        }
        several::<2>(output)
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    fn classes(&self, _: &Type) -> usize {
        2
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let [a, b] = parts(output);
        self.between(&a, &b, &one_each(target))
    }

    fn check(&self, _: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(&Type::sample(&[]), targets, "-1 or 1", |y| y.abs() == 1.0)
    }
}

impl Loss for Contrastive {
    fn name(&self) -> &str {
        "contrastive"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("margin", self.margin)?;
        several::<2>(output)
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    fn classes(&self, _: &Type) -> usize {
        2
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let [a, b] = parts(output);
        self.between(&a, &b, &one_each(target))
    }

    fn check(&self, _: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(&Type::sample(&[]), targets, "in [0, 1]", |y| (0.0..=1.0).contains(&y))
    }
}

impl Loss for TripletMargin {
    fn name(&self) -> &str {
        "triplet margin"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("margin", self.margin)?;
        several::<3>(output)
    }

    fn accepts(&self, output: &Type, _: &Type) -> Result<(), String> {
        self.target(output).map(|_| ())
    }

    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        let [anchor, positive, negative] = parts(output);
        self.between(&anchor, &positive, &negative)
    }
}

/// Checks that outputs are N vectors for each sample, `[B, N, E]`. Returns the type of one label a sample.
pub(super) fn several<const N: usize>(output: &Type) -> Result<Type, String> {
    match output.dims[..] {
        [n, width] if n == N && width > 0 => Ok(output.with_dims(&[])),
        _ => Err(format!("needs {N} vectors for each sample, [B, {N}, E], the model gives {output}")),
    }
}

/// Cuts `[B, 2, E]` into two values `[B, E]`.
pub(super) fn two(output: &Var) -> [Var; 2] {
    parts(output)
}

/// Cuts `[B, N, E]` into N values `[B, E]`.
fn parts<const N: usize>(output: &Var) -> [Var; N] {
    let width = output.dims().last().copied().unwrap_or(1);
    std::array::from_fn(|i| output.slice(1, i..i + 1).reshape(&[width]))
}

/// Returns labels `[B]` or `[B, 1]` as `[B]` of f32.
fn one_each(labels: &Var) -> Var {
    let labels = labels.to_f32();
    if labels.dims().is_empty() { labels } else { labels.reshape(&[]) }
}

/// Traces the Euclidean distance of vectors along the last axis, which disappears.
fn distance(a: &Var, b: &Var) -> Var {
    (a - b + APART).square().sum(&[-1]).sqrt()
}

/// Traces the cosine of the angle between vectors along the last axis, which disappears.
fn cosine(a: &Var, b: &Var) -> Var {
    let square = |x: &Var| x.square().sum(&[-1]) + LEAST_SQUARE;
    (a * b).sum(&[-1]) / (square(a) * square(b)).sqrt()
}
