//! Convolutions and pools of volumes, and the windows that they read. Each window of three axes is computed
//! as two windows of fewer axes: first along the depth, then in the plane.

use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;
use unisono_graph::{Lead, Var};

/// The positions of windows on the last three axes of a volume. Each field is `[depth, height, width]`, in
/// voxels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window3 {
    /// The size of a window.
    pub kernel: [usize; 3],
    /// The distance from one window to the next.
    pub stride: [usize; 3],
    /// The distance from one voxel of a window to the next.
    pub dilation: [usize; 3],
    /// The width of the border around the volume.
    pub padding: [usize; 3],
}

impl Window3 {
    /// Returns windows of a size with stride 1, dilation 1 and no border.
    pub fn new(kernel: [usize; 3]) -> Self {
        Self { kernel, stride: [1; 3], dilation: [1; 3], padding: [0; 3] }
    }

    /// Returns how many windows there are on a volume.
    ///
    /// # Errors
    /// Says that no window fits the volume, or that the windows have too many elements.
    pub fn count(&self, volume: [usize; 3]) -> Result<[usize; 3], String> {
        let [depth, height, width] = volume;
        let kernel = self.kernel;
        let problem =
            |_| format!("there is no place for windows of {kernel:?} in a volume of {volume:?}, or too many");
        let [deep, _] = self.along_depth().count([depth, 1]).map_err(problem)?;
        let [down, across] = self.in_plane().count([height, width]).map_err(problem)?;
        Ok([deep, down, across])
    }

    /// Returns the windows along the depth of volumes whose planes are rows.
    fn along_depth(&self) -> Window {
        Window {
            kernel: [self.kernel[0], 1],
            stride: [self.stride[0], 1],
            dilation: [self.dilation[0], 1],
            padding: [self.padding[0], 0],
        }
    }

    /// Returns the windows in each plane.
    fn in_plane(&self) -> Window {
        let plane = |[_, height, width]: [usize; 3]| [height, width];
        Window {
            kernel: plane(self.kernel),
            stride: plane(self.stride),
            dilation: plane(self.dilation),
            padding: plane(self.padding),
        }
    }
}

/// Returns the windows of a volume with `fill` on the border: `[..., D, H, W]` to `[..., kd, D', H', W', kh,
/// kw]`. Errors: there are fewer than three axes, or no window fits.
fn windows(x: &Var, window: &Window3, fill: f32) -> Var {
    let Some((rest, &[depth, height, width])) = x.dims().split_last_chunk::<3>() else {
        x.tape().fail_here("windows", format!("no volume {}", x.ty()));
        return x.clone();
    };
    let [deep, kd] = [window.count([depth, height, width]).map_or(1, |count| count[0]), window.kernel[0]];
    let rows = x.reshape(&[rest, &[depth, height * width]].concat());
    let deep_windows = rows.windows(&window.along_depth(), fill);
    let n = rest.len();
    // [..., D', H W, kd, 1] to [..., kd, D', H W].
    let first = deep_windows.reshape(&[rest, &[deep, height * width, kd]].concat());
    let first = first.permute(&(0..n).chain([n + 2, n, n + 1]).collect::<Vec<_>>());
    let planes = first.reshape(&[rest, &[kd, deep, height, width]].concat());
    planes.windows(&window.in_plane(), fill)
}

/// Computes the three-dimensional convolution (in fact the cross-correlation) with a weight, without bias
/// (PyTorch's `conv3d`). Each output sums over (channel, kd, kh, kw) in row-major order.
///
/// Shapes: `[B, C, D, H, W]` with `[O, C / groups, kd, kh, kw]` to `[B, O, D', H', W']`.
///
/// Errors: the shapes do not fit, or no window fits into the volume.
pub fn conv3d(x: &Var, weight: &Var, window: &Window3, groups: usize) -> Var {
    let fail = |problem: String| {
        x.tape().fail_here("conv3d", problem);
        x.clone()
    };
    let (Some(&[c, d, h, w]), Some(&[o, per_group, kd, kh, kw])) =
        (x.dims().first_chunk::<4>(), weight.dims().first_chunk::<5>())
    else {
        return fail(format!("no volume {} for a weight {}", x.ty(), weight.ty()));
    };
    let divides =
        groups > 0 && c.is_multiple_of(groups) && o.is_multiple_of(groups) && c / groups == per_group;
    if !divides || [kd, kh, kw] != window.kernel {
        return fail(format!("input {} and weight {} do not fit in {groups} groups", x.ty(), weight.ty()));
    }
    let [deep, down, across] = match window.count([d, h, w]) {
        Ok(count) => count,
        Err(problem) => return fail(problem),
    };
    let (voxels, inner) = (deep * down * across, per_group * kd * kh * kw);
    // [groups, C/g, kd, D', H', W', kh, kw] to rows [D' H' W'] of [C/g kd kh kw] each.
    let each = windows(&x.reshape(&[groups, per_group, d, h, w]), window, 0.0);
    let rows = each.permute(&[0, 3, 4, 5, 1, 2, 6, 7]).reshape(&[groups, voxels, inner]);
    let y = weight.reshape(&[groups, o / groups, inner]).matmul_t(&rows);
    y.reshape(&[o, deep, down, across])
}

/// Computes the transpose of [`conv3d`], without bias (PyTorch's `conv_transpose3d`).
///
/// Shapes: `[B, C, d, h, w]` with `[C, O / groups, kd, kh, kw]` to `[B, O, D, H, W]`, where `window` lies on
/// the result, the `volume` `[D, H, W]`.
///
/// Errors: the shapes do not fit.
pub fn conv_transpose3d(x: &Var, weight: &Var, window: &Window3, groups: usize, volume: [usize; 3]) -> Var {
    let fail = |problem: String| {
        x.tape().fail_here("conv_transpose3d", problem);
        x.clone()
    };
    let (Some(&[c, d, h, w]), Some(&[c_weight, per_group, kd, kh, kw])) =
        (x.dims().first_chunk::<4>(), weight.dims().first_chunk::<5>())
    else {
        return fail(format!("no volume {} for a weight {}", x.ty(), weight.ty()));
    };
    let count = window.count(volume);
    if volume.iter().try_fold(1usize, |all, length| all.checked_mul(*length)).is_none() {
        return fail(format!("a volume of {volume:?} has more voxels than can be counted"));
    }
    let fits = groups > 0 && c == c_weight && c.is_multiple_of(groups) && count == Ok([d, h, w]);
    if !fits || [kd, kh, kw] != window.kernel {
        return fail(format!("input {} and weight {} do not fit in {groups} groups", x.ty(), weight.ty()));
    }
    let (voxels, inner) = (d * h * w, per_group * kd * kh * kw);
    let each = x.reshape(&[groups, c / groups, voxels]).permute(&[0, 2, 1]);
    let rows = each.matmul(&weight.reshape(&[groups, c / groups, inner]));
    // [groups, d, h, w, O/g, kd, kh, kw] to [groups, O/g, kd, d, h, w, kh, kw].
    let apart = rows.reshape(&[groups, d, h, w, per_group, kd, kh, kw]).permute(&[0, 4, 5, 1, 2, 3, 6, 7]);
    let [depth, height, width] = volume;
    let planes = apart.fold(&window.in_plane(), [height, width]);
    // [groups, O/g, kd, d, H, W] to [groups, O/g, d, H W, kd, 1].
    let deep = planes.reshape(&[groups, per_group, kd, d, height * width]).permute(&[0, 1, 3, 4, 2]);
    let deep = deep.reshape(&[groups, per_group, d, height * width, kd, 1]);
    let folded = deep.fold(&window.along_depth(), [depth, height * width]);
    folded.reshape(&[groups * per_group, depth, height, width])
}

/// Returns the largest voxel of each window (PyTorch's `max_pool3d`): `[B, C, D, H, W]` to `[B, C, D', H',
/// W']`. The gradient is shared by the voxels that reach the maximum.
pub fn max_pool3d(x: &Var, window: &Window3) -> Var {
    reduced(x, window, f32::MIN, |each| each.max(&[-3, -2, -1]))
}

/// Returns the mean of the voxels of each window (PyTorch's `avg_pool3d`): `[B, C, D, H, W]` to `[B, C, D',
/// H', W']`. The border counts as zeros with `count_include_pad`, and otherwise not at all.
pub fn avg_pool3d(x: &Var, window: &Window3, count_include_pad: bool) -> Var {
    let sum = |x: &Var| reduced(x, window, 0.0, |each| each.sum(&[-3, -2, -1]));
    if count_include_pad {
        return sum(x) / window.kernel.iter().product::<usize>() as f32;
    }
    let volume = &x.dims()[x.dims().len().saturating_sub(3)..];
    sum(x) / sum(&x.tape().constant(1.0).expand(Lead::Global, volume))
}

/// Reduces the windows of a volume, whose elements are the last three axes.
fn reduced(x: &Var, window: &Window3, fill: f32, reduce: impl Fn(&Var) -> Var) -> Var {
    let each = windows(x, window, fill);
    let Some(n) = each.dims().len().checked_sub(6) else { return x.clone() };
    // [..., kd, D', H', W', kh, kw] to [..., D', H', W', kd, kh, kw].
    let last: Vec<usize> = (0..n).chain([n + 1, n + 2, n + 3, n, n + 4, n + 5]).collect();
    reduce(&each.permute(&last))
}
