use unisono_graph::Var;

use crate::{Context, Description, Layer};

/// A layer whose values are computed again for the gradients instead of being kept: less memory, about a third more work in a
/// step (Chen et al. 2016; PyTorch's `checkpoint`). It changes no name, and the same is drawn by dropout both times.
///
/// ```
/// use unisono::{Recompute, Sequential, TransformerBlock};
///
/// let tower = (0..12).fold(Sequential::new(), |m, _| m.add(Recompute::new(TransformerBlock::new(8))));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Recompute<L> {
    layer: L,
}

impl<L: Layer> Recompute<L> {
    /// This layer, recomputed.
    pub fn new(layer: L) -> Self {
        Self { layer }
    }
}

impl<L: Layer> Layer for Recompute<L> {
    fn name(&self) -> &str {
        self.layer.name()
    }

    /// What is computed is the same.
    fn description(&self) -> Option<Description> {
        self.layer.description()
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let tape = cx.tape().clone();
        tape.recompute(|| self.layer.forward(cx, x))
    }
}
