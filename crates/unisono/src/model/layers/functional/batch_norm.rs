//! Batch normalization with the statistics of the whole global batch, whatever replicas its samples are on.

use unisono_graph::{Lead, Var};

use super::norm::per_channel;

/// The result of [`batch_norm`] and the statistics that it took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BatchNormed {
    /// The result, with the shape of the operand.
    pub y: Var,
    /// The mean of each channel over samples and pixels, `[C]`.
    pub mean: Var,
    /// The sum of the squared differences from the mean of each channel, `[C]`.
    pub squares: Var,
    /// The number of values that a channel has in the global batch, `[]`.
    pub count: Var,
}

/// Computes (x - mean) / sqrt(variance + eps) weight + bias with the statistics of each channel over the
/// whole global batch and all pixels (Ioffe and Szegedy 2015; PyTorch's `batch_norm(training=True)`).
///
/// Shapes: x `[B, C, ...]` to the same; `weight` and `bias` `[C]`. Without `weight` the scale is 1, without
/// `bias` nothing is added.
///
/// Errors: x has no axis of channels, or no samples.
pub fn batch_norm(x: &Var, weight: Option<&Var>, bias: Option<&Var>, eps: f32) -> BatchNormed {
    let tape = x.tape();
    let (Some(&channels), Lead::Sample) = (x.dims().first(), x.ty().lead) else {
        tape.fail_here("batch_norm", format!("needs samples with an axis of channels, got {}", x.ty()));
        let none = tape.constant(0.0);
        return BatchNormed { y: x.clone(), mean: none.clone(), squares: none.clone(), count: none };
    };
    // Batches are ragged: only the step itself knows its number of samples.
    let samples = tape.constant(1.0).expand(Lead::Sample, &[]).sum_shards();
    let count = samples * (x.ty().count() / channels.max(1)) as f32;
    let mean = sum_of_channels(x) / &count;
    // The mean minimizes the sum of squares, so the squares' derivative by the mean is 0: detach saves
    // computing it.
    let squares = sum_of_channels(&(x - per_channel(&mean.detach(), x)).square());
    let y = batch_norm_with(x, &mean, &(&squares / &count), weight, bias, eps);
    BatchNormed { y, mean, squares, count }
}

/// Computes (x - mean) / sqrt(variance + eps) weight + bias with given statistics (PyTorch's
/// `batch_norm(training=False)`).
///
/// Shapes: x `[B, C, ...]` to the same; all others `[C]`.
pub fn batch_norm_with(
    x: &Var,
    mean: &Var,
    variance: &Var,
    weight: Option<&Var>,
    bias: Option<&Var>,
    eps: f32,
) -> Var {
    let rate = (variance + eps).rsqrt();
    let scale = weight.map_or_else(|| rate.clone(), |w| &rate * w);
    let y = (x - per_channel(mean, x)) * per_channel(&scale, x);
    bias.map_or_else(|| y.clone(), |b| &y + per_channel(b, x))
}

impl BatchNormed {
    /// Returns the running mean and variance, `[C]` each, after the step: they move by the share `momentum`
    /// towards the batch's mean and unbiased variance. With one value a channel there is no such variance,
    /// and the running one stays.
    pub fn running(&self, mean: &Var, variance: &Var, momentum: f32) -> (Var, Var) {
        let one = self.count.tape().constant(1.0);
        let new_mean = (&self.mean - mean) * momentum + mean;
        let unbiased = &self.squares / (&self.count - &one).maximum(&one);
        let moved = (unbiased - variance) * momentum + variance;
        (new_mean, self.count.greater(&one).select(&moved, variance))
    }
}

/// Sums `[B, C, ...]` to `[C]`: first over pixels, then over samples.
fn sum_of_channels(x: &Var) -> Var {
    let pixels: Vec<isize> = (1..x.dims().len() as isize).map(|axis| -axis).collect();
    if pixels.is_empty() { x.sum_shards() } else { x.sum(&pixels).sum_shards() }
}
