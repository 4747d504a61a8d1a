//! Phases of kernels that go row by row.

use super::{Lane, Writer};
use crate::codegen::Binding;
use crate::codegen::affine::Affine;
use crate::codegen::index::Index;
use crate::plan::Access;
use crate::trace::NodeId;
use crate::values::Type;

impl<'a> Writer<'a> {
    /// Begins to write a phase of a kernel that goes row by row: from now on `here` counts rows, or vectors
    /// of elements, and `row` is the row's place in workgroup memory. Phases are blocks of their own, so what
    /// one has named is not known in the next.
    pub(in crate::codegen) fn enter_phase(&mut self, here: &str, row: &str, indent: &str) {
        (self.here, self.row, self.indent) = (here.into(), row.into(), indent.into());
        self.spot = None;
        self.known.clear();
        self.quads.values_mut().flatten().for_each(|from| *from = None);
        // No load is one of these: words are loaded one by one, whatever their binding is.
        self.lane = Lane::Scattered;
    }

    /// Begins to write element `lane` of the four that an invocation computes in a phase. Its coordinates in
    /// a type are given.
    pub(in crate::codegen) fn enter_row(&mut self, lane: usize, ty: &'a Type, coords: Vec<Affine>) -> Index {
        let index = Affine::name(&*self.here, None).times(4).plus(lane);
        self.lane = Lane::At(index.clone(), lane);
        self.spot = Some((index.clone(), [(ty, coords.clone()), (ty, coords)]));
        Index::Linear(index)
    }

    /// Begins to write the one element that an invocation computes in a phase. Its coordinates in a type are
    /// given.
    pub(in crate::codegen) fn enter_element(&mut self, ty: &'a Type, coords: Vec<Affine>) -> Index {
        let index = Affine::name(&*self.here, None);
        self.spot = Some((index.clone(), [(ty, coords.clone()), (ty, coords)]));
        Index::Linear(index)
    }

    /// Begins to load element `lane` of four that an invocation reduces one after another.
    pub(in crate::codegen) fn enter_reduced(&mut self, lane: usize) {
        self.lane = Lane::At(Affine::name("", None), lane);
    }

    /// Returns whether any elements are loaded four at a time, and none of them from where `result`
    /// is stored.
    pub(in crate::codegen) fn loads_fours(&self, result: NodeId) -> bool {
        let stored = self.stores.place(result).store;
        let is_other = |binding: &usize| self.bindings[*binding].0.store != stored;
        !self.quads.is_empty() && self.quads.keys().all(is_other)
    }

    /// Notes that a row's number of a value is in this array of workgroup memory from now on.
    pub(in crate::codegen) fn hold(&mut self, id: NodeId, array: &str) {
        self.held.insert(id, array.into());
    }

    /// Binds a memory of which four elements are written at a time. Returns its number.
    pub(in crate::codegen) fn bind_fours(
        &mut self,
        binding: Binding,
        access: Access,
        element: &'static str,
    ) -> usize {
        let number = self.bind_as(binding, access, element);
        self.quads.entry(number).or_default();
        number
    }
}
