//! How the elements of a value lie in the buffer that a kernel binds.

use super::affine::Affine;
use crate::fuse::Place;

impl Place {
    /// Returns whether `lanes` elements that begin at a multiple of `lanes` are one vector of the binding.
    pub(super) fn comes_in(&self, lanes: usize) -> bool {
        let sizes = self.runs.map_or([0, 0], |runs| [runs.len, runs.stride]);
        self.inside.is_multiple_of(lanes) && sizes.iter().all(|size| size.is_multiple_of(lanes))
    }

    /// Returns element `i` from the first one on, where an element of the binding is a vector of `lanes`.
    pub(super) fn at(&self, i: &Affine, lanes: usize) -> Affine {
        match self.runs.map(|runs| (runs.len / lanes, runs.stride / lanes)) {
            Some((len, stride)) if len != stride => i.divided(len).times(stride).add(i.remainder(len)),
            _ => i.clone(),
        }
    }
}
