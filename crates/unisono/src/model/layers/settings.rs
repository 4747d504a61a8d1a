//! Checks of layers' settings. Settings come from code or from a model's description alike, so they are
//! checked where a layer is traced.

use unisono_graph::ops::Window;

use super::functional::Window3;
use crate::model::Context;

/// What to do with a mask of integers.
pub(super) const MASK: &str = "a mask is f32, of 0 and 1: Var::to_f32 makes it of integers";

/// The problem of a setting, or `None` if it can work.
pub(super) type Problem = Option<String>;

/// Returns whether all settings of a layer can work, and reports the first that cannot.
pub(super) fn valid(layer: &str, cx: &Context, settings: impl IntoIterator<Item = Problem>) -> bool {
    match settings.into_iter().flatten().next() {
        Some(problem) => {
            cx.fail(layer, problem);
            false
        }
        None => true,
    }
}

/// Checks a number that must be at least 1.
pub(super) fn positive(setting: &str, value: usize) -> Problem {
    (value == 0).then(|| format!("{setting} is 0, and must be at least 1"))
}

/// Checks a number that must be finite.
pub(super) fn finite(setting: &str, value: f32) -> Problem {
    (!value.is_finite()).then(|| format!("{setting} is {value}, and must be finite"))
}

/// Checks a number that must be finite and not negative.
pub(super) fn not_negative(setting: &str, value: f32) -> Problem {
    let works = value.is_finite() && value >= 0.0;
    (!works).then(|| format!("{setting} is {value}, and must be finite and not negative"))
}

/// Checks a share, which must be in [0, 1].
pub(super) fn share(setting: &str, value: f32) -> Problem {
    (!(0.0..=1.0).contains(&value)).then(|| format!("{setting} is {value}, and must be in [0, 1]"))
}

/// Checks a dropout rate, which must be in [0, 1).
pub(super) fn rate(setting: &str, value: f32) -> Problem {
    (!(0.0..1.0).contains(&value)).then(|| format!("{setting} is {value}, and must be in [0, 1)"))
}

/// Checks that the output padding of a transposed convolution is below the stride, since a stride more of it
/// is another window.
pub(super) fn output_padding<const AXES: usize>(extra: [usize; AXES], stride: [usize; AXES]) -> Problem {
    let below = extra.iter().zip(&stride).all(|(extra, stride)| extra < stride.max(&1));
    (!below).then(|| format!("output_padding is {extra:?}, and must be below the stride {stride:?}"))
}

/// Checks that a window has a size, and that the next window and the next element lie elsewhere.
pub(super) fn window(window: &Window) -> [Problem; 3] {
    let sides = [("kernel", window.kernel), ("stride", window.stride), ("dilation", window.dilation)];
    sides.map(|(setting, [height, width])| {
        let works = height > 0 && width > 0;
        (!works).then(|| format!("{setting} is {height} x {width}, and must be at least 1 x 1"))
    })
}

/// Checks windows of volumes as [`window`] checks those of images.
pub(super) fn window3(window: &Window3) -> [Problem; 3] {
    let sides = [("kernel", window.kernel), ("stride", window.stride), ("dilation", window.dilation)];
    sides.map(|(setting, [depth, height, width])| {
        let works = depth > 0 && height > 0 && width > 0;
        (!works).then(|| format!("{setting} is {depth} x {height} x {width}, and must be at least 1 x 1 x 1"))
    })
}
