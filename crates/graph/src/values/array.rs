//! Tensors of the f64 interpreter.

use crate::values::{Type, strides};

/// A dense array of f64 in row-major order. Labels and raw words are held as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The lengths of the axes. The batch or shard axis comes first where there is one.
    pub dims: Vec<usize>,
    /// The elements in row-major order.
    pub data: Vec<f64>,
}

impl Array {
    /// Returns an array of elements under axes.
    pub fn new(dims: &[usize], data: Vec<f64>) -> Self {
        debug_assert_eq!(dims.iter().product::<usize>(), data.len());
        Self { dims: dims.to_vec(), data }
    }

    /// Returns a number as an array without axes.
    pub fn scalar(x: f64) -> Self {
        Self { dims: vec![], data: vec![x] }
    }

    /// Returns an array with `f` of every coordinate, which is called in row-major order.
    pub fn generate(dims: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let mut data = Vec::with_capacity(dims.iter().product());
        let mut at = vec![0; dims.len()];
        for _ in 0..dims.iter().product::<usize>() {
            data.push(f(&at));
            for axis in (0..dims.len()).rev() {
                at[axis] += 1;
                if at[axis] < dims[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
        Self { dims: dims.to_vec(), data }
    }

    /// Returns the element at a coordinate.
    pub fn at(&self, at: &[usize]) -> f64 {
        self.data[at.iter().zip(strides(&self.dims)).map(|(i, s)| i * s).sum::<usize>()]
    }

    /// Returns the same elements under other axes.
    pub fn reshaped(&self, dims: &[usize]) -> Self {
        Self::new(dims, self.data.clone())
    }
}

/// The shape of a batch, as far as the interpreter has to know it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The number of samples in each shard, in order.
    pub shards: Vec<usize>,
}

impl Frame {
    /// Samples in all.
    pub fn samples(&self) -> usize {
        self.shards.iter().sum()
    }

    /// The axes of a value as stored.
    pub fn dims(&self, ty: &Type) -> Vec<usize> {
        use crate::values::Lead;
        let lead = match ty.lead {
            Lead::Global => None,
            Lead::Shard => Some(self.shards.len()),
            Lead::Sample => Some(self.samples()),
        };
        lead.into_iter().chain(ty.dims.iter().copied()).collect()
    }
}
