//! Parameters that are computed from what is trained.

use std::sync::Arc;

use unisono_graph::Var;

use crate::model::Context;

/// Computes a parameter from its full name and the tensor of that name.
pub(super) type Reparametrize = dyn Fn(&mut Context, &str, &Var) -> Var + Send + Sync;

impl Context {
    /// Replaces the parameters of layers that are applied from here on: a layer that declares a parameter
    /// gets what `with` computes instead (PyTorch's `torch.nn.utils.parametrize`). `with` receives the
    /// parameter's full name, and the tensor that is trained and saved under that name. It may declare
    /// parameters of its own, whose names are relative to the layer's.
    ///
    /// ```
    /// use unisono::{Context, Dense, Model, Outputs, Var};
    ///
    /// // Weights of length 1 for each unit (weight normalization without its factor).
    /// let model = Model::new(|cx, x| {
    ///     cx.reparametrize(|_: &mut Context, name: &str, weight: &Var| match name.ends_with("weight") {
    ///         true => weight / &weight.square().sum_keep(&[-1]).sqrt(),
    ///         false => weight.clone(),
    ///     });
    ///     Outputs::new().with("output", &cx.apply("dense", &Dense::new(4), &x["x"]))
    /// });
    /// ```
    ///
    /// Errors: `with` returns another shape.
    #[doc(alias("parametrize", "register_parametrization"))]
    pub fn reparametrize(&mut self, with: impl Fn(&mut Self, &str, &Var) -> Var + Send + Sync + 'static) {
        self.reparametrize = Some(Arc::new(with));
    }

    /// Returns what a layer gets in place of the parameter of this name.
    pub(super) fn reparametrized(&mut self, name: &str, var: Var) -> Var {
        // What the function declares itself is as it is.
        let Some(with) = self.reparametrize.take() else { return var };
        let full = self.full(name);
        let value = with(self, &full, &var);
        self.reparametrize = Some(with);
        if value.ty() != var.ty() {
            self.fail("reparametrize", format!("{full} became {}, not {}", value.ty(), var.ty()));
        }
        value
    }
}
