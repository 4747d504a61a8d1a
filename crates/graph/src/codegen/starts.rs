//! Where slices and parts of memories start. Starts are params, so that kernels that differ in nothing else
//! are one, such as those of the steps of a loop or of the parameters of a model.

use unisono_shaders::{STARTS, start};

use crate::trace::NodeId;

/// The thing that starts somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A slice along an axis.
    Axis(NodeId, usize),
    /// A value in its memory, counted in vectors of so many elements.
    Place(NodeId, usize),
}

/// The starts of a kernel.
#[derive(Default)]
pub(super) struct Starts(Vec<(Start, u32)>);

impl Starts {
    /// Returns a start as WGSL: one of at most [`STARTS`] params, or a literal where there are more.
    pub(super) fn wgsl(&mut self, wanted: Start, number: usize) -> String {
        let known = self.0.iter().position(|(known, _)| *known == wanted);
        if known.is_none() && self.0.len() == STARTS {
            return format!("{number}u");
        }
        let index = known.unwrap_or_else(|| {
            self.0.push((wanted, number as u32));
            self.0.len() - 1
        });
        format!("params.{}", start(index))
    }

    /// Returns the words of the params behind a kernel's own fields.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.0.iter().map(|(_, number)| *number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_one_param_however_often_it_is_used_and_a_literal_where_there_are_too_many() {
        let mut starts = Starts::default();
        for id in 0..STARTS {
            assert_eq!(starts.wgsl(Start::Axis(id, 1), 5), format!("params.s{id}"));
        }
        assert_eq!(starts.wgsl(Start::Axis(0, 1), 5), "params.s0");
        assert_eq!(starts.wgsl(Start::Place(0, 4), 7), "7u");
        assert_eq!(starts.numbers(), [5; STARTS]);
    }
}
