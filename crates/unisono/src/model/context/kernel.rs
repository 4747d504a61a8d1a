//! Kernels: the parameters that an export can store as 8-bit integers.

use std::collections::BTreeMap;

use unisono_graph::Var;

use super::{Context, Parameter};
use crate::model::Initializer;

impl Context {
    /// Declares a parameter as [`Context::parameter`] does, which is a matrix or a kernel: each index of the
    /// axis `channels` has the weights of one output channel. That is 0 for `[out, in]`, as PyTorch's
    /// `Linear` and `Conv2d` have it and this library's layers, and 1 for `[in, out]`, as Keras has it. The
    /// rows of an embedding, `[rows, width]`, count as channels, too: 0. Returns its value, `dims`.
    ///
    /// The axis changes nothing in training. [`WeightPrecision::I8`](crate::checkpoint::WeightPrecision::I8)
    /// gives each channel a scale of its own, and leaves what is no kernel as it is.
    ///
    /// ```
    /// use unisono::{Context, FromFn, Initializer, Var};
    ///
    /// /// [B, 3] -> [B, 2], with weights as Keras has them.
    /// let dense = FromFn::new("dense", |cx: &mut Context, x: &Var| {
    ///     x.matmul(&cx.kernel("kernel", &[3, 2], 1, Initializer::default()))
    /// });
    /// ```
    ///
    /// Errors: those of [`Context::parameter`]; `dims` have no axis `channels`.
    pub fn kernel(&mut self, name: &str, dims: &[usize], channels: usize, initializer: Initializer) -> Var {
        if channels >= dims.len() {
            self.fail("kernel", format!("{name} {dims:?} has no axis {channels} of output channels"));
        }
        let first = self.parameters.len();
        let var = self.parameter(name, dims, initializer);
        if let Some(own) = self.parameters.get_mut(first) {
            own.channels = Some(channels);
        }
        var
    }

    /// Returns the axis of the output channels of each kernel so far by name.
    pub(crate) fn channels(&self) -> BTreeMap<String, usize> {
        let axis = |parameter: &Parameter| Some((parameter.name.clone(), parameter.channels?));
        self.parameters.iter().filter_map(axis).collect()
    }
}
