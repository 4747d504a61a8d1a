//! Normalization over the elements of one sample.

use unisono_graph::Var;

/// Computes (x - mean) / sqrt(variance + eps) weight + bias, with mean and variance over the last `axes` axes
/// (Ba et al. 2016; PyTorch's `layer_norm`).
///
/// Shapes: x `[B, ..., F]` to the same; `weight` and `bias` have the last `axes` axes, `[F]`.
pub fn layer_norm(x: &Var, axes: usize, weight: Option<&Var>, bias: Option<&Var>, eps: f32) -> Var {
    affine(standardize(x, axes, eps), weight, bias)
}

/// Computes x / sqrt(mean of x^2 + eps) weight, with the mean over the last `axes` axes (Zhang and Sennrich
/// 2019; PyTorch's `rms_norm`).
///
/// Shapes: x `[B, ..., F]` to the same; `weight` has the last `axes` axes, `[F]`.
pub fn rms_norm(x: &Var, axes: usize, weight: Option<&Var>, eps: f32) -> Var {
    let y = x * (mean_keep(&x.square(), axes) + eps).rsqrt();
    affine(y, weight, None)
}

/// Computes (x - mean) / sqrt(variance + eps) weight + bias, with mean and variance over each of `groups`
/// groups of neighbouring channels and all their pixels (Wu and He 2018; PyTorch's `group_norm`).
///
/// Shapes: x `[B, C, ...]` to the same; `weight` and `bias` `[C]`.
///
/// Errors: `groups` does not divide C.
pub fn group_norm(x: &Var, groups: usize, weight: Option<&Var>, bias: Option<&Var>, eps: f32) -> Var {
    let channels = x.dims().first().copied().unwrap_or(0);
    if groups == 0 || !channels.is_multiple_of(groups) || channels == 0 {
        x.tape().fail_here("group_norm", format!("{} does not have {groups} groups of channels", x.ty()));
        return x.clone();
    }
    let y = standardize(&x.reshape(&[groups, x.ty().count() / groups]), 1, eps).reshape(x.dims());
    let [weight, bias] = [weight, bias].map(|v| v.map(|v| per_channel(v, x)));
    affine(y, weight.as_ref(), bias.as_ref())
}

/// Reshapes one value for each channel, `[C]`, so that it broadcasts to x `[B, C, ...]`.
pub(super) fn per_channel(v: &Var, x: &Var) -> Var {
    let dims: Vec<usize> = v.dims().iter().copied().chain(x.dims().iter().skip(1).map(|_| 1)).collect();
    if v.dims() == dims { v.clone() } else { v.reshape(&dims) }
}

/// Computes y weight + bias; either may be left out.
fn affine(y: Var, weight: Option<&Var>, bias: Option<&Var>) -> Var {
    let scaled = match weight {
        Some(weight) => y * weight,
        None => y,
    };
    match bias {
        Some(bias) => scaled + bias,
        None => scaled,
    }
}

/// Computes (x - mean) / sqrt(variance + eps). The mean is taken first and the variance from differences to
/// it, so that a large mean cancels no digits.
fn standardize(x: &Var, axes: usize, eps: f32) -> Var {
    let centred = x - mean_keep(x, axes);
    let variance = mean_keep(&centred.square(), axes);
    centred * (variance + eps).rsqrt()
}

/// Returns the mean over the last `axes` axes, which stay with length 1.
fn mean_keep(x: &Var, axes: usize) -> Var {
    let axes: Vec<isize> = (1..=axes as isize).map(|axis| -axis).collect();
    let sum = x.sum_keep(&axes);
    let n = x.ty().count() / sum.ty().count().max(1);
    sum / n as f32
}
