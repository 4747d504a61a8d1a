//! Learning rate schedules, in f64 on the host.

mod notes;

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Plateau;
use crate::error::caught;
use crate::objective::Epoch;

/// A learning rate as a function of the step, counted from 0 (PyTorch's `lr_scheduler`, Keras's
/// `LearningRateSchedule`). A number converts to a constant schedule. Its elementary functions come from the
/// crate `libm`, which gives the same bits on every platform.
///
/// ```
/// use unisono::{Schedule, Sgd};
///
/// let constant = Sgd::new(0.1);
/// let cosine = Sgd::new(Schedule::cosine(0.1, 10_000).warm_up(500));
/// assert_eq!(Schedule::step(0.1, 30, 0.5).at(60), 0.025);
/// ```
#[doc(alias("LRScheduler", "LearningRateSchedule"))]
#[derive(Clone)]
pub struct Schedule {
    shape: Shape,
    warm_up: u64,
    /// An end that was given to a schedule that has none.
    end_of_none: Option<f64>,
    plateau: Option<Plateau>,
    /// How many reductions the plateau has made.
    reductions: u32,
    /// What callbacks have changed, in the order of the steps.
    changes: Vec<RateChange>,
}

/// A change of the learning rate by a callback. It holds until the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateChange {
    /// The optimizer's first step with the change.
    pub from: u64,
    /// The learning rate in place of the schedule's. `None`: the schedule's.
    pub rate: Option<f64>,
    /// What the schedule's learning rate is multiplied by.
    pub factor: f64,
    /// What then lowers the learning rate of each optimizer by itself, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<RateReduction>,
}

/// Reductions by one plateau in a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateReduction {
    pub factor: f64,
    /// The learning rate below which no reduction goes.
    pub least: f64,
    pub times: u32,
}

impl RateReduction {
    /// Returns what multiplies a learning rate by a factor.
    pub fn scale(factor: f64) -> Self {
        Self { factor, least: 0.0, times: 1 }
    }

    /// Returns whether this only multiplies a learning rate by a factor.
    pub fn is_scale(&self) -> bool {
        (self.least, self.times) == (0.0, 1)
    }

    /// Returns a learning rate after the reductions.
    pub fn of(&self, lr: f64) -> f64 {
        (0..self.times).fold(lr, |lr, _| (lr * self.factor).max(self.least.min(lr)))
    }
}

impl RateChange {
    /// Returns the learning rate with the change, of the schedule's.
    fn of(&self, lr: f64) -> f64 {
        self.reductions.iter().fold(self.rate.unwrap_or(lr * self.factor), |lr, reduction| reduction.of(lr))
    }
}

/// The schedule behind the warm-up.
#[derive(Clone)]
enum Shape {
    Constant(f64),
    Step { lr: f64, every: u64, factor: f64 },
    Cosine { lr: f64, steps: u64, to: f64 },
    Restarts { lr: f64, first: u64, factor: u64, to: f64 },
    Polynomial { lr: f64, steps: u64, power: f64, to: f64 },
    OneCycle { highest: f64, steps: u64 },
    Function { f: Arc<dyn Fn(u64) -> f64 + Send + Sync>, name: Option<String> },
}

impl Schedule {
    /// Creates a schedule that is `lr` at every step.
    pub fn constant(lr: f64) -> Self {
        Shape::Constant(lr).into()
    }

    /// Creates a schedule that starts at `lr` and is multiplied by `factor` after each `every` steps
    /// (PyTorch's `StepLR`).
    #[doc(alias = "StepLR")]
    pub fn step(lr: f64, every: u64, factor: f64) -> Self {
        Shape::Step { lr, every, factor }.into()
    }

    /// Creates a schedule that falls from `lr` to 0 along half a cosine within `steps` steps and then stays
    /// there (Loshchilov and Hutter 2017; PyTorch's `CosineAnnealingLR`).
    #[doc(alias("CosineAnnealingLR", "CosineDecay"))]
    pub fn cosine(lr: f64, steps: u64) -> Self {
        Shape::Cosine { lr, steps, to: 0.0 }.into()
    }

    /// Creates a schedule that falls from `lr` to 0 along half a cosine, and then restarts: within `first`
    /// steps at first, and within `factor` times as many after each restart (Loshchilov and Hutter 2017;
    /// PyTorch's `CosineAnnealingWarmRestarts`, Keras's `CosineDecayRestarts`). With a `factor` of 1, all
    /// restarts are `first` steps apart.
    ///
    /// Errors, which [`Schedule::check`] finds: `first` or `factor` is 0.
    #[doc(alias("CosineAnnealingWarmRestarts", "CosineDecayRestarts"))]
    pub fn cosine_restarts(lr: f64, first: u64, factor: u64) -> Self {
        Shape::Restarts { lr, first, factor, to: 0.0 }.into()
    }

    /// Creates the schedule lr (1 - step / steps)^power, which then stays at 0 (PyTorch's `PolynomialLR`,
    /// Keras's `PolynomialDecay`). Power 1 is a line.
    #[doc(alias("PolynomialDecay", "PolynomialLR"))]
    pub fn polynomial(lr: f64, steps: u64, power: f64) -> Self {
        Shape::Polynomial { lr, steps, power, to: 0.0 }.into()
    }

    /// Creates a schedule that rises from `highest` / 25 to `highest` within the first 30% of `steps` steps
    /// and then falls to a 10,000th of where it started, both along half a cosine (Smith and Topin 2018;
    /// PyTorch's `OneCycleLR`, without its cycle of the momentum).
    #[doc(alias = "OneCycleLR")]
    pub fn one_cycle(highest: f64, steps: u64) -> Self {
        Shape::OneCycle { highest, steps }.into()
    }

    /// Creates a schedule from any function of the step. The function must depend on nothing else, or runs
    /// will not repeat.
    #[doc(alias("LambdaLR", "MultiStepLR", "PiecewiseConstantDecay"))]
    pub fn function(lr: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Shape::Function { f: Arc::new(lr), name: None }.into()
    }

    /// Gives the function of a schedule a name and a version. A resume compares them with those of the
    /// original run. Default: none, and the run's identity says that the function is not covered. Other
    /// schedules ignore it.
    ///
    /// Change the version whenever you change the function or a number in it.
    ///
    /// ```
    /// use unisono::{Schedule, Sgd};
    ///
    /// let root = Schedule::function(|step| 0.1 / ((step + 1) as f64).sqrt()).named("inverse root", 1);
    /// let optimizer = Sgd::new(root);
    /// ```
    pub fn named(mut self, function: &str, version: u32) -> Self {
        if let Shape::Function { name, .. } = &mut self.shape {
            *name = Some(format!("{function:?} version {version}"));
        }
        self
    }

    /// Sets the final learning rate of a cosine, with or without restarts, or of a polynomial. Default: 0.
    ///
    /// Errors, which [`Schedule::check`] finds: the schedule is another one.
    pub fn end(mut self, lr: f64) -> Self {
        match &mut self.shape {
            Shape::Cosine { to, .. } | Shape::Restarts { to, .. } | Shape::Polynomial { to, .. } => *to = lr,
            _ => self.end_of_none = Some(lr),
        }
        self
    }

    /// Adds `steps` steps of linear warm-up before the schedule: 1/steps, 2/steps, ... of the learning rate
    /// that it starts with (Goyal et al. 2017). The schedule itself starts after them. Default: 0.
    pub fn warm_up(self, steps: u64) -> Self {
        Self { warm_up: steps, ..self }
    }

    /// Lowers the whole schedule when the run stops improving. Default: it is not lowered.
    #[doc(alias = "ReduceLROnPlateau")]
    pub fn reduce_on(self, plateau: Plateau) -> Self {
        Self { plateau: Some(plateau), ..self }
    }

    /// Returns the plateau that lowers the schedule.
    pub(crate) fn plateau(&self) -> Option<&Plateau> {
        self.plateau.as_ref()
    }

    /// Tells the plateau, if there is one, the epochs so far. Optimizers call it in
    /// [`Optimizer::observe`](super::Optimizer::observe).
    ///
    /// # Errors
    /// The value that the plateau monitors is not measured, or one of its settings cannot work. The error is
    /// the message.
    pub fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        if let Some(plateau) = &self.plateau {
            self.reductions = plateau.reductions(history)?;
        }
        Ok(())
    }

    /// Checks the learning rate of step 0, without reductions. [`Schedule::check_at`] checks those of the
    /// other steps when they come.
    ///
    /// # Errors
    /// It is NaN or infinite, as an f32 too, or negative, or a number of steps cannot work; the error is the
    /// message.
    pub fn check(&self) -> Result<(), String> {
        self.shape.check()?;
        if let Some(lr) = self.end_of_none {
            return Err(format!(
                "end({lr}) is for a cosine or a polynomial, and this is: {}",
                self.shape.describe()
            ));
        }
        finite_at(0, self.planned(0)?)
    }

    /// Returns whether the learning rate is 0 at every step.
    pub(super) fn is_zero(&self) -> bool {
        matches!(self.shape, Shape::Constant(lr) if lr == 0.0)
    }

    /// Checks the learning rate of a step.
    ///
    /// # Errors
    /// It is NaN or infinite, as an f32 too, or negative, or the function panics; the error is the message.
    pub fn check_at(&self, step: u64) -> Result<(), String> {
        finite_at(step, self.try_at(step)?)
    }

    /// Returns the learning rate of a step. It is NaN where a function panics, which a run refuses before
    /// the step by [`Schedule::check_at`].
    pub fn at(&self, step: u64) -> f64 {
        self.try_at(step).unwrap_or(f64::NAN)
    }

    fn try_at(&self, step: u64) -> Result<f64, String> {
        let lr = self.planned(step)?;
        let lr = self.plateau.as_ref().map_or(lr, |plateau| plateau.reduction(self.reductions).of(lr));
        let change = self.changes.iter().rev().find(|change| change.from <= step);
        Ok(change.map_or(lr, |change| change.of(lr)))
    }

    /// Sets what callbacks have changed, in place of earlier changes.
    pub(super) fn set_changes(&mut self, changes: &[RateChange]) {
        self.changes = changes.to_vec();
    }

    /// Returns the schedule as text, with all its numbers. A function is its name and version.
    pub(super) fn describe(&self) -> String {
        let shape = self.shape.describe();
        let warm_up = if self.warm_up > 0 {
            format!(", after {} of warm-up", steps(self.warm_up))
        } else {
            String::new()
        };
        let plateau = self.plateau.as_ref().map(|plateau| format!(", reduced on {}", plateau.describe()));
        format!("{shape}{warm_up}{}", plateau.unwrap_or_default())
    }

    /// Returns whether the schedule is a function that has no name.
    pub(super) fn is_unnamed(&self) -> bool {
        matches!(self.shape, Shape::Function { name: None, .. })
    }

    /// Returns the learning rate without the plateau's reductions.
    ///
    /// # Errors
    /// The function panicked; the error is the message.
    fn planned(&self, step: u64) -> Result<f64, String> {
        let at = |own: u64| {
            let panicked = |text| format!("the schedule panicked at step {step}: {text}");
            caught(|| self.shape.at(own)).map_err(panicked)
        };
        if step < self.warm_up {
            return Ok(at(0)? * ((step + 1) as f64 / self.warm_up as f64));
        }
        at(step - self.warm_up)
    }
}

impl Shape {
    /// Checks the numbers of steps and the factor.
    fn check(&self) -> Result<(), String> {
        let none = |what: &str| Err(format!("{what} over 0 steps needs at least 1"));
        match *self {
            Self::Restarts { first, factor, .. } if first == 0 || factor == 0 => {
                Err(format!("restarts after {first} steps, then {factor} times as many, need at least 1"))
            }
            Self::Step { every: 0, .. } => none("a schedule that changes"),
            Self::Step { factor, .. } if !(factor.is_finite() && factor >= 0.0) => {
                Err(format!("a schedule's factor is {factor}, and must be finite and not negative"))
            }
            Self::Cosine { steps: 0, .. } => none("a cosine"),
            Self::Polynomial { steps: 0, .. } => none("a polynomial"),
            Self::OneCycle { steps: 0, .. } => none("a cycle"),
            _ => Ok(()),
        }
    }

    /// Returns after how many steps the shape is over, if it ever is.
    fn steps(&self) -> Option<u64> {
        match *self {
            Self::Cosine { steps, .. } | Self::Polynomial { steps, .. } | Self::OneCycle { steps, .. } => {
                Some(steps)
            }
            _ => None,
        }
    }

    /// Returns the shape as text, with all its numbers.
    fn describe(&self) -> String {
        match self {
            Self::Constant(lr) => lr.to_string(),
            Self::Step { lr, every, factor } => format!("{lr} times {factor} after each {}", steps(*every)),
            Self::Cosine { lr, steps: n, to } => format!("cosine from {lr} to {to} in {}", steps(*n)),
            Self::Restarts { lr, first, factor, to } => {
                format!("cosine from {lr} to {to} in {}, then in {factor} times as many", steps(*first))
            }
            Self::Polynomial { lr, steps: n, power, to } => {
                format!("polynomial of power {power} from {lr} to {to} in {}", steps(*n))
            }
            Self::OneCycle { highest, steps: n } => format!("one cycle up to {highest} in {}", steps(*n)),
            Self::Function { name: Some(name), .. } => format!("the function {name}"),
            Self::Function { name: None, .. } => "a function without a name".to_owned(),
        }
    }

    fn at(&self, step: u64) -> f64 {
        // The share of `steps` that is over: 1 at the end and beyond.
        let share = |steps: u64| if step < steps { step as f64 / steps as f64 } else { 1.0 };
        match self {
            Self::Constant(lr) => *lr,
            Self::Step { lr, every, factor } => lr * libm::pow(*factor, (step / every.max(&1)) as f64),
            Self::Cosine { lr, steps, to } => along_cosine(*lr, *to, share(*steps)),
            Self::Restarts { lr, first, factor, to } => {
                along_cosine(*lr, *to, since_restart(*first, *factor, step))
            }
            Self::Polynomial { lr, steps, power, to } => {
                to + (lr - to) * libm::pow(1.0 - share(*steps), *power)
            }
            Self::OneCycle { highest, steps } => one_cycle(*highest, *steps, step),
            Self::Function { f, .. } => f(step),
        }
    }
}

/// Checks the learning rate of a step, which must be finite as an f32 too.
fn finite_at(step: u64, lr: f64) -> Result<(), String> {
    if (lr as f32).is_finite() && lr >= 0.0 {
        return Ok(());
    }
    Err(format!("the learning rate of step {step} is {lr}, and must be finite and not negative"))
}

fn steps(count: u64) -> String {
    format!("{count} steps")
}

/// Returns the value along half a cosine from `a` at share 0 to `b` at share 1.
fn along_cosine(a: f64, b: f64, share: f64) -> f64 {
    b + (a - b) / 2.0 * (1.0 + libm::cos(PI * share))
}

/// Returns the share that is over of the cosine in which a step is; see [`Schedule::cosine_restarts`].
fn since_restart(first: u64, factor: u64, step: u64) -> f64 {
    let (mut start, mut length) = (0, first.max(1));
    if factor <= 1 {
        return (step % length) as f64 / length as f64;
    }
    // The lengths grow at least twofold, so that this ends soon.
    while step - start >= length {
        start += length;
        length = length.saturating_mul(factor);
    }
    (step - start) as f64 / length as f64
}

/// Returns the learning rate of [`Schedule::one_cycle`] at a step.
fn one_cycle(highest: f64, steps: u64, step: u64) -> f64 {
    let (first, last) = (highest / 25.0, highest / 25.0 / 1e4);
    let (peak, end) = (0.3 * steps as f64 - 1.0, steps as f64 - 1.0);
    let step = (step as f64).min(end);
    if step <= peak && peak > 0.0 {
        return along_cosine(first, highest, step / peak);
    }
    let share = if end > peak { (step - peak) / (end - peak) } else { 1.0 };
    along_cosine(highest, last, share)
}

/// Returns base batch / base_batch, the linear scaling rule (Goyal et al. 2017): it scales a learning rate
/// that works with `base_batch` samples in a step to `batch` samples. Use it together with
/// [`Schedule::warm_up`].
///
/// ```
/// assert_eq!(unisono::scaled_lr(0.1, 256, 1024), 0.4);
/// ```
pub fn scaled_lr(base: f64, base_batch: usize, batch: usize) -> f64 {
    base * (batch as f64 / base_batch as f64)
}

impl From<Shape> for Schedule {
    fn from(shape: Shape) -> Self {
        Self { shape, warm_up: 0, end_of_none: None, plateau: None, reductions: 0, changes: Vec::new() }
    }
}

impl From<f64> for Schedule {
    fn from(lr: f64) -> Self {
        Self::constant(lr)
    }
}

impl From<f32> for Schedule {
    fn from(lr: f32) -> Self {
        Self::constant(f64::from(lr))
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule(warm-up {}, {} {} {} ...)", self.warm_up, self.at(0), self.at(1), self.at(2))
    }
}

#[cfg(test)]
mod tests;
