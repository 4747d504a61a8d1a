//! Layers, and functions as layers.

use unisono_graph::Var;

use crate::model::{Context, Description};

/// A layer: it computes a value from a value, with parameters that it asks the context for.
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
/// /// A residual block, which uses its input twice: a chain of layers cannot express this.
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
#[doc(alias = "Module")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layer",
    note = "for a layer of your own, implement `Layer`",
    note = "a layer of this library needs an entry in the list of `layers/mod.rs`"
)]
pub trait Layer: Send + Sync {
    /// Returns the kind of layer, for summaries and errors.
    fn name(&self) -> &str;

    /// Traces what the layer computes from `x`.
    fn forward(&self, cx: &mut Context, x: &Var) -> Var;

    /// Returns the layer as data, from which it can be built again. Default: `None`, which is right for
    /// layers that this library does not know.
    fn description(&self) -> Option<Description> {
        None
    }
}

/// What a layer of this library computes. With its entry in the list of `layers/mod.rs` it is a [`Layer`];
/// without one it is none, so that a forgotten entry does not compile where the layer is used.
pub(crate) trait Forward {
    /// Traces what the layer computes from `x`.
    fn forward(&self, cx: &mut Context, x: &Var) -> Var;
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

/// A function as a layer, for layers without parameters or for a model in a few lines.
///
/// It has no [`Layer::description`], so a model that holds one is exported as weights only.
///
/// ```
/// use unisono::{Dense, FromFn};
///
/// let model = FromFn::new("mlp", |cx, x| {
///     let hidden = cx.apply("hidden", &Dense::new(64), &x.flatten()).relu();
///     cx.apply("out", &Dense::new(10), &hidden)
/// });
/// ```
#[doc(alias = "Lambda")]
pub struct FromFn<F> {
    name: String,
    forward: F,
}

impl<F: Fn(&mut Context, &Var) -> Var + Send + Sync> FromFn<F> {
    /// Creates a layer called `name` that computes `forward`.
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
