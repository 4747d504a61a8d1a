//! Kernels: the parameters that an export can store as 8-bit integers.

use std::collections::BTreeMap;

use unisono_graph::Var;

use super::{Context, Parameter};
use crate::model::Initializer;

impl Context {
    /// Declares a parameter as [`Context::parameter`] does, and says that it is a matrix or a kernel. Each
    /// index of the axis `channels` has the weights of one output channel. The axis is 0 for `[out, in]`, the
    /// order of this library's layers and of PyTorch's `Linear` and `Conv2d`. It is 1 for `[in, out]`,
    /// Keras's order. For an embedding, `[rows, width]`, it is also 0: rows count as channels. Returns its
    /// value, `dims`.
    ///
    /// The axis has no effect in training. [`WeightPrecision::I8`](crate::checkpoint::WeightPrecision::I8)
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
