//! The transforms of a chain, with the work of each at each point of a step.
//!
//! A new transform is a variant here and a method in the `transforms!` of `chain.rs`. No `match` here has a
//! `_` arm, so the compiler asks at each point what the new transform does there.

use std::fmt;

use unisono_graph::{Tape, Var};

use super::settings::{above_zero, kept_share, limit};
use super::update::norm_of_all;
use super::{Gradient, Scalar, Update};

/// Accepts a parameter by its name.
pub(super) type Names = dyn Fn(&str) -> bool + Send + Sync;

/// Accepts a parameter by its name and shape.
pub(super) type NamesAndDims = dyn Fn(&str, &[usize]) -> bool + Send + Sync;

/// A rule of your own that changes the gradients of a step, all of them together, before an optimizer uses
/// them. [`Optimizer::transform_gradients`](super::Optimizer::transform_gradients) puts it around an
/// optimizer.
///
/// The rule is traced once and becomes part of the step, behind the sums over all samples. So it computes the
/// same bits on any number of replicas.
///
/// ```
/// use unisono::{Gradient, GradientTransform, Optimizer, Sgd, Tape, Var};
///
/// /// Subtracts from the gradient of each matrix its mean.
/// struct Centralise;
///
/// impl GradientTransform for Centralise {
///     fn name(&self) -> &str {
///         "centralise 1"
///     }
///     fn transform(&self, _: &Tape, gradients: &[Gradient]) -> Vec<Var> {
///         let centralised = gradients.iter().map(|g| match g.gradient.dims() {
///             [_, _] => &g.gradient - g.gradient.mean(&[0, 1]),
///             _ => g.gradient.clone(),
///         });
///         centralised.collect()
///     }
/// }
///
/// let optimizer = Sgd::new(0.1).transform_gradients(Centralise).clip_norm(1.0);
/// ```
pub trait GradientTransform: Send + Sync {
    /// Returns the name and version of the rule, for example `"centralise 1"`. Errors contain it. A rule that
    /// is changed so that it computes something else needs another version.
    fn name(&self) -> &str;

    /// Traces the rule on `tape`. It gets the gradients of all parameters that are trained, with their
    /// parameters, in the order of the parameters' names. It returns the new gradients in the same order and
    /// with the same shapes.
    fn transform(&self, tape: &Tape, gradients: &[Gradient]) -> Vec<Var>;
}

/// The name of the average's state and scalar.
pub(crate) const AVERAGE: &str = "average";

/// A transform around an optimizer.
pub(super) enum Transform {
    /// Keeps a moving average of the new values, which keeps this share in a step.
    Average(f64),
    /// Scales all gradients so that their common norm is at most this.
    ClipNorm(f32),
    /// Cuts every element of every gradient to this absolute value.
    ClipValue(f32),
    /// Changes all gradients by a user's rule.
    Custom(Box<dyn GradientTransform>),
    /// Takes the parameters that this accepts out of weight decay.
    DecayExempt(Box<NamesAndDims>),
    /// Keeps the parameters that this accepts as they are.
    Freeze(Box<Names>),
    /// Takes the gradients at this distance uphill.
    Sharpness(f32),
}

impl Transform {
    /// Returns whether this transform lets the parameter of this name be trained.
    pub(super) fn trains(&self, name: &str) -> bool {
        match self {
            Self::Average(_)
            | Self::ClipNorm(_)
            | Self::ClipValue(_)
            | Self::Custom(_)
            | Self::DecayExempt(_)
            | Self::Sharpness(_) => true,
            Self::Freeze(frozen) => !frozen(name),
        }
    }

    /// Checks the transform's setting.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Average(0.0) => {
                Err("the decay of average_weights is 0: the average is then the weight itself".into())
            }
            Self::Average(decay) => kept_share("the decay of average_weights", *decay),
            Self::ClipNorm(norm) => limit("clip_norm", *norm),
            Self::ClipValue(value) => limit("clip_value", *value),
            Self::Sharpness(rho) => above_zero("rho of sharpness_aware", f64::from(*rho)),
            Self::Custom(_) | Self::DecayExempt(_) | Self::Freeze(_) => Ok(()),
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
            Self::Custom(rule) => transformed(gradients, &**rule),
            Self::Average(_) | Self::DecayExempt(_) | Self::Freeze(_) | Self::Sharpness(_) => gradients,
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
            Self::Average(_)
            | Self::ClipNorm(_)
            | Self::ClipValue(_)
            | Self::Custom(_)
            | Self::Freeze(_)
            | Self::Sharpness(_) => {}
        }
    }

    /// Returns a note if the run is too short for the transform: an average over more steps than it has.
    pub(super) fn note_on_steps(&self, steps: u64) -> Option<String> {
        let Self::Average(decay) = self else { return None };
        let share = libm::pow(*decay, steps as f64);
        (share > 0.5).then(|| {
            format!(
                "average_weights({decay}): the average moves slowly, and after the {steps} steps of this run {:.0} % of it \
                 are still the weights of the first step",
                100.0 * share
            )
        })
    }

    /// Returns the scalar of a step that this transform needs: of an average, the share of the new value,
    /// which is 1 in the first step, before which there is no average.
    pub(super) fn scalar(&self, step: u64) -> Option<Scalar> {
        match self {
            Self::Average(decay) => {
                let fresh = if step == 0 { 1.0 } else { 1.0 - decay };
                Some(Scalar::new(AVERAGE, fresh as f32))
            }
            Self::ClipNorm(_)
            | Self::ClipValue(_)
            | Self::Custom(_)
            | Self::DecayExempt(_)
            | Self::Freeze(_)
            | Self::Sharpness(_) => None,
        }
    }

    /// Traces what follows from a parameter's new value, after the optimizer has traced it.
    pub(super) fn follow(&self, cx: &mut Update, new: &Var) {
        match self {
            Self::Average(_) => {
                let average = cx.state(AVERAGE, new);
                let moved = (new - &average) * cx.scalar(AVERAGE) + &average;
                cx.set(&average, &moved);
            }
            Self::ClipNorm(_)
            | Self::ClipValue(_)
            | Self::Custom(_)
            | Self::DecayExempt(_)
            | Self::Freeze(_)
            | Self::Sharpness(_) => {}
        }
    }
}

/// Scales all gradients by norm / (their common norm + 1e-6) where that is below 1.
fn clip_norm(gradients: Vec<Gradient>, norm: f32) -> Vec<Gradient> {
    let Some(common) = norm_of_all(&gradients) else { return gradients };
    let factor = (norm / (common + 1e-6)).minimum(&gradients[0].gradient.tape().constant(1.0));
    map(gradients, |g| g * &factor)
}

/// Returns what a user's rule makes of all gradients, or reports that it does not give one of the same type
/// for each.
fn transformed(gradients: Vec<Gradient>, rule: &dyn GradientTransform) -> Vec<Gradient> {
    let Some(tape) = gradients.first().map(|g| g.gradient.tape().clone()) else { return gradients };
    let new = tape.scope(rule.name(), || rule.transform(&tape, &gradients));
    let mut problem = None;
    if new.len() != gradients.len() {
        problem = Some(format!("{} gradients became {}", gradients.len(), new.len()));
    }
    for (old, new) in gradients.iter().zip(&new).filter(|(old, new)| old.gradient.ty() != new.ty()) {
        let became = format!("the gradient of {}, {}, became {}", old.name, old.gradient.ty(), new.ty());
        problem.get_or_insert(became);
    }
    if let Some(problem) = problem {
        tape.fail_here("optimizer", format!("{}: {problem}", rule.name()));
        return gradients;
    }
    gradients.into_iter().zip(new).map(|(g, gradient)| Gradient { gradient, ..g }).collect()
}

/// Applies a function to each gradient.
fn map(gradients: Vec<Gradient>, f: impl Fn(&Var) -> Var) -> Vec<Gradient> {
    gradients.into_iter().map(|g| Gradient { gradient: f(&g.gradient), ..g }).collect()
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Average(decay) => write!(f, "Average({decay})"),
            Self::ClipNorm(norm) => write!(f, "ClipNorm({norm})"),
            Self::ClipValue(value) => write!(f, "ClipValue({value})"),
            Self::Custom(rule) => write!(f, "Custom({:?})", rule.name()),
            Self::DecayExempt(_) => write!(f, "DecayExempt"),
            Self::Freeze(_) => write!(f, "Freeze"),
            Self::Sharpness(rho) => write!(f, "Sharpness({rho})"),
        }
    }
}
