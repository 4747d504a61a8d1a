use unisono_graph::Var;

use super::{Optimizer, Scalar, Update};

/// Stochastic gradient descent with momentum and coupled weight decay (PyTorch's `SGD` without dampening).
///
/// g += decay w; m = momentum m + g; w -= lr m.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    lr: f32,
    momentum: f32,
    weight_decay: f32,
}

impl Sgd {
    /// Descent at a learning rate.
    pub fn new(lr: f32) -> Self {
        Self { lr, momentum: 0.0, weight_decay: 0.0 }
    }

    /// With momentum.
    pub fn momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// With `decay` times the weight added to the gradient.
    pub fn weight_decay(mut self, decay: f32) -> Self {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &str {
        "sgd"
    }

    fn scalars(&self, _: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr)]
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = if self.weight_decay == 0.0 { gradient.clone() } else { weight * self.weight_decay + gradient };
        let step = if self.momentum == 0.0 {
            gradient
        } else {
            let old = cx.state("momentum_buffer", weight);
            let new = old.clone() * self.momentum + gradient;
            cx.set(&old, &new);
            new
        };
        weight - step * cx.scalar("lr")
    }
}
