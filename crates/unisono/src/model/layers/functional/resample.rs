//! Images of other sizes.

use unisono_graph::Var;

use super::sequence::join;

/// Repeats each pixel: `[B, C, H, W]` to `[B, C, H down, W across]` for the factors `[down, across]`
/// (PyTorch's `interpolate(mode="nearest")`).
///
/// Errors: x has fewer than two axes, or a factor is 0.
pub fn upsample_nearest(x: &Var, factor: [usize; 2]) -> Var {
    let Some((rest, [h, w, height, width])) = upsampled(x, factor) else { return x.clone() };
    let [down, across] = factor;
    let one = x.reshape(&[rest, &[h, 1, w, 1]].concat());
    let repeated = one.expand(x.ty().lead, &[rest, &[h, down, w, across]].concat());
    repeated.reshape(&[rest, &[height, width]].concat())
}

/// Interpolates between the centres of pixels: `[B, C, H, W]` to `[B, C, H down, W across]` for the
/// factors `[down, across]` (PyTorch's `interpolate(mode="bilinear", align_corners=False)`). Beyond the
/// outermost centres the image goes on as it is there.
///
/// Errors: x has fewer than two axes, or a factor is 0.
pub fn upsample_bilinear(x: &Var, factor: [usize; 2]) -> Var {
    let Some((rest, [_, w, height, width])) = upsampled(x, factor) else { return x.clone() };
    // [..., H, W] -> [..., H, down, W] -> [..., H down, W] -> [..., H down, W, across].
    let rows = between(x, 2, factor[0]).reshape(&[rest, &[height, w]].concat());
    between(&rows, 1, factor[1]).reshape(&[rest, &[height, width]].concat())
}

/// Returns the axes before the image, and its height and width before and after. What cannot be upsampled
/// is an error.
fn upsampled(x: &Var, [down, across]: [usize; 2]) -> Option<(&[usize], [usize; 4])> {
    match x.dims().split_last_chunk::<2>() {
        Some((rest, &[h, w])) if h > 0 && w > 0 && down > 0 && across > 0 => {
            Some((rest, [h, w, h.saturating_mul(down), w.saturating_mul(across)]))
        }
        _ => {
            x.tape().fail_here("upsample", format!("{} is no image to repeat {down} x {across}", x.ty()));
            None
        }
    }
}

/// Interpolates along the axis that is `from_last` from the end, 1 for the last one. The result has an
/// axis of `factor` positions behind this axis.
fn between(x: &Var, from_last: usize, factor: usize) -> Var {
    let (at, axis) = (x.dims().len() - from_last, -(from_last as isize));
    let length = x.dims()[at];
    // The neighbours of each pixel. Those of the outermost ones are these themselves.
    let (mut before, mut after) = (x.clone(), x.clone());
    if length > 1 {
        before = x.slice(axis, 0..1).concat(&[&x.slice(axis, 0..length - 1)], axis);
        after = x.slice(axis, 1..length).concat(&[&x.slice(axis, length - 1..length)], axis);
    }
    let mut dims = x.dims().to_vec();
    dims.insert(at + 1, 1);
    let mut parts = Vec::with_capacity(factor);
    for phase in 0..factor {
        // How far from the pixel's centre the position is, in pixels: in (-1/2, 1/2).
        let offset = (phase as f32 + 0.5) / factor as f32 - 0.5;
        let other = if offset < 0.0 { &before } else { &after };
        let part = if offset == 0.0 { x.clone() } else { x * (1.0 - offset.abs()) + other * offset.abs() };
        parts.push(part.reshape(&dims));
    }
    join(&parts, axis).unwrap_or_else(|| x.clone())
}

/// Averages to a size: `[B, C, H, W]` to `[B, C, h, w]` for the size `[h, w]` (PyTorch's
/// `adaptive_avg_pool2d`). Output row i is the mean of the rows from H i / h, rounded down, to H (i + 1) /
/// h, rounded up.
///
/// Errors: x has fewer than two axes, an axis without elements, or the size is 0.
pub fn adaptive_avg_pool2d(x: &Var, size: [usize; 2]) -> Var {
    match adapted("adaptive_avg_pool2d", x, size) {
        Some(Adapted::Tiles(tiles)) => tiles.mean(&[-3, -1]),
        Some(Adapted::Ragged) => {
            let mean = |part: &Var, axis: isize, count: usize| part.sum_keep(&[axis]) / count as f32;
            along(&along(x, -2, size[0], mean), -1, size[1], mean)
        }
        None => x.clone(),
    }
}

/// Takes the largest elements to a size: `[B, C, H, W]` to `[B, C, h, w]` for the size `[h, w]` (PyTorch's
/// `adaptive_max_pool2d`). Output row i is the maximum of the rows from H i / h, rounded down, to H (i + 1)
/// / h, rounded up.
///
/// Errors: x has fewer than two axes, an axis without elements, or the size is 0.
pub fn adaptive_max_pool2d(x: &Var, size: [usize; 2]) -> Var {
    match adapted("adaptive_max_pool2d", x, size) {
        Some(Adapted::Tiles(tiles)) => tiles.max(&[-3, -1]),
        Some(Adapted::Ragged) => {
            let largest = |part: &Var, axis: isize, _: usize| part.max_keep(&[axis]);
            along(&along(x, -2, size[0], largest), -1, size[1], largest)
        }
        None => x.clone(),
    }
}

/// An image that is cut into the windows of an adaptive pool.
enum Adapted {
    /// Windows of one size, side by side: `[.., h, H / h, w, W / w]`.
    Tiles(Var),
    /// Windows of several sizes, or windows that overlap.
    Ragged,
}

/// Cuts an image into windows. What cannot be cut is an error.
fn adapted(op: &str, x: &Var, [down, across]: [usize; 2]) -> Option<Adapted> {
    let Some((rest, &[h, w])) = x.dims().split_last_chunk::<2>() else {
        x.tape().fail_here(op, format!("{} is no image", x.ty()));
        return None;
    };
    if h == 0 || w == 0 || down == 0 || across == 0 {
        x.tape().fail_here(op, format!("{} cannot become {down} x {across}", x.ty()));
        return None;
    }
    if h % down == 0 && w % across == 0 {
        return Some(Adapted::Tiles(x.reshape(&[rest, &[down, h / down, across, w / across]].concat())));
    }
    Some(Adapted::Ragged)
}

/// Pools an axis to `size` positions by a function of a part, its axis and its length.
fn along(x: &Var, axis: isize, size: usize, pool: impl Fn(&Var, isize, usize) -> Var) -> Var {
    let length = x.dims()[x.dims().len().saturating_add_signed(axis)];
    let parts: Vec<Var> = (0..size)
        .map(|i| {
            let own = length * i / size..(length * (i + 1)).div_ceil(size);
            let count = own.len();
            pool(&x.slice(axis, own), axis, count)
        })
        .collect();
    join(&parts, axis).unwrap_or_else(|| x.clone())
}
