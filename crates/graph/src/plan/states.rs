//! Where the tensors of the state lie in buffers.

use super::Slice;

/// The place of each tensor of the state. Several tensors may share a buffer, so that one launch updates
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// The bytes of each buffer. [`super::Role::State`] counts these.
    pub buffers: Vec<u64>,
    /// The slice of each tensor, in the order of [`crate::Program::states`]. Its buffer is an index into
    /// `buffers`, and its offset is a multiple of 4.
    pub tensors: Vec<Slice>,
}

impl StateLayout {
    /// Returns the layout in which each tensor has a buffer of its own, given the bytes of each.
    pub fn apart(bytes: impl IntoIterator<Item = u64>) -> Self {
        let buffers: Vec<u64> = bytes.into_iter().collect();
        let tensor = |(buffer, &bytes): (usize, &u64)| Slice { buffer, offset: 0, bytes };
        let tensors = buffers.iter().enumerate().map(tensor).collect();
        Self { buffers, tensors }
    }

    /// Returns whether each tensor has a buffer of its own.
    pub fn is_apart(&self) -> bool {
        self.buffers.len() == self.tensors.len()
    }

    /// Returns whether the tensors of another layout are the first ones of this layout, each at the same
    /// place in a buffer of the same size.
    pub fn begins_with(&self, other: &Self) -> bool {
        let same_buffer = |slice: &Slice| self.buffers.get(slice.buffer) == other.buffers.get(slice.buffer);
        self.tensors.starts_with(&other.tensors) && other.tensors.iter().all(same_buffer)
    }
}
