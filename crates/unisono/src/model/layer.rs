//! Layers, and models made of them.

use unisono_graph::Var;

use crate::{Context, Description};

/// A layer: from a value to a value, with parameters that it asks the context for.
///
/// A model is a layer too. Its code runs when the trainer is built, not at every step.
///
/// ```
/// use unisono::{Context, Dense, Initializer, Layer, Relu, Var};
///
/// /// y = scale x: one number for each feature.
/// struct Scale;
///
/// impl Layer for Scale {
///     fn name(&self) -> &str {
///         "scale"
///     }
///     fn forward(&self, cx: &mut Context, x: &Var) -> Var {
///         let scale = cx.parameter("scale", x.dims(), Initializer::Ones);
///         x * &scale
///     }
/// }
///
/// /// Two ways through one layer, added: what no chain of layers can say.
/// struct Residual;
///
/// impl Layer for Residual {
///     fn name(&self) -> &str {
///         "residual"
///     }
///     fn forward(&self, cx: &mut Context, x: &Var) -> Var {
///         let inner = cx.apply("inner", &Dense::new(x.dims()[0]), x).relu();
///         cx.apply("scale", &Scale, &(x + &inner))
///     }
/// }
/// ```
pub trait Layer: Send + Sync {
    /// The kind of layer, for summaries and errors.
    fn name(&self) -> &str;

    /// What the layer computes.
    fn forward(&self, cx: &mut Context, x: &Var) -> Var;

    /// The layer as data, from which it can be built again; none of those that this library does not know.
    fn description(&self) -> Option<Description> {
        None
    }
}

impl Layer for Box<dyn Layer> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        (**self).forward(cx, x)
    }
    fn description(&self) -> Option<Description> {
        (**self).description()
    }
}

/// A function as a layer, for what needs no parameters or a model in a few lines.
///
/// ```
/// use unisono::{Dense, FromFn};
///
/// let model = FromFn::new("mlp", |cx, x| {
///     let hidden = cx.apply("hidden", &Dense::new(64), &x.flatten()).relu();
///     cx.apply("out", &Dense::new(10), &hidden)
/// });
/// ```
pub struct FromFn<F> {
    name: String,
    forward: F,
}

impl<F: Fn(&mut Context, &Var) -> Var + Send + Sync> FromFn<F> {
    /// A layer called `name` that computes `forward`.
    pub fn new(name: &str, forward: F) -> Self {
        Self { name: name.into(), forward }
    }
}

impl<F: Fn(&mut Context, &Var) -> Var + Send + Sync> Layer for FromFn<F> {
    fn name(&self) -> &str {
        &self.name
    }
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        (self.forward)(cx, x)
    }
}

/// Layers one after another; the i-th one's parameters are `i.*` (Keras's and PyTorch's `Sequential`).
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// No layers yet.
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

#[cfg(test)]
impl Sequential {
    pub(crate) fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }
}

impl Layer for Sequential {
    fn name(&self) -> &str {
        "sequential"
    }
    fn description(&self) -> Option<Description> {
        let layers = self.layers.iter().map(|layer| layer.description()).collect::<Option<_>>()?;
        Some(Description::Sequential { layers })
    }
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.layers.iter().enumerate().fold(x.clone(), |x, (i, layer)| cx.apply(&i.to_string(), layer, &x))
    }
}
