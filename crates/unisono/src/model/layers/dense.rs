use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use crate::{Context, Description, Initializer, Layer};

/// y = x W^T + b over the last axis: `[B, ..., in] -> [B, ..., out]` (Keras's `Dense`, PyTorch's `Linear`).
///
/// Parameters: `weight` `[out, in]`, as PyTorch stores it, Glorot uniform unless told; `bias` `[out]`, zeros.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    units: usize,
    input: Option<usize>,
    bias: bool,
    #[serde(skip)]
    initializer: Initializer,
}

impl Dense {
    /// A layer of `units` outputs; the number of inputs is that of its operand.
    pub fn new(units: usize) -> Self {
        Self { units, input: None, bias: true, initializer: Initializer::default() }
    }

    /// States the number of inputs: any other is an error when the trainer is built.
    pub fn input(mut self, features: usize) -> Self {
        self.input = Some(features);
        self
    }

    /// Without a bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// What the weight starts with.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Layer for Dense {
    fn name(&self) -> &str {
        "dense"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::Dense(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let (Some(&features), Lead::Sample) = (x.dims().last(), x.ty().lead) else {
            cx.fail("dense", format!("needs samples with an axis of features, got {}", x.ty()));
            return x.clone();
        };
        if let Some(expected) = self.input.filter(|&n| n != features) {
            let wanted = x.ty().with_dims(&[&x.dims()[..x.dims().len() - 1], &[expected]].concat());
            cx.fail("dense", format!("expected input {wanted}, got {}", x.ty()));
        }
        let weight = cx.parameter("weight", &[self.units, features], self.initializer.clone());
        let y = x.matmul_t(&weight);
        if !self.bias {
            return y;
        }
        let bias = cx.parameter("bias", &[self.units], Initializer::Zeros);
        y + bias
    }
}
