use crate::ops::{Div, Exp, Reduce, Relu, Sigmoid, Tanh};
use crate::trace::{Lowering, Node, ReduceKind, Var};

/// The softmax and its logarithm.
impl Var {
    /// Returns the logarithm of the softmax over the last axis (PyTorch's `log_softmax`): x - max - ln sum
    /// e^(x - max), which is safe for large logits.
    pub fn log_softmax(&self) -> Var {
        let shifted = self - &self.max_keep(&[-1]).detach();
        let sum = shifted.exp().sum_keep(&[-1]);
        shifted - sum.log()
    }

    /// Returns the name of the activation that the value is, `softmax`, `sigmoid`, `relu` or `tanh`, seen
    /// through views such as reshapes. A loss that takes logits would apply the first two once more.
    pub fn activation(&self) -> Option<&'static str> {
        let node = self.seen_through();
        if node.op.is::<Sigmoid>() {
            return Some("sigmoid");
        }
        if node.op.is::<Relu>() {
            return Some("relu");
        }
        if node.op.is::<Tanh>() {
            return Some("tanh");
        }
        let [e, sum] = &node.inputs[..] else { return None };
        let [e, sum] = [e, sum].map(|&id| self.tape().var(id).seen_through());
        let of = |node: &Node| node.inputs.first().map(|&id| self.tape().var(id).seen_through());
        let is_sum = sum.op.downcast_ref::<Reduce>().is_some_and(|reduce| reduce.0.kind == ReduceKind::Sum);
        let is_softmax = node.op.is::<Div>()
            && e.op.is::<Exp>()
            && is_sum
            && of(&sum).is_some_and(|summed| summed.op.is::<Exp>() && summed.inputs == e.inputs);
        is_softmax.then_some("softmax")
    }

    /// Returns the node whose elements this value has, perhaps in another place.
    fn seen_through(&self) -> Node {
        let mut node = self.tape().node(self.id());
        while let (Lowering::View(_), Some(&of)) = (node.op.lowering(), node.inputs.first()) {
            node = self.tape().node(of);
        }
        node
    }

    /// Returns the softmax over the last axis, e^x / sum e^x, which is safe for large logits.
    pub fn softmax(&self) -> Var {
        let e = (self - &self.max_keep(&[-1]).detach()).exp();
        let sum = e.sum_keep(&[-1]);
        e / sum
    }
}
