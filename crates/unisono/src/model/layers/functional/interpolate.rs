//! Images of any other size, by products with matrices that are computed from the sizes.

use serde::{Deserialize, Serialize};
use unisono_graph::ops::Iota;
use unisono_graph::{Lead, Tape, Var};

/// The parameter a of cubic interpolation, as in PyTorch.
const CUBIC: f32 = -0.75;

/// How pixels between those of an image are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The pixel at the place, rounded down.
    Nearest,
    /// Linear between neighbours in both directions.
    Bilinear,
    /// Cubic polynomials between neighbours in both directions.
    Bicubic,
}

/// Resizes images: `[B, ..., h, w]` to `[B, ..., H, W]` for the size `[H, W]` (PyTorch's
/// `interpolate(size=..)` without `antialias`). Beyond its outermost pixels the image goes on as it is
/// there.
///
/// Errors: x has fewer than two axes or no samples, or a side is 0.
pub fn resize2d(x: &Var, size: [usize; 2], how: Interpolation, align_corners: bool) -> Var {
    let Some((rest, &[height, width])) = x.dims().split_last_chunk::<2>() else {
        x.tape().fail_here("resize2d", format!("{} is no image", x.ty()));
        return x.clone();
    };
    if x.ty().lead != Lead::Sample || height * width * size[0] * size[1] == 0 {
        x.tape().fail_here("resize2d", format!("{} cannot become {} x {}", x.ty(), size[0], size[1]));
        return x.clone();
    }
    let mut swap: Vec<usize> = (0..rest.len() + 2).collect();
    swap.swap(rest.len(), rest.len() + 1);
    let tape = x.tape();
    tape.in_f32(|| {
        let along = |x: &Var, from: usize, to: usize| {
            if from == to { x.clone() } else { x.matmul_t(&weights(tape, from, to, how, align_corners)) }
        };
        let rows = along(x, width, size[1]);
        if height == size[0] { rows } else { along(&rows.permute(&swap), height, size[0]).permute(&swap) }
    })
}

/// Returns what each of `to` results takes of each of `from` elements, `[to, from]`.
fn weights(tape: &Tape, from: usize, to: usize, how: Interpolation, align_corners: bool) -> Var {
    let place = |axis| tape.apply(Iota { dims: vec![to, from], axis }, &[]).to_f32();
    let (result, element) = (place(0), place(1));
    let (last, zero) = ((from - 1) as f32, tape.constant(0.0));
    // Half a step more, so that no rounding passes a whole number.
    let nearest = || ((&result * from as f32 + 0.5) / to as f32).floor();
    let between = || match (align_corners, to) {
        (true, 1) => &result * 0.0,
        (true, _) => &result * (last / (to - 1) as f32),
        (false, _) => (&result + 0.5) * (from as f32 / to as f32) - 0.5,
    };
    match how {
        Interpolation::Nearest => nearest().eq_mask(&element),
        Interpolation::Bilinear => {
            let distance = (between().clamp(0.0, last) - &element).abs();
            (1.0 - distance).maximum(&zero)
        }
        Interpolation::Bicubic => {
            let at = between();
            let below = at.floor();
            let part = at - &below;
            let each = |step: f32| {
                let own = (&below + step).clamp(0.0, last).eq_mask(&element);
                own * cubic(&if step < 0.5 { &part - step } else { step - &part }, (0.0..1.5).contains(&step))
            };
            each(-1.0) + each(0.0) + each(1.0) + each(2.0)
        }
    }
}

/// Returns the weight of an element at a distance of 0 to 1 if it is `near`, else of 1 to 2.
fn cubic(x: &Var, near: bool) -> Var {
    let square = x.square();
    let cube = &square * x;
    match near {
        true => cube * (CUBIC + 2.0) - square * (CUBIC + 3.0) + 1.0,
        false => cube * CUBIC - square * (5.0 * CUBIC) + x * (8.0 * CUBIC) - 4.0 * CUBIC,
    }
}
