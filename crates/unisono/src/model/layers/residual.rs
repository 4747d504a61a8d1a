use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Layer};

/// A residual connection (He et al. 2016): y = x + inner(x), or y = shortcut(x) + inner(x).
///
/// Shapes: both terms have one shape, which is that of y. Parameters: those of the inner layer are `inner.*`,
/// those of the shortcut `shortcut.*`.
///
/// Errors: the two terms differ in shape or dtype.
///
/// ```
/// use unisono::{BatchNorm, Conv2d, Relu, Residual, Sequential};
///
/// let block = Sequential::new().add(Conv2d::new(64, 3).padding(1).stride(2)).add(BatchNorm::new());
/// let down = Residual::new(block).shortcut(Conv2d::new(64, 1).stride(2));
/// let model = Sequential::new().add(down).add(Relu);
/// ```
pub struct Residual {
    inner: Box<dyn Layer>,
    shortcut: Option<Box<dyn Layer>>,
}

/// The description of a [`Residual`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct ResidualDescription {
    /// The inner layer.
    pub inner: Box<Description>,
    /// The layer around it, or `None` for the identity.
    pub shortcut: Option<Box<Description>>,
}

impl Residual {
    /// Creates a layer that adds the output of `inner` to its input.
    pub fn new(inner: impl Layer + 'static) -> Self {
        Self { inner: Box::new(inner), shortcut: None }
    }

    /// Sets the layer on the shortcut: y = shortcut(x) + inner(x). An inner layer that changes the shape
    /// needs one. Default: the identity.
    pub fn shortcut(self, layer: impl Layer + 'static) -> Self {
        Self { shortcut: Some(Box::new(layer)), ..self }
    }
}

impl Forward for Residual {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let inner = cx.apply("inner", &self.inner, x);
        let around = self.shortcut.as_ref().map_or_else(|| x.clone(), |layer| cx.apply("shortcut", layer, x));
        if inner.ty() != around.ty() {
            cx.fail(
                self.name(),
                format!("the inner layer gives {}, what goes around it is {}", inner.ty(), around.ty()),
            );
            return inner;
        }
        around + inner
    }
}

impl Describe<ResidualDescription> for Residual {
    fn settings(&self) -> Option<ResidualDescription> {
        let shortcut = match &self.shortcut {
            Some(shortcut) => Some(Box::new(shortcut.description()?)),
            None => None,
        };
        Some(ResidualDescription { inner: Box::new(self.inner.description()?), shortcut })
    }
}

impl From<ResidualDescription> for Residual {
    fn from(settings: ResidualDescription) -> Self {
        Self { inner: settings.inner.layer(), shortcut: settings.shortcut.map(|layer| layer.layer()) }
    }
}
