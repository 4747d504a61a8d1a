//! Optimizers: from a gradient to a new parameter, as a graph of its own.

mod adamw;
mod sgd;

use unisono_graph::{StateKind, Tape, Var};

pub use adamw::AdamW;
pub use sgd::Sgd;

/// An optimizer. Its rule is traced once for each parameter; the numbers that change from step to step are computed on the
/// host.
///
/// ```
/// use unisono::{Optimizer, Scalar, Update, Var};
///
/// /// w - lr sign(g).
/// struct SignDescent {
///     lr: f32,
/// }
///
/// impl Optimizer for SignDescent {
///     fn name(&self) -> &str {
///         "sign descent"
///     }
///     fn scalars(&self, _step: u64) -> Vec<Scalar> {
///         vec![Scalar::new("lr", self.lr)]
///     }
///     fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
///         weight - gradient.sign() * cx.scalar("lr")
///     }
/// }
/// ```
pub trait Optimizer: Send + Sync {
    /// Its name, for checkpoints.
    fn name(&self) -> &str;

    /// The numbers of a step, 0 being the first; always the same names in the same order.
    fn scalars(&self, step: u64) -> Vec<Scalar>;

    /// The parameter's new value. Whatever else has to be kept is a state of `cx`.
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var;
}

/// A number that the host gives to each step.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f32,
}

impl Scalar {
    /// A number with a name.
    pub fn new(name: &str, value: f32) -> Self {
        Self { name: name.into(), value }
    }
}

/// What an optimizer's rule sees for one parameter.
#[derive(Debug)]
pub struct Update {
    pub(crate) tape: Tape,
    pub(crate) parameter: String,
    pub(crate) scalars: Vec<(String, Var)>,
}

impl Update {
    /// A number of this step, one of [`Optimizer::scalars`].
    pub fn scalar(&self, name: &str) -> Var {
        match self.scalars.iter().find(|(n, _)| n == name) {
            Some((_, var)) => var.clone(),
            None => {
                self.tape.fail_here("optimizer", format!("there is no scalar {name:?}"));
                self.tape.constant(0.0)
            }
        }
    }

    /// What the optimizer keeps for this parameter, zeros before the first step; saved as `parameter/name`.
    pub fn state(&mut self, name: &str, like: &Var) -> Var {
        self.tape.state(&format!("{}/{name}", self.parameter), like.dims(), StateKind::Optimizer)
    }

    /// Replaces a state when the step commits.
    pub fn set(&mut self, state: &Var, value: &Var) {
        self.tape.update(state, value);
    }
}
