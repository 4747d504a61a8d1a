//! Values of a model that are not learned: arrays of constants, and draws.

use unisono_graph::{Lead, Var};

use super::Context;
use crate::model::Initializer;

impl Context {
    /// Returns an array of constants, `dims`, in row-major order (PyTorch's `register_buffer`). It is
    /// saved with the model as `path.name`, as a [`statistic`](Context::statistic) that nothing changes.
    /// [`Tape::constant`](crate::Tape::constant) is a single number, and `constant(..).to_i32()` are ids.
    ///
    /// Errors: there are not as many values as `dims` say, or a length is 0.
    ///
    /// ```
    /// use unisono::{Context, FromFn, Var};
    ///
    /// /// [B, 3]: brightness of red, green and blue.
    /// let grey = FromFn::new("grey", |cx: &mut Context, x: &Var| {
    ///     (x * cx.constant("weights", &[3], &[0.299, 0.587, 0.114])).sum(&[-1])
    /// });
    /// ```
    #[doc(alias = "register_buffer")]
    pub fn constant(&mut self, name: &str, dims: &[usize], values: &[f32]) -> Var {
        let count: usize = dims.iter().fold(1, |count, &length| count.saturating_mul(length));
        if count != values.len() {
            self.fail(
                "constant",
                format!("{name} {dims:?} has {count} values, and {} are given", values.len()),
            );
            return self.statistic(name, dims, Initializer::Zeros);
        }
        self.statistic(name, dims, Initializer::Values(values.to_vec()))
    }

    /// Draws numbers uniformly from (0, 1) for each sample, `[B, dims]` (PyTorch's `rand`).
    ///
    /// What is drawn depends on seed, layer, how often the layer has drawn, epoch and the sample's
    /// position in it, not on replicas, shards or batches. Evaluations draw too; [`Context::is_training`]
    /// tells them apart. No gradient flows through it.
    pub fn uniform(&mut self, dims: &[usize]) -> Var {
        let path = self.draws();
        self.tape.constant(0.0).expand(Lead::Sample, dims).uniform_noise(&path)
    }

    /// Draws normal numbers with mean 0 and deviation 1 for each sample, `[B, dims]` (PyTorch's `randn`), as
    /// [`Context::uniform`] does.
    pub fn normal(&mut self, dims: &[usize]) -> Var {
        let path = self.draws();
        self.tape.constant(0.0).expand(Lead::Sample, dims).normal_noise(&path)
    }

    /// Returns the name of the next draw of this layer.
    fn draws(&mut self) -> String {
        let stream = self.stream();
        let number = self.drawn.entry(stream.clone()).or_default();
        *number += 1;
        format!("{stream} draw {number}")
    }
}
