//! Sizes that the tensors of a file tell.

use unisono::checkpoint::{Pattern, Tensors};

/// The shapes of a file's tensors.
pub(super) struct Shapes<'a>(pub &'a Tensors);

impl Shapes<'_> {
    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the shape of a tensor that must have this number of axes.
    pub fn of<const RANK: usize>(&self, name: &str) -> Result<[usize; RANK], String> {
        let tensor = self.0.get(name).ok_or_else(|| format!("the tensor {name} is missing"))?;
        let shape: Option<[usize; RANK]> = tensor.shape().try_into().ok();
        let shape = shape.filter(|shape| shape.iter().all(|&size| size > 0));
        shape.ok_or_else(|| format!("{name} has the shape {:?}, and not one of {RANK} axes", tensor.shape()))
    }

    /// Returns the number of tensors whose names match.
    pub fn count(&self, pattern: &str) -> usize {
        let pattern = Pattern::new(pattern);
        self.0.keys().filter(|name| pattern.matches(name)).count()
    }
}
