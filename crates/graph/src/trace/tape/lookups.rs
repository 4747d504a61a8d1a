//! The indices by which a model looks something up, for whoever feeds them to check.

use super::Tape;
use crate::trace::{NodeId, Var};

impl Tape {
    /// Returns the indices by which [`Var::embed`] and [`Var::take`] have looked something up so far, each
    /// with the number of elements or rows there. Whoever feeds indices should check them: one outside reads
    /// the last element.
    pub fn lookups(&self) -> Vec<(NodeId, usize)> {
        self.inner.borrow().lookups.clone()
    }

    /// Runs `f`, in which indices may be out of range, such as a label that is ignored. [`Tape::lookups`]
    /// does not contain them.
    pub fn with_any_index<T>(&self, f: impl FnOnce() -> T) -> T {
        let outer = std::mem::replace(&mut self.inner.borrow_mut().takes_any_index, true);
        let result = f();
        self.inner.borrow_mut().takes_any_index = outer;
        result
    }

    /// Records that an index selects one of `count` elements.
    pub(crate) fn look_up(&self, index: &Var, count: Option<&usize>) {
        let mut inner = self.inner.borrow_mut();
        if !inner.takes_any_index {
            inner.lookups.extend(count.map(|&count| (index.id(), count)));
        }
    }
}
