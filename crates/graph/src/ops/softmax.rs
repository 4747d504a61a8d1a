use crate::trace::Var;

/// Functions of other ops.
impl Var {
    /// ln of the softmax over the last axis: x - max - ln sum e^(x - max), safe for large logits (PyTorch's
    /// `log_softmax`).
    pub fn log_softmax(&self) -> Var {
        let shifted = self - &self.max_keep(&[-1]).detach();
        let sum = shifted.exp().sum_keep(&[-1]);
        shifted - sum.log()
    }

    /// e^x / sum e^x over the last axis, safe for large logits.
    pub fn softmax(&self) -> Var {
        let e = (self - &self.max_keep(&[-1]).detach()).exp();
        let sum = e.sum_keep(&[-1]);
        e / sum
    }
}
