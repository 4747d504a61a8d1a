//! Losses that compare each sample with all others of the global batch, on whatever replica they are.

use unisono_data::Field;
use unisono_graph::ops::{Contract, Iota};
use unisono_graph::{DType, Lead, Type, Var};

use super::Loss;
use super::binary::within;
use super::embeddings::{APART, several, two};
use super::hinge::positive;

/// What is added to the square of a length, so that a vector of zeros has a gradient.
const LEAST_SQUARE: f32 = 1e-12;
/// What stands for a logit that does not count: e to it is 0.
const NEVER: f32 = -1e30;
/// What is added to a variance, as in PyTorch's `BatchNorm1d`.
const EPSILON: f32 = 1e-5;

/// Normalised temperature-scaled cross-entropy over the global batch (Chen et al. 2020, SimCLR's NT-Xent).
/// Each of a sample's two views is trained to be more similar to the sample's other view than to any view of
/// other samples. The similarity is the cosine divided by the temperature. A sample's loss is the mean over
/// its two views.
///
/// Shapes: outputs `[B, 2, E]`, two views of each sample, to `[B]`. Targets are not used: they may be of any
/// shape. [`Var::gather_batch`] says how much time and memory it takes.
///
/// Errors: outputs of another shape, a temperature that is not a finite number above 0, a global batch of
/// more samples than it was created for.
#[derive(Clone, Copy, Debug)]
pub struct NtXent {
    temperature: f32,
    batch: usize,
}

/// Softmax over the pairs of the global batch (Radford et al. 2021, CLIP's loss; InfoNCE): the first vector
/// of each sample is to be nearer to its second one than to those of other samples, and the second one alike,
/// by the cosine divided by the temperature. A sample's loss is the mean of the two cross-entropies.
///
/// Shapes: outputs `[B, 2, E]`, such as a picture's and a text's vector, to `[B]`. Targets are not used: they
/// may be of any shape. [`InBatchSoftmax::between`] takes a temperature that is trained.
///
/// Errors: outputs of another shape, a temperature that is not a finite number above 0, a global batch of
/// more samples than it was created for.
#[doc(alias("ClipLoss", "InfoNCE"))]
#[derive(Clone, Copy, Debug)]
pub struct InBatchSoftmax {
    temperature: f32,
    batch: usize,
}

/// Barlow Twins (Zbontar et al. 2021): over the global batch, the correlation of each feature of the first
/// view with the same feature of the second one is to be 1, and with others 0. The loss is
/// sum (1 - C_ii)^2 + off_diagonal sum C_ij^2, the same for each sample.
///
/// Shapes: outputs `[B, 2, E]`, two views of each sample, to `[B]`. Targets are not used: they may be of any
/// shape. Features have their mean and variance over the global batch taken out, as by `BatchNorm1d`.
///
/// Errors: outputs of another shape, a factor that is not a finite number above 0.
#[derive(Clone, Copy, Debug)]
pub struct BarlowTwins {
    off_diagonal: f32,
}

/// Triplet margin loss with the hardest triplets of the global batch (Hermans et al. 2017, batch hard): max(d
/// to the farthest sample of the same label - d to the nearest sample of another label + margin, 0) with the
/// Euclidean distance d. If the batch has no other sample of the same label, or none of another label, the
/// sample's loss is 0.
///
/// As in PyTorch's `pairwise_distance`, 1e-6 is added to each difference.
///
/// Shapes: outputs `[B, E]` and i32 labels `[B]` or `[B, 1]`, below 2^24, to `[B]`.
///
/// Errors: outputs or labels of other shapes, a margin that is not a finite number above 0, a global batch of
/// more samples than it was created for.
#[doc(alias = "TripletHardLoss")]
#[derive(Clone, Copy, Debug)]
pub struct TripletHard {
    margin: f32,
    batch: usize,
}

impl NtXent {
    /// Creates the loss with a temperature, such as 0.1, for global batches of up to `global_batch` samples.
    pub fn new(temperature: f32, global_batch: usize) -> Self {
        Self { temperature, batch: global_batch }
    }

    /// Traces the loss of two views of each sample, `[B, E]` each. Returns `[B]`.
    pub fn between(&self, a: &Var, b: &Var) -> Var {
        let (a, b) = (unit(a), unit(b));
        let ([all_a, all_b], others) = both(&a, &b, self.batch);
        let positive = (&a * &b).sum(&[-1]) / self.temperature;
        let loss = |own: &Var, same: &Var, other: &Var| {
            let [same, other] = [same, other].map(|all| own.matmul_t(all) / self.temperature);
            let never = own.tape().constant(NEVER);
            let same = others.is_other.select(&same, &never);
            let other = others.is_there.select(&other, &never);
            log_sum(&same.concat(&[&other], -1)) - &positive
        };
        (loss(&a, &all_a, &all_b) + loss(&b, &all_b, &all_a)) * 0.5
    }
}

impl InBatchSoftmax {
    /// Creates the loss with a temperature, such as 0.07, for global batches of up to `global_batch` samples.
    pub fn new(temperature: f32, global_batch: usize) -> Self {
        Self { temperature, batch: global_batch }
    }

    /// Traces the loss of two vectors of each sample, `[B, E]` each. Their cosines are multiplied by `scale`,
    /// a single number, such as e to the power of a parameter. Returns `[B]`.
    pub fn between(&self, a: &Var, b: &Var, scale: &Var) -> Var {
        let (a, b) = (unit(a), unit(b));
        let ([all_a, all_b], others) = both(&a, &b, self.batch);
        let positive = (&a * &b).sum(&[-1]) * scale;
        let loss = |own: &Var, all: &Var| {
            let logits = own.matmul_t(all) * scale;
            log_sum(&others.is_there.select(&logits, &own.tape().constant(NEVER))) - &positive
        };
        (loss(&a, &all_b) + loss(&b, &all_a)) * 0.5
    }
}

impl BarlowTwins {
    /// Creates the loss with the factor of the correlations that are to be 0, such as 5e-3.
    pub fn new(off_diagonal: f32) -> Self {
        Self { off_diagonal }
    }

    /// Traces the loss of two views of each sample, `[B, E]` each. Returns `[B]`.
    pub fn between(&self, a: &Var, b: &Var) -> Var {
        let tape = a.tape();
        let width = a.dims().last().copied().unwrap_or(1);
        let samples = tape.constant(1.0).expand(Lead::Sample, &[]).sum_shards();
        let mean = |x: &Var| x.sum_shards() / &samples;
        let standard = |x: &Var| {
            let x = x - mean(x);
            let deviation = (mean(&x.square()) + EPSILON).sqrt();
            x / deviation
        };
        let correlation = tape.apply(Contract, &[&standard(a), &standard(b)]).sum_shards() / &samples;
        let place = |axis| tape.apply(Iota { dims: vec![width, width], axis }, &[]).to_f32();
        let is_same = place(0).eq_mask(&place(1));
        let missing = is_same.select(&(1.0 - &correlation), &correlation).square();
        let counts = is_same.select(&tape.constant(1.0), &tape.constant(self.off_diagonal));
        (missing * counts).sum(&[0, 1]).expand(Lead::Sample, &[])
    }
}

impl TripletHard {
    /// Creates the loss with a margin above 0, for global batches of up to `global_batch` samples.
    pub fn new(margin: f32, global_batch: usize) -> Self {
        Self { margin, batch: global_batch }
    }

    /// Traces the loss of vectors `[B, E]` with labels `[B]` of f32. Returns `[B]`.
    pub fn between(&self, x: &Var, labels: &Var) -> Var {
        let tape = x.tape();
        let width = x.dims().last().copied().unwrap_or(1);
        let all = x.gather_batch(self.batch);
        let all_labels = labels.gather_batch(self.batch).values;
        let difference = x.reshape(&[1, width]) - all.values + APART;
        let distance = difference.square().sum(&[-1]).sqrt();
        let is_same = labels.add_axis().eq_mask(&all_labels);
        let positive = &is_same * (1.0 - &all.is_own) * &all.is_there;
        let negative = (1.0 - &is_same) * &all.is_there;
        let [zero, far] = [0.0, -NEVER].map(|x| tape.constant(x));
        let farthest = positive.select(&distance, &zero).max(&[-1]);
        let nearest = negative.select(&distance, &far).min(&[-1]);
        let has_both = positive.max(&[-1]) * negative.max(&[-1]);
        has_both.select(&(farthest - nearest + self.margin).relu(), &zero)
    }
}

/// Which rows of the batch each sample is compared with, `[B, rows]`.
struct Others {
    /// 1 for a row that has a sample.
    is_there: Var,
    /// 1 for a row that has another sample.
    is_other: Var,
}

/// Gathers two vectors of each sample. Returns those of all, `[rows, E]` each.
fn both(a: &Var, b: &Var, rows: usize) -> ([Var; 2], Others) {
    let width = a.dims().last().copied().unwrap_or(1);
    let all = a.concat(&[b], -1).gather_batch(rows);
    let parts = [0, width].map(|from| all.values.slice(-1, from..from + width));
    let is_there = all.is_there.expand(Lead::Sample, &[rows]);
    let is_other = &is_there * (1.0 - &all.is_own);
    (parts, Others { is_there, is_other })
}

/// Returns vectors of length 1 along the last axis.
fn unit(x: &Var) -> Var {
    x / (x.square().sum_keep(&[-1]) + LEAST_SQUARE).sqrt()
}

/// Returns ln of the sum of e^x over the last axis, which disappears.
fn log_sum(x: &Var) -> Var {
    let most = x.max_keep(&[-1]).detach();
    (x - &most).exp().sum(&[-1]).log() + most.sum(&[-1])
}

/// Implements a loss of two vectors of each sample, whose targets are not used.
macro_rules! of_two {
    ($loss:ident, $name:literal, $setting:ident, $between:expr) => {
        impl Loss for $loss {
            fn name(&self) -> &str {
                $name
            }

            fn target(&self, output: &Type) -> Result<Type, String> {
                positive(stringify!($setting), self.$setting)?;
                several::<2>(output)
            }

            fn accepts(&self, output: &Type, _: &Type) -> Result<(), String> {
                self.target(output).map(|_| ())
            }

            fn per_sample(&self, output: &Var, _: &Var) -> Var {
                let [a, b] = two(output);
                $between(self, &a, &b)
            }
        }
    };
}

of_two!(NtXent, "nt-xent", temperature, Self::between);
of_two!(InBatchSoftmax, "in-batch softmax", temperature, |own: &Self, a: &Var, b: &Var| {
    own.between(a, b, &a.tape().constant(1.0 / own.temperature))
});
of_two!(BarlowTwins, "barlow twins", off_diagonal, Self::between);

impl Loss for TripletHard {
    fn name(&self) -> &str {
        "triplet hard"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("margin", self.margin)?;
        match output.dims[..] {
            [_] => Ok(output.with_dims(&[]).of(DType::I32)),
            _ => Err(format!("needs a vector of each sample, [B, E], the model gives {output}")),
        }
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let expected = self.target(output)?;
        let fits = target.dtype == DType::I32 && matches!(target.dims[..], [] | [1]);
        if fits { Ok(()) } else { Err(super::other_target(output, &expected, target)) }
    }

    fn check(&self, _: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(&Type::sample(&[]), targets, "between -2^24 and 2^24", |label| label.abs() < 16_777_216.0)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let labels = target.to_f32();
        self.between(output, &if labels.dims().is_empty() { labels } else { labels.reshape(&[]) })
    }
}
