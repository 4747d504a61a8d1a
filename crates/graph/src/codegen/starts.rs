//! Where slices and parts of memories start. Starts are params, so that kernels that differ in nothing else
//! are one, such as those of the steps of a loop or of the parameters of a model.

use unisono_shaders::{STARTS, start};

use crate::fuse::Store;
use crate::trace::NodeId;

/// The thing that starts somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A slice along an axis. Its start counts vectors; the last field is the number of elements in one.
    Axis(NodeId, usize, usize),
    /// A value in its memory, at this element, counted in vectors of so many elements. The last field is
    /// whether the value has several elements.
    Place(Store, usize, usize, bool),
}

/// The starts of a kernel.
#[derive(Default)]
pub(super) struct Starts {
    params: Vec<(Start, u32)>,
    /// Whether there were more starts than params.
    has_literals: bool,
}

impl Starts {
    /// Returns a start as WGSL: one of at most [`STARTS`] params, or a literal where there are more.
    pub(super) fn wgsl(&mut self, wanted: Start, number: usize) -> String {
        let known = self.params.iter().position(|(known, _)| *known == wanted);
        if known.is_none() && self.params.len() == STARTS {
            self.has_literals = true;
            return format!("{number}u");
        }
        let index = known.unwrap_or_else(|| {
            self.params.push((wanted, number as u32));
            self.params.len() - 1
        });
        format!("params.{}", start(index))
    }

    /// Returns the words of the params behind a kernel's own fields.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.params.iter().map(|(_, number)| *number).collect()
    }

    /// Returns for each start whether it is that of a value with several elements, or `None` if there are
    /// starts of another kind.
    pub(super) fn flow(&self) -> Option<Vec<bool>> {
        let has_elements = |(start, _): &(Start, u32)| match start {
            Start::Place(.., has_elements) => Some(*has_elements),
            Start::Axis(..) => None,
        };
        if self.has_literals { None } else { self.params.iter().map(has_elements).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_one_param_however_often_it_is_used_and_a_literal_where_there_are_too_many() {
        let mut starts = Starts::default();
        for id in 0..STARTS {
            assert_eq!(starts.wgsl(Start::Axis(id, 1, 1), 5), format!("params.s{id}"));
        }
        assert_eq!(starts.wgsl(Start::Axis(0, 1, 1), 5), "params.s0");
        assert_eq!(starts.wgsl(Start::Place(Store::Scalars, 28, 4, true), 7), "7u");
        assert_eq!(starts.numbers(), [5; STARTS]);
        assert_eq!(starts.flow(), None);
    }
}
