//! The outputs of a step.

use unisono_graph::{Lead, Program};

/// The outputs of a step, by their index in [`Program::outputs`].
///
/// Outputs with samples have a row for each sample, in sample order, whichever replica computed them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    values: Vec<Option<Vec<u32>>>,
}

/// Outputs that a replica or a machine computed, each with its index and its words.
pub(crate) type Part = Vec<(usize, Vec<u32>)>;

impl Outputs {
    pub(crate) fn new(count: usize) -> Self {
        Self { values: vec![None; count] }
    }

    /// Returns the number of the program's outputs, whether they are there or not.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether the program has no outputs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns an output's words, of whatever type they are. Returns none if the output is not there: before
    /// the step commits, outputs of the last segment are missing; afterwards they are missing if the step was
    /// skipped, or if a replica was lost while it committed.
    pub fn words(&self, index: usize) -> Option<&[u32]> {
        self.values.get(index)?.as_deref()
    }

    /// Returns an output of type f32.
    pub fn floats(&self, index: usize) -> Option<&[f32]> {
        self.words(index).map(bytemuck::cast_slice)
    }

    /// Returns an output as bytes.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        self.words(index).map(bytemuck::cast_slice)
    }

    pub(crate) fn set(&mut self, index: usize, words: &[u32]) {
        if let Some(value) = self.values.get_mut(index) {
            *value = Some(words.to_vec());
        }
    }

    /// Returns the outputs of the segments up to `segment`.
    pub(crate) fn until(&self, program: &Program, segment: usize) -> Self {
        let early = |index: usize| program.outputs().get(index).is_some_and(|o| o.segment <= segment);
        let value = |(index, value): (usize, &Option<Vec<u32>>)| value.clone().filter(|_| early(index));
        Self { values: self.values.iter().enumerate().map(value).collect() }
    }

    /// Joins what replicas downloaded; `parts` are in the order of their rows. `complete` says that no rows
    /// are missing.
    pub(crate) fn gather(&mut self, program: &Program, parts: Vec<Part>, complete: bool) {
        let mut touched = vec![false; self.values.len()];
        for (index, words) in parts.into_iter().flatten() {
            let global = program.outputs().get(index).is_none_or(|o| o.ty.lead == Lead::Global);
            let Some(value) = self.values.get_mut(index).filter(|_| global || complete) else { continue };
            match value {
                Some(all) if touched[index] && !global => all.extend(words),
                Some(_) if touched[index] => {}
                _ => *value = Some(words),
            }
            touched[index] = true;
        }
    }
}
