//! Norms over the elements of one sample.

use unisono_graph::Var;

/// (x - mean) / sqrt(variance + eps) weight + bias, with mean and variance over the last `axes` axes of each row (Ba et al.
/// 2016; PyTorch's `layer_norm`). `weight` and `bias` have those axes.
pub fn layer_norm(x: &Var, axes: usize, weight: Option<&Var>, bias: Option<&Var>, eps: f32) -> Var {
    affine(standardize(x, axes, eps), weight, bias)
}

/// x / sqrt(mean of x^2 + eps) weight, with the mean over the last `axes` axes of each row (Zhang and Sennrich 2019; PyTorch's
/// `rms_norm`).
pub fn rms_norm(x: &Var, axes: usize, weight: Option<&Var>, eps: f32) -> Var {
    let y = x * (mean_keep(&x.square(), axes) + eps).rsqrt();
    affine(y, weight, None)
}

/// As [`layer_norm`] over each of `groups` groups of neighbouring channels of `[B, C, ...]` and all its pixels (Wu and He 2018;
/// PyTorch's `group_norm`). `weight` and `bias` are `[C]`.
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

/// A value of each channel `[C]`, to go with `[B, C, ...]`.
pub(super) fn per_channel(v: &Var, x: &Var) -> Var {
    let dims: Vec<usize> = v.dims().iter().copied().chain(x.dims().iter().skip(1).map(|_| 1)).collect();
    if v.dims() == dims { v.clone() } else { v.reshape(&dims) }
}

/// y weight + bias, as far as they are there.
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

/// Mean first, then the mean of the centred squares: a large mean cancels nothing.
fn standardize(x: &Var, axes: usize, eps: f32) -> Var {
    let centred = x - mean_keep(x, axes);
    let variance = mean_keep(&centred.square(), axes);
    centred * (variance + eps).rsqrt()
}

/// The mean over the last `axes` axes, which stay with length 1.
fn mean_keep(x: &Var, axes: usize) -> Var {
    let axes: Vec<isize> = (1..=axes as isize).map(|axis| -axis).collect();
    let sum = x.sum_keep(&axes);
    let n = x.ty().count() / sum.ty().count().max(1);
    sum / n as f32
}
