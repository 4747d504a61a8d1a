//! What a trace says about gradients: what they compute a second time, which steps are a loop, and what they
//! read from one memory.

use std::ops::Range;

use super::Tape;
use crate::trace::{NodeId, Var};

impl Tape {
    pub(crate) fn enter_region(&self) {
        self.inner.borrow_mut().depth += 1;
    }

    pub(crate) fn leave_region(&self, first: NodeId) {
        let mut inner = self.inner.borrow_mut();
        inner.depth -= 1;
        if inner.depth == 0 {
            let end = inner.graph.nodes.len();
            inner.regions.push(first..end);
        }
    }

    /// Returns the region that a node is in.
    pub(crate) fn region(&self, id: NodeId) -> Option<Range<NodeId>> {
        let regions = &self.inner.borrow().regions;
        let at = regions.partition_point(|region| region.end <= id);
        regions.get(at).filter(|region| region.contains(&id)).cloned()
    }

    /// Records what `f` records as the steps of one loop. The gradient of a weight that multiplies one row of
    /// each sample in each step is then one product over (sample, step), with the steps in the order in which
    /// they were recorded.
    pub fn unrolled<T>(&self, f: impl FnOnce() -> T) -> T {
        let first = self.len();
        let result = f();
        let end = self.len();
        let inner = &mut *self.inner.borrow_mut();
        // Loops inside of this one are there already.
        (first..end).for_each(|id| _ = inner.loop_of.entry(id).or_insert(inner.loops));
        inner.loops += 1;
        result
    }

    /// Lets gradients read these values from one memory, in which they lie side by side. A kernel then binds
    /// one buffer for all of them. No result changes. Values of different shapes stay apart.
    pub fn save_together(&self, values: &[Var]) {
        let Some((first, others)) = values.split_first() else { return };
        if first.dims().is_empty() || others.iter().any(|value| value.ty() != first.ty()) {
            return;
        }
        let axis = -(first.dims().len() as isize);
        let whole = first.concat(&others.iter().collect::<Vec<_>>(), axis);
        let length = first.dims()[0];
        for (at, value) in values.iter().enumerate() {
            let place = whole.slice(axis, at * length..(at + 1) * length);
            self.inner.borrow_mut().saved.insert(value.id(), place.id());
        }
    }

    /// Returns a value as gradients read it.
    pub(crate) fn saved(&self, value: &Var) -> Var {
        let place = self.inner.borrow().saved.get(&value.id()).copied();
        place.map_or_else(|| value.clone(), |place| self.var(place))
    }

    /// Returns the number of the innermost loop that a node is in.
    pub(crate) fn unrolled_at(&self, id: NodeId) -> Option<usize> {
        self.inner.borrow().loop_of.get(&id).copied()
    }
}
