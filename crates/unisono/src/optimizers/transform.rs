//! The transforms of a chain, with the work of each at each point of a step.
//!
//! A new transform is a variant here and a method in the `transforms!` of `chain.rs`. No `match` here has a
//! `_` arm, so the compiler asks at each point what the new transform does there. A transform that changes
//! new values, such as a moving average of the weights, adds a point after the update, beside
//! [`Transform::configure`] before it.

use std::fmt;

use unisono_graph::Var;

use super::settings::limit;
use super::update::norm_of_all;
use super::{Gradient, Update};

/// Accepts a parameter by its name.
pub(super) type Names = dyn Fn(&str) -> bool + Send + Sync;

/// Accepts a parameter by its name and shape.
pub(super) type NamesAndDims = dyn Fn(&str, &[usize]) -> bool + Send + Sync;

/// A transform around an optimizer.
pub(super) enum Transform {
    /// Scales all gradients so that their common norm is at most this.
    ClipNorm(f32),
    /// Cuts every element of every gradient to this absolute value.
    ClipValue(f32),
    /// Takes the parameters that this accepts out of weight decay.
    DecayExempt(Box<NamesAndDims>),
    /// Keeps the parameters that this accepts as they are.
    Freeze(Box<Names>),
}

impl Transform {
    /// Returns whether this transform lets the parameter of this name be trained.
    pub(super) fn trains(&self, name: &str) -> bool {
        match self {
            Self::ClipNorm(_) | Self::ClipValue(_) | Self::DecayExempt(_) => true,
            Self::Freeze(frozen) => !frozen(name),
        }
    }

    /// Checks the transform's setting.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::ClipNorm(norm) => limit("clip_norm", *norm),
            Self::ClipValue(value) => limit("clip_value", *value),
            Self::DecayExempt(_) | Self::Freeze(_) => Ok(()),
        }
    }

    /// Transforms the gradients of all parameters that are trained.
    pub(super) fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        match self {
            Self::ClipNorm(norm) => clip_norm(gradients, *norm),
            Self::ClipValue(value) => map(gradients, |g| {
                let bound = |x: f32| g.tape().constant(x);
                g.minimum(&bound(*value)).maximum(&bound(-value))
            }),
            Self::DecayExempt(_) | Self::Freeze(_) => gradients,
        }
    }

    /// Sets up the update of one parameter, before the optimizer traces it.
    pub(super) fn configure(&self, cx: &mut Update, weight: &Var) {
        match self {
            Self::DecayExempt(exempt) => {
                if exempt(cx.parameter(), weight.dims()) {
                    cx.exempt();
                }
            }
            Self::ClipNorm(_) | Self::ClipValue(_) | Self::Freeze(_) => {}
        }
    }
}

/// Scales all gradients by norm / (their common norm + 1e-6) where that is below 1.
fn clip_norm(gradients: Vec<Gradient>, norm: f32) -> Vec<Gradient> {
    let Some(common) = norm_of_all(&gradients) else { return gradients };
    let factor = (norm / (common + 1e-6)).minimum(&gradients[0].gradient.tape().constant(1.0));
    map(gradients, |g| g * &factor)
}

/// Applies a function to each gradient.
fn map(gradients: Vec<Gradient>, f: impl Fn(&Var) -> Var) -> Vec<Gradient> {
    gradients.into_iter().map(|g| Gradient { gradient: f(&g.gradient), ..g }).collect()
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClipNorm(norm) => write!(f, "ClipNorm({norm})"),
            Self::ClipValue(value) => write!(f, "ClipValue({value})"),
            Self::DecayExempt(_) => write!(f, "DecayExempt"),
            Self::Freeze(_) => write!(f, "Freeze"),
        }
    }
}
