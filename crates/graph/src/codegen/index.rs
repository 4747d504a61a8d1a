//! Indices of elements.

use super::affine::Affine;
use crate::fuse::{Group, regrouped};
use crate::values::strides;

/// The position of an element in a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Index {
    /// The row-major index of the element, the lead included.
    Linear(Affine),
    /// A coordinate for each axis, the lead first where there is one.
    Coords(Vec<Affine>),
}

impl Index {
    /// Returns the index that a variable of the kernel holds.
    pub(super) fn named(name: &str) -> Self {
        Self::Linear(Affine::name(name, None))
    }

    /// Returns whether the index is the same for all invocations.
    pub(super) fn is_constant(&self) -> bool {
        match self {
            Self::Linear(i) => i.is_constant(),
            Self::Coords(coords) => coords.iter().all(Affine::is_constant),
        }
    }
}

/// Returns the coordinates of a row-major index over `dims`.
pub(super) fn decode(index: &Affine, dims: &[usize]) -> Vec<Affine> {
    let coordinate = |(axis, (&d, s)): (usize, (&usize, usize))| match (d, axis) {
        (1, _) => Affine::default(),
        // The first axis has what is left.
        (_, 0) => index.divided(s),
        _ => index.divided(s).remainder(d),
    };
    dims.iter().zip(strides(dims)).enumerate().map(coordinate).collect()
}

/// Returns the coordinates of the same element under other axes. Axes that are in both keep theirs.
pub(super) fn regroup(coords: &[Affine], to: &[usize], from: &[usize]) -> Vec<Affine> {
    let split =
        |group: Group<'_, Affine>| Some(decode(&Affine::dot(group.coords, &strides(group.to)), group.from));
    regrouped(coords, to, from, &Affine::default(), split)
        .unwrap_or_else(|| decode(&Affine::dot(coords, &strides(to)), from))
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
        let name = |(axis, &d): (usize, &usize)| Affine::name(format!("c{axis}"), Some(d));
        let names: Vec<Affine> = to.iter().enumerate().map(name).collect();
        regroup(&names, to, from).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn axes_that_stay_keep_their_coordinates() {
        assert_eq!(named(&[16, 1, 14, 14], &[1, 16, 14, 14, 1]), ["0u", "c0", "c2", "c3", "0u"]);
        assert_eq!(named(&[6, 4], &[6, 2, 2]), ["c0", "c1 / 2u", "c1 % 2u"]);
        assert_eq!(named(&[6, 2, 2], &[6, 4]), ["c0", "c1 * 2u + c2"]);
        assert_eq!(named(&[4, 6], &[8, 3]), ["c0 * 2u + c1 / 3u", "c1 % 3u"]);
        assert_eq!(named(&[], &[1, 1]), ["0u", "0u"]);
    }
}
