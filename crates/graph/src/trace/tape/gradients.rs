//! What a trace says about gradients: what they compute a second time, which steps are a loop, and what they
//! read from one memory.

use std::collections::BTreeMap;
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
    /// one buffer for all of them. No result changes, nor does a run's identity. Values of different shapes
    /// stay apart. So do products, since a sum takes a product in as `fma` where it finds one.
    pub fn save_together(&self, values: &[Var]) {
        let Some(first) = values.first().filter(|first| !first.dims().is_empty()) else { return };
        let are_alike = values.iter().all(|value| value.ty() == first.ty());
        if !self.owns("save_together", &values.iter().collect::<Vec<_>>()) || !are_alike {
            return;
        }
        let inner = &mut *self.inner.borrow_mut();
        for (place, value) in values.iter().enumerate() {
            inner.saved.entry(value.id()).or_insert([inner.groups, place]);
        }
        inner.groups += 1;
    }

    /// Saves values that were recorded a second time together, if the first ones are saved together.
    pub(crate) fn save_again(&self, again: &BTreeMap<NodeId, NodeId>) {
        let inner = &mut *self.inner.borrow_mut();
        let mut new: BTreeMap<usize, usize> = BTreeMap::new();
        for (old, &copy) in again {
            if let Some(&[group, place]) = inner.saved.get(old) {
                let group = *new.entry(group).or_insert_with(|| {
                    inner.groups += 1;
                    inner.groups - 1
                });
                inner.saved.insert(copy, [group, place]);
            }
        }
    }

    /// Returns the number of the group with which a value is saved, and its place there.
    pub(crate) fn saved_with(&self, value: NodeId) -> Option<[usize; 2]> {
        self.inner.borrow().saved.get(&value).copied()
    }

    /// Returns the number of the innermost loop that a node is in.
    pub(crate) fn unrolled_at(&self, id: NodeId) -> Option<usize> {
        self.inner.borrow().loop_of.get(&id).copied()
    }
}
