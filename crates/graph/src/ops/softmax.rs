use crate::trace::Var;

/// The softmax and its logarithm.
impl Var {
    /// Returns the logarithm of the softmax over the last axis (PyTorch's `log_softmax`): x - max - ln sum
    /// e^(x - max), which is safe for large logits.
    pub fn log_softmax(&self) -> Var {
        let shifted = self - &self.max_keep(&[-1]).detach();
        let sum = shifted.exp().sum_keep(&[-1]);
        shifted - sum.log()
    }

    /// Returns the softmax over the last axis, e^x / sum e^x, which is safe for large logits.
    pub fn softmax(&self) -> Var {
        let e = (self - &self.max_keep(&[-1]).detach()).exp();
        let sum = e.sum_keep(&[-1]);
        e / sum
    }
}
