use unisono_graph::Var;

use crate::model::{Context, Description, Layer};

/// Activation checkpointing (Chen et al. 2016; PyTorch's `checkpoint`): the values inside a layer are
/// computed again for the gradients instead of being stored. A step takes less memory and about a third more
/// work.
///
/// Shapes, names of parameters and results are those of the layer; dropout draws the same both times.
///
/// ```
/// use unisono::{Recompute, Sequential, TransformerBlock};
///
/// let tower = (0..12).fold(Sequential::new(), |m, _| m.add(Recompute::new(TransformerBlock::new(8))));
/// ```
#[doc(alias = "checkpoint")]
#[derive(Clone, Copy, Debug)]
pub struct Recompute<L> {
    layer: L,
}

impl<L: Layer> Recompute<L> {
    /// Creates a layer that computes what `layer` does.
    pub fn new(layer: L) -> Self {
        Self { layer }
    }
}

impl<L: Layer> Layer for Recompute<L> {
    fn name(&self) -> &str {
        self.layer.name()
    }

    /// Returns the layer's own description, because what is computed is the same.
    fn description(&self) -> Option<Description> {
        self.layer.description()
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let tape = cx.tape().clone();
        tape.recompute(|| self.layer.forward(cx, x))
    }
}
