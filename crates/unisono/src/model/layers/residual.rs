use unisono_graph::Var;

use crate::{Context, Description, Layer};

/// y = x + inner(x) (He et al. 2016); with a shortcut, y = shortcut(x) + inner(x).
///
/// The inner layer's parameters are `inner.*`, the shortcut's `shortcut.*`.
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

impl Residual {
    /// Adds what `inner` gives to what it takes.
    pub fn new(inner: impl Layer + 'static) -> Self {
        Self { inner: Box::new(inner), shortcut: None }
    }

    /// Another way round, for an inner layer that changes the shape.
    pub fn shortcut(mut self, layer: impl Layer + 'static) -> Self {
        self.shortcut = Some(Box::new(layer));
        self
    }
}

impl Layer for Residual {
    fn name(&self) -> &str {
        "residual"
    }

    fn description(&self) -> Option<Description> {
        let shortcut = match &self.shortcut {
            Some(shortcut) => Some(Box::new(shortcut.description()?)),
            None => None,
        };
        Some(Description::Residual { inner: Box::new(self.inner.description()?), shortcut })
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let inner = cx.apply("inner", &self.inner, x);
        let around = self.shortcut.as_ref().map_or_else(|| x.clone(), |layer| cx.apply("shortcut", layer, x));
        if inner.ty() != around.ty() {
            cx.fail(
                "residual",
                format!("the inner layer gives {}, what goes around it is {}", inner.ty(), around.ty()),
            );
            return inner;
        }
        around + inner
    }
}
