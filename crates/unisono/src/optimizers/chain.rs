//! An optimizer with everything around it: what a trainer takes.

use std::fmt;

use unisono_graph::Var;

use super::transform::Transform;
use super::{
    Gradient, Groups, Lbfgs, Optimizer, OptimizerSettings, Plateau, RateChange, Scalar, Schedule, Update,
};
use crate::error::caught;
use crate::objective::Epoch;

/// The weight decay from which on a note tells of it.
const LARGE_DECAY: f64 = 1.0;

/// An [`Optimizer`], or [`Groups`] of them, with an ordered list of transforms around it, such as gradient
/// clipping.
///
/// You get one from the methods of [`Optimizer`], [`Groups`] and this type that add a transform. Transforms
/// that change gradients run in the reverse of the order in which they were added:
/// `sgd.clip_norm(1.0).clip_value(0.1)` clips the values first. The order of the other transforms does not
/// matter.
///
/// ```
/// use unisono::{AdamW, Chain, Dense, Optimizer, Trainer};
///
/// let chain: Chain = AdamW::new(1e-3).freeze(|name| name.starts_with("encoder.")).clip_norm(1.0);
/// let builder = Trainer::builder(Dense::new(10)).optimizer(chain);
/// ```
pub struct Chain {
    rule: Rule,
    /// The transforms in the order in which they were added: the last one is outermost.
    transforms: Vec<Transform>,
}

/// What is inside of the transforms.
enum Rule {
    One(Box<dyn Optimizer>),
    Groups(Groups),
}

/// Defines the methods that add a transform, once for all types that have them. It takes their visibility and
/// their bounds; `Chain` and `Transform` are in scope where it is called.
macro_rules! transforms {
    ([$($vis:tt)*] [$($bounds:tt)*]) => {
        /// Scales all gradients by norm / (their common norm + 1e-6) where that is below 1 (Pascanu et al.
        /// 2013; PyTorch's `clip_grad_norm_`). Default: gradients stay as they are.
        ///
        /// The sum of the squares is a tree within each tensor, then runs over the tensors in the order of
        /// their names.
        #[doc(alias = "clip_grad_norm_")]
        $($vis)* fn clip_norm(self, norm: f32) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::ClipNorm(norm))
        }

        /// Cuts every element of every gradient to [-value, value] (PyTorch's `clip_grad_value_`). Default:
        /// gradients stay as they are.
        #[doc(alias = "clip_grad_value_")]
        $($vis)* fn clip_value(self, value: f32) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::ClipValue(value))
        }

        /// Transforms all gradients by a rule of your own before they are used. Default: gradients stay as
        /// they are.
        $($vis)* fn transform_gradients(
            self,
            transform: impl $crate::GradientTransform + 'static,
        ) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::Custom(Box::new(transform)))
        }

        /// Uses the gradients at w + rho g / |g| in place of those at the weights w, where |g| is the common
        /// norm of all gradients g (Foret et al. 2021, sharpness-aware minimization, SAM). A step takes
        /// twice the time, and the memory of both. Default: the gradients at the weights.
        ///
        /// Both passes draw the same random numbers and use the whole global batch. The losses and the
        /// statistics of a batch norm are those of the first one. Around [`Groups`](crate::Groups), the
        /// distance is that of all parameters together. Errors: rho is not above 0, it is there twice, it is
        /// in a group, or the model carries state from batch to batch.
        #[doc(alias("SAM", "sam"))]
        $($vis)* fn sharpness_aware(self, rho: f32) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::Sharpness(rho))
        }

        /// Takes the parameters whose name `exempt` accepts out of weight decay. Default: all parameters
        /// decay.
        $($vis)* fn decay_exempt(
            self,
            exempt: impl Fn(&str) -> bool + Send + Sync + 'static,
        ) -> Chain $($bounds)* {
            let exempt = Box::new(move |name: &str, _: &[usize]| exempt(name));
            Chain::from(self).with(Transform::DecayExempt(exempt))
        }

        /// Takes the parameters with fewer than two axes out of weight decay: biases, and the scales of
        /// normalizations. Default: all parameters decay.
        $($vis)* fn no_decay_for_biases_and_norms(self) -> Chain $($bounds)* {
            let exempt = Box::new(|_: &str, dims: &[usize]| dims.len() < 2);
            Chain::from(self).with(Transform::DecayExempt(exempt))
        }

        /// Freezes the parameters whose name `frozen` accepts: they keep their values, and nothing is
        /// computed or kept for them. Default: all parameters are trained.
        #[doc(alias("requires_grad", "trainable"))]
        $($vis)* fn freeze(
            self,
            frozen: impl Fn(&str) -> bool + Send + Sync + 'static,
        ) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::Freeze(Box::new(frozen)))
        }

        /// Keeps an exponential moving average of each parameter that is trained beside it (PyTorch's
        /// `AveragedModel` with `get_ema_multi_avg_fn`, Keras's `use_ema`): average = decay average + (1 -
        /// decay) weight after each step, and the weight itself after the first one. Default: there is
        /// none.
        ///
        /// Statistics that training moves, such as a batch norm's running mean, are averaged with the same
        /// decay (as timm's `ModelEma` does): those of the weights themselves do not fit the averages. Of
        /// [`Groups`](crate::Groups), the one that accepts the statistic's name decides. The average of
        /// `0.weight` is the state `0.weight/average`, which checkpoints hold and which
        /// [`Trainer::tensor`](crate::Trainer::tensor) returns. Training does not use it;
        /// [`Builder::use_average_weights`](crate::Builder::use_average_weights) lets all else use it.
        #[doc(alias("AveragedModel", "use_ema"))]
        $($vis)* fn average_weights(self, decay: f64) -> Chain $($bounds)* {
            Chain::from(self).with(Transform::Average(decay))
        }
    };
}

pub(super) use transforms;

impl Chain {
    transforms!([pub] []);

    /// Returns the optimizer's name, which checkpoints contain.
    pub fn name(&self) -> &str {
        match &self.rule {
            Rule::One(rule) => rule.name(),
            Rule::Groups(groups) => groups.name(),
        }
    }

    /// Returns the scalars of a step, counted from 0: see [`Optimizer::scalars`].
    pub fn scalars(&self, step: u64) -> Vec<Scalar> {
        let mut scalars = match &self.rule {
            Rule::One(rule) => rule.scalars(step),
            Rule::Groups(groups) => groups.scalars(step),
        };
        scalars.extend(self.scalars_of_transforms(step));
        scalars
    }

    /// Returns the scalars that the transforms need beside those of the rule.
    fn scalars_of_transforms(&self, step: u64) -> impl Iterator<Item = Scalar> {
        self.transforms.iter().filter_map(move |transform| transform.scalar(step))
    }

    /// Returns the scalars of a step as [`Chain::scalars`] does, all of them finite.
    ///
    /// # Errors
    /// One is NaN or infinite, for example because a schedule gives such a number at this step. The error is
    /// the message, which names the optimizer, the learning rate or the scalar, and the step.
    pub fn finite_scalars(&self, step: u64) -> Result<Vec<Scalar>, String> {
        let rule = match &self.rule {
            Rule::One(rule) => rule,
            Rule::Groups(groups) => {
                let mut scalars = groups.finite_scalars(step)?;
                scalars.extend(self.scalars_of_transforms(step));
                return Ok(scalars);
            }
        };
        let named = |problem| format!("{}: {problem}", rule.name());
        let panicked = |text| named(format!("panicked at step {step}: {text}"));
        caught(|| rule.check_at(step)).map_err(panicked)?.map_err(named)?;
        let mut scalars = caught(|| rule.scalars(step)).map_err(panicked)?;
        scalars.extend(self.scalars_of_transforms(step));
        match scalars.iter().find(|scalar| !scalar.value.is_finite()) {
            Some(Scalar { name, value }) => {
                Err(named(format!("the scalar {name:?} of step {step} is {value}, and must be finite")))
            }
            None => Ok(scalars),
        }
    }

    /// Tells the optimizer the epochs so far: see [`Optimizer::observe`].
    ///
    /// # Errors
    /// A value that the optimizer needs is not measured. The error is the message.
    pub fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        match &mut self.rule {
            Rule::One(rule) => caught(|| rule.observe(history)).unwrap_or_else(|text| {
                Err(format!("{}: panicked in Optimizer::observe: {text}", rule.name()))
            }),
            Rule::Groups(groups) => groups.observe(history),
        }
    }

    /// Returns the learning rate of a step, counted from 0: that of [`Optimizer::schedule`]. For [`Groups`]
    /// it is that of the first optimizer with a schedule.
    pub fn learning_rate(&self, step: u64) -> Option<f64> {
        match &self.rule {
            Rule::One(rule) => {
                let at = || rule.schedule().map(|schedule| schedule.at(step));
                caught(at).unwrap_or(Some(f64::NAN))
            }
            Rule::Groups(groups) => groups.learning_rate(step),
        }
    }

    /// Returns the plateaus that lower schedules.
    pub(crate) fn plateaus(&self) -> Vec<Plateau> {
        match &self.rule {
            Rule::One(rule) => {
                let plateau = || rule.schedule().and_then(Schedule::plateau).cloned();
                caught(plateau).unwrap_or_default().into_iter().collect()
            }
            Rule::Groups(groups) => groups.plateaus(),
        }
    }

    /// Sets what callbacks have changed of the learning rates.
    ///
    /// # Errors
    /// The optimizer has no schedule that can be changed; the error is the message.
    pub(crate) fn set_changes(&mut self, changes: &[RateChange]) -> Result<(), String> {
        match &mut self.rule {
            Rule::One(rule) => match rule.schedule_mut() {
                Some(schedule) => schedule.set_changes(changes),
                None if changes.is_empty() => {}
                None => return Err(format!("{} has no schedule that can be changed", rule.name())),
            },
            Rule::Groups(groups) => groups.set_changes(changes)?,
        }
        Ok(())
    }

    /// Returns notes on freezes that match none of these parameters, or all.
    pub(crate) fn freeze_notes(&self, names: &[&str]) -> Vec<String> {
        let freezes = self.transforms.iter().filter(|transform| matches!(transform, Transform::Freeze(_)));
        let note = |freeze: &Transform| {
            let trained = names.iter().filter(|name| freeze.trains(name)).count();
            match trained {
                0 => Some("a freeze matches all parameters: nothing is trained".to_owned()),
                all if all == names.len() => {
                    Some(format!("a freeze matches none of the {all} parameters: {}", names.join(", ")))
                }
                _ => None,
            }
        };
        let inside = match &self.rule {
            Rule::One(_) => Vec::new(),
            Rule::Groups(groups) => groups.empty_notes(names),
        };
        freezes.filter_map(note).chain(inside).collect()
    }

    /// Returns notes on settings that work, and are most likely a mistake: see [`Optimizer::notes`].
    pub(crate) fn notes(&self) -> Vec<String> {
        let rule = match &self.rule {
            Rule::One(rule) => rule,
            Rule::Groups(groups) => return groups.notes(),
        };
        let mut notes = caught(|| rule.notes()).unwrap_or_default();
        if caught(|| rule.schedule().is_some_and(Schedule::is_zero)).unwrap_or(false) {
            notes.push("the learning rate is 0 at every step: training changes no parameter".into());
        }
        notes.extend(caught(|| rule.settings()).ok().flatten().as_ref().and_then(note_on_decay));
        notes.into_iter().map(|note| format!("{}: {note}", rule.name())).collect()
    }

    /// Returns whether averages of the weights are kept.
    pub(crate) fn keeps_averages(&self) -> bool {
        let in_groups = matches!(&self.rule, Rule::Groups(groups) if groups.keeps_averages());
        in_groups || self.transforms.iter().any(|transform| matches!(transform, Transform::Average(_)))
    }

    /// Returns notes on a schedule of the learning rate that does not fit a run of this many steps. For
    /// [`Groups`] they are those of each group.
    pub(crate) fn notes_on_steps(&self, steps: u64) -> Vec<String> {
        let mut notes: Vec<String> =
            self.transforms.iter().filter_map(|transform| transform.note_on_steps(steps)).collect();
        notes.extend(self.notes_of_rule(steps));
        notes
    }

    fn notes_of_rule(&self, steps: u64) -> Vec<String> {
        match &self.rule {
            Rule::One(rule) => {
                let note = caught(|| rule.schedule().and_then(|schedule| schedule.note_on_steps(steps)));
                let note = note.ok().flatten();
                note.map(|note| format!("{}: {note}", rule.name())).into_iter().collect()
            }
            Rule::Groups(groups) => groups.notes_on_steps(steps),
        }
    }

    /// Checks the settings of the optimizer and of the transforms around it: see [`Optimizer::check`].
    ///
    /// # Errors
    /// A setting cannot work; the error is the message, which names the optimizer, the setting and its value.
    pub fn check(&self) -> Result<(), String> {
        self.transforms.iter().try_for_each(Transform::check)?;
        if self.scalars_of_transforms(0).count() > 1 {
            return Err("average_weights is there twice".into());
        }
        if self.distances().count() > 1 {
            return Err("sharpness_aware is there twice".into());
        }
        let around = self.transforms.iter().find(|transform| !matches!(transform, Transform::Freeze(_)));
        if let (Some(rule), Some(transform)) = (self.of_all_samples(), around) {
            return Err(format!("{}: only freeze can be around it, and {transform:?} is", rule.name()));
        }
        match &self.rule {
            Rule::One(rule) => {
                let checked = caught(|| rule.check()).unwrap_or_else(|text| Err(format!("panicked: {text}")));
                checked.map_err(|problem| format!("{}: {problem}", rule.name()))
            }
            Rule::Groups(groups) => groups.check(),
        }
    }

    /// Returns the settings of the rule by name, and the transforms around it. The functions of transforms
    /// and groups, which choose parameters by name, are covered by what is traced.
    pub fn settings(&self) -> OptimizerSettings {
        let settings = match &self.rule {
            Rule::One(rule) => rule.settings().unwrap_or_else(|| {
                let what = format!("the settings of the optimizer {:?}", rule.name());
                OptimizerSettings::new().uncovered(what)
            }),
            Rule::Groups(groups) => groups.settings(),
        };
        let transforms: Vec<String> =
            self.transforms.iter().map(|transform| format!("{transform:?}")).collect();
        settings.with("transforms", if transforms.is_empty() { "none".into() } else { transforms.join(", ") })
    }

    /// Returns the distances uphill at which gradients are taken: one at most, after [`Chain::check`].
    fn distances(&self) -> impl Iterator<Item = f32> {
        self.transforms.iter().filter_map(|transform| match transform {
            Transform::Sharpness(rho) => Some(*rho),
            _ => None,
        })
    }

    /// Returns the distance uphill at which gradients are taken, if any.
    pub(crate) fn sharpness(&self) -> Option<f32> {
        self.distances().next()
    }

    /// Returns the optimizer if it evaluates all samples several times in a step.
    pub(crate) fn of_all_samples(&self) -> Option<&Lbfgs> {
        match &self.rule {
            Rule::One(rule) => rule.of_all_samples(),
            Rule::Groups(_) => None,
        }
    }

    /// Adds a transform around all that is there.
    pub(super) fn with(mut self, transform: Transform) -> Self {
        self.transforms.push(transform);
        self
    }

    /// Returns whether the parameter of this name is trained.
    pub(crate) fn trains(&self, name: &str) -> bool {
        self.transforms.iter().all(|transform| transform.trains(name))
            && match &self.rule {
                Rule::One(_) => true,
                Rule::Groups(groups) => groups.trains(name),
            }
    }

    /// Transforms all gradients together, before any update. They come in the order of the parameters' names.
    pub(super) fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        let outermost_first = self.transforms.iter().rev();
        let gradients = outermost_first.fold(gradients, |gradients, transform| transform.prepare(gradients));
        match &self.rule {
            Rule::One(_) => gradients,
            Rule::Groups(groups) => groups.prepare(gradients),
        }
    }

    /// Traces a parameter's new value.
    pub(super) fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        self.transforms.iter().rev().for_each(|transform| transform.configure(cx, weight));
        let new = match &self.rule {
            Rule::One(rule) => rule.update(cx, weight, gradient),
            Rule::Groups(groups) => groups.update(cx, weight, gradient),
        };
        self.transforms.iter().for_each(|transform| transform.follow(cx, &new));
        new
    }

    /// Traces what follows from the new value of a statistic: its average, where weights are averaged.
    pub(super) fn follow_statistic(&self, cx: &mut Update, new: &Var) {
        self.transforms.iter().for_each(|transform| transform.follow(cx, new));
        if let Rule::Groups(groups) = &self.rule {
            groups.follow_statistic(cx, new);
        }
    }
}

impl<O: Optimizer + 'static> From<O> for Chain {
    fn from(rule: O) -> Self {
        Self::from(Box::new(rule) as Box<dyn Optimizer>)
    }
}

impl From<Box<dyn Optimizer>> for Chain {
    fn from(rule: Box<dyn Optimizer>) -> Self {
        Self { rule: Rule::One(rule), transforms: vec![] }
    }
}

impl From<Groups> for Chain {
    fn from(groups: Groups) -> Self {
        Self { rule: Rule::Groups(groups), transforms: vec![] }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("name", &self.name()).field("transforms", &self.transforms).finish()
    }
}
/// Returns a note on a weight decay that leaves weights little to learn.
fn note_on_decay(settings: &OptimizerSettings) -> Option<String> {
    let decay = settings.entries().iter().find(|(name, _)| name == "weight_decay")?;
    let is_large = decay.1.parse::<f64>().is_ok_and(|decay| decay >= LARGE_DECAY);
    is_large
        .then(|| format!("a weight decay of {} holds the weights near 0: 0.00001 to 0.1 is usual", decay.1))
}
