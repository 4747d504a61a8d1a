use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::settings::{positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Fully connected layer, y = x W^T + b over the last axis (Keras's `Dense`, PyTorch's `Linear`).
///
/// Shapes: `[B, ..., in]` to `[B, ..., out]`.
///
/// Parameters: `weight` `[out, in]`, as PyTorch stores it (Default: Glorot uniform), `bias` `[out]` (Default:
/// zeros).
///
/// Errors: there are no units, the input has no axis of features, or other features than [`Dense::input`]
/// states.
#[doc(alias = "Linear")]
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
    /// Creates a layer with this number of output features. By default it takes any number of input features
    /// and has a bias.
    pub fn new(units: usize) -> Self {
        Self { units, input: None, bias: true, initializer: Initializer::default() }
    }

    /// Sets the number of input features. Any other number is an error when the trainer is built. Default:
    /// any number.
    pub fn input(self, features: usize) -> Self {
        Self { input: Some(features), ..self }
    }

    /// Omits the bias. Default: the layer has one.
    pub fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// Sets the initial values of the weight. Default: Glorot uniform.
    pub fn initializer(self, initializer: Initializer) -> Self {
        Self { initializer, ..self }
    }
}

impl Forward for Dense {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let (Some(&features), Lead::Sample) = (x.dims().last(), x.ty().lead) else {
            cx.fail(self.name(), format!("needs samples with an axis of features, got {}", x.ty()));
            return x.clone();
        };
        let settings = [positive("units", self.units), positive("the number of input features", features)];
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        if let Some(expected) = self.input.filter(|&n| n != features) {
            let wanted = x.ty().with_dims(&[&x.dims()[..x.dims().len() - 1], &[expected]].concat());
            cx.fail(self.name(), format!("expected input {wanted}, got {}", x.ty()));
        }
        // A narrow layer between two wide ones makes their product one of a low rank.
        if let Some((before, from)) = cx.linear_layer_of(x)
            && features >= self.units.min(from)
        {
            cx.note(&format!(
                "there is no activation behind {before}, so the two layers are one linear map: add one, \
                              such as Relu, between them"
            ));
        }
        let weight = cx.kernel("weight", &[self.units, features], 0, self.initializer.clone());
        let mut y = x.matmul_t(&weight);
        if self.bias {
            y = y + cx.parameter("bias", &[self.units], Initializer::Zeros);
        }
        cx.note_linear(&y, features);
        y
    }
}
