//! Where elements are: indices as WGSL expressions.

use crate::types::strides;

/// Where an element of a value is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Index {
    /// Row-major, the lead included.
    Linear(String),
    /// A coordinate an axis, the lead first where there is one.
    Coords(Vec<String>),
}

/// Coordinates of a row-major index over `dims`.
pub(super) fn decode(index: &str, dims: &[usize]) -> Vec<String> {
    let steps = strides(dims);
    let last = dims.len().saturating_sub(1);
    let coordinate = |(axis, (&d, &s)): (usize, (&usize, &usize))| match (d, s, axis) {
        (1, ..) => "0u".to_string(),
        (_, 1, 0) => index.to_string(),
        (_, s, 0) => format!("({index} / {s}u)"),
        (d, 1, a) if a == last => format!("({index} % {d}u)"),
        (d, s, _) => format!("({index} / {s}u % {d}u)"),
    };
    dims.iter().zip(&steps).enumerate().map(coordinate).collect()
}

/// The sum of coordinates times strides.
pub(super) fn dot(coords: &[String], steps: &[usize]) -> String {
    let term = |(c, s): (&String, &usize)| match (c.as_str(), s) {
        ("0u", _) => None,
        (c, 1) => Some(c.to_string()),
        (c, s) => Some(format!("{c} * {s}u")),
    };
    let terms: Vec<String> = coords.iter().zip(steps).filter_map(term).collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}

/// An f32 that WGSL reads back to the same bits.
pub(super) fn literal(x: f32) -> String {
    match x {
        x if x.is_finite() && x.is_sign_positive() => format!("{x:?}f"),
        x if x.is_finite() => format!("({x:?}f)"),
        x => format!("bitcast<f32>({}u | params.zero)", x.to_bits()),
    }
}
