//! Indices as WGSL expressions.

use crate::fuse::{Group, regrouped};
use crate::values::strides;

/// The position of an element in a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Index {
    /// The row-major index of the element, the lead included.
    Linear(String),
    /// A coordinate for each axis, the lead first where there is one.
    Coords(Vec<String>),
}

impl Index {
    /// Returns whether the index is the same for all invocations.
    pub(super) fn is_constant(&self) -> bool {
        let is_number = |text: &String| text.strip_suffix('u').is_some_and(|n| n.parse::<u32>().is_ok());
        match self {
            Self::Linear(i) => is_number(i),
            Self::Coords(coords) => coords.iter().all(is_number),
        }
    }
}

/// Returns the coordinates of a row-major index over `dims`.
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

/// Returns the coordinates of the same element under other axes. Axes that are in both keep theirs; there is
/// arithmetic only between those whose sizes differ.
pub(super) fn regroup(coords: &[String], to: &[usize], from: &[usize]) -> Vec<String> {
    let split = |group: Group<'_, String>| {
        Some(match group.coords {
            [one] => decode(one, group.from),
            coords => decode(&format!("({})", dot(coords, &strides(group.to))), group.from),
        })
    };
    regrouped(coords, to, from, &"0u".into(), split)
        .unwrap_or_else(|| decode(&format!("({})", dot(coords, &strides(to))), from))
}

/// Returns a coordinate times a stride.
pub(super) fn scaled(c: &str, s: usize) -> String {
    match (c, s) {
        ("0u", _) => "0u".into(),
        (c, 1) => c.into(),
        (c, s) => format!("{c} * {s}u"),
    }
}

/// Returns the sum of coordinates times strides.
pub(super) fn dot(coords: &[String], steps: &[usize]) -> String {
    let terms = coords.iter().zip(steps).map(|(c, &s)| scaled(c, s));
    let terms: Vec<String> = terms.filter(|term| term != "0u").collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}

/// Returns an f32 as text that WGSL reads back to the same bits.
pub(super) fn literal(x: f32) -> String {
    match x {
        x if x.is_finite() && x.is_sign_positive() => format!("{x:?}f"),
        x if x.is_finite() => format!("({x:?}f)"),
        x => format!("bitcast<f32>({}u | params.zero)", x.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(to: &[usize], from: &[usize]) -> Vec<String> {
        let names: Vec<String> = (0..to.len()).map(|axis| format!("c{axis}")).collect();
        regroup(&names, to, from)
    }

    #[test]
    fn axes_that_stay_keep_their_coordinates() {
        assert_eq!(named(&[16, 1, 14, 14], &[1, 16, 14, 14, 1]), ["0u", "c0", "c2", "c3", "0u"]);
        assert_eq!(named(&[6, 4], &[6, 2, 2]), ["c0", "(c1 / 2u)", "(c1 % 2u)"]);
        assert_eq!(named(&[6, 2, 2], &[6, 4]), ["c0", "(c1 * 2u + c2)"]);
        assert_eq!(named(&[4, 6], &[8, 3]), ["((c0 * 6u + c1) / 3u)", "((c0 * 6u + c1) % 3u)"]);
        assert_eq!(named(&[], &[1, 1]), ["0u", "0u"]);
    }
}
