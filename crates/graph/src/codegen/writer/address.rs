//! Where elements are in the bindings of a kernel.

use super::{QUAD, Writer};
use crate::codegen::affine::Affine;
use crate::codegen::index::Index;
use crate::codegen::starts::Start;
use crate::fuse::Store;
use crate::trace::NodeId;

impl Writer<'_> {
    /// Returns the element's place in its binding.
    pub(in crate::codegen) fn address(&mut self, id: NodeId, index: &Index) -> String {
        self.element(id, index).to_string() + &self.offset(id, 1)
    }

    /// Returns the element's place, counted from where the value begins.
    fn element(&self, id: NodeId, index: &Index) -> Affine {
        let ty = self.ty(id);
        let place = self.stores.place(id);
        let coords = match index {
            Index::Linear(i) => return place.at(i, 1),
            Index::Coords(coords) => coords,
        };
        let mut steps = ty.strides();
        match place.runs {
            // A run ends inside of an axis.
            Some(runs) if runs.len != ty.count() && !steps.contains(&runs.len) => {
                return place.at(&Affine::dot(coords, &steps), 1);
            }
            Some(runs) => runs.spread(&mut steps),
            None => {}
        }
        Affine::dot(coords, &steps)
    }

    /// Returns element `i` of a value, where an element of the binding is a vector of `lanes`.
    pub(super) fn at(&mut self, id: NodeId, i: &Affine, lanes: usize) -> String {
        self.stores.place(id).at(i, lanes).to_string() + &self.offset(id, lanes)
    }

    /// Returns the vector, or the single element, that an invocation computes.
    pub(super) fn here(&self) -> Affine {
        Affine::name(&*self.here, None)
    }

    /// Returns whether a value is alone in its memory, so that its elements are counted from there.
    pub(super) fn is_whole(&self, id: NodeId) -> bool {
        let place = self.stores.place(id);
        let is_shared = matches!(place.store, Store::Sums(_) | Store::State(_));
        !is_shared && place.inside == 0 && place.runs.is_none()
    }

    /// Returns what is added to an index of a value that is a part of its memory.
    pub(super) fn offset(&mut self, id: NodeId, lanes: usize) -> String {
        let place = self.stores.place(id);
        match place.store {
            _ if self.is_whole(id) => return String::new(),
            Store::Scalars => return format!(" + {}u", place.inside),
            _ => {}
        }
        let start = Start::Place(place.store, place.inside, lanes, self.ty(id).count() > 1);
        format!(" + {}", self.starts.wgsl(start, place.inside / lanes))
    }

    /// Returns where a vector of this name is in its binding, as text, and the number of the binding, if one
    /// vector follows the other along `j`, rows by `row` are equally far apart, and it is of f32.
    pub(in crate::codegen) fn vector_of(&self, name: &str) -> Option<(String, usize)> {
        let place = self.vectors.get(name)?;
        let (binding, number) = name.strip_prefix('q')?.split_once('_')?;
        let (binding, number): (usize, usize) = (binding.parse().ok()?, number.parse().ok()?);
        let is_along =
            place.factor("j") == Some(1) && place.factor("row").is_some() && place.factor("i") == Some(0);
        let text = self.quads.get(&binding)?.get(number)?.clone()?;
        (is_along && self.bindings[binding].2 == "f32").then_some((text, binding))
    }

    /// Returns the vector of a binding that has an element for each of those that an invocation computes, if
    /// the index is that of the one at place `lane`.
    pub(super) fn vector(&self, id: NodeId, index: &Index, lane: usize) -> Option<Affine> {
        let comes_in = self.stores.place(id).comes_in(QUAD);
        let has_vectors = comes_in && self.ty(id).count().is_multiple_of(QUAD);
        if !has_vectors || index.is_constant() {
            return None;
        }
        self.element(id, index).vector(QUAD, lane)
    }
}
