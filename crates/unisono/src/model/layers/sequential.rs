use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Layer};

/// Layers one after another (Keras's and PyTorch's `Sequential`).
///
/// Shapes: those that the layers compute. Parameters: those of the i-th layer are `i.*`.
///
/// ```
/// use unisono::{Dense, Relu, Sequential};
///
/// let model = Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(10));
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

/// The description of a [`Sequential`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct SequentialDescription {
    /// The layers, first to last.
    pub layers: Vec<Description>,
}

impl Sequential {
    /// Creates a model without layers: it returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer at the end.
    #[expect(clippy::should_implement_trait, reason = "Keras's name for it")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Forward for Sequential {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.layers.iter().enumerate().fold(x.clone(), |x, (i, layer)| cx.apply(&i.to_string(), layer, &x))
    }
}

impl Describe<SequentialDescription> for Sequential {
    fn settings(&self) -> Option<SequentialDescription> {
        let layers = self.layers.iter().map(|layer| layer.description()).collect::<Option<_>>()?;
        Some(SequentialDescription { layers })
    }
}

impl From<SequentialDescription> for Sequential {
    fn from(settings: SequentialDescription) -> Self {
        Self { layers: settings.layers.into_iter().map(Description::layer).collect() }
    }
}
