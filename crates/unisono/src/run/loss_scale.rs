//! The section `loss_scale`: in mixed precision, gradients are taken of a larger loss, so that f16 holds the
//! small ones, and are divided again as sums.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compile::programs::{INVERSE, SCALE};
use crate::optimizers::Scalar;
use crate::run::section::{Difference, Section};

/// What the mean loss of a full batch is multiplied by before its gradients are taken in mixed precision
/// (Micikevicius et al. 2018, section 3.2). The summed gradients are divided by it before an optimizer sees
/// them. All its numbers are powers of two, so that both are exact.
///
/// ```
/// use unisono::LossScale;
///
/// let fixed = LossScale::Fixed(1024.0);
/// let (initial, least, most) = (256.0, 1.0, 65_536.0);
/// let slow = LossScale::Dynamic { initial, growth: 2.0, backoff: 0.5, interval: 5000, least, most };
/// assert_ne!(slow, LossScale::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum LossScale {
    /// The scale is always this one. A sum that is not finite is an error.
    Fixed(f32),
    /// The scale is as large as gradients allow: a step with a summed gradient that is not finite is skipped,
    /// and the next one has a smaller scale.
    Dynamic {
        /// The scale of the first step.
        initial: f32,
        /// What the scale is multiplied by after enough good steps.
        growth: f32,
        /// What the scale is multiplied by after a skipped step.
        backoff: f32,
        /// The number of good steps in a row after which the scale grows.
        interval: u64,
        /// The smallest scale. A sum that is not finite at this scale is an error.
        least: f32,
        /// The largest scale.
        most: f32,
    },
}

impl Default for LossScale {
    /// Returns the setting of PyTorch's `GradScaler`: it starts at 2^16, doubles after 2000 good steps,
    /// halves after a skipped one, and stays between 1 and 2^24.
    fn default() -> Self {
        Self::Dynamic {
            initial: 65_536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            least: 1.0,
            most: 16_777_216.0,
        }
    }
}

impl LossScale {
    /// Checks the setting's numbers.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn check(&self) -> Result<(), String> {
        let powers: &[(&str, f32)] = match self {
            Self::Fixed(scale) => &[("fixed", *scale)],
            Self::Dynamic { initial, growth, backoff, least, most, .. } => &[
                ("initial", *initial),
                ("growth", *growth),
                ("backoff", *backoff),
                ("least", *least),
                ("most", *most),
            ],
        };
        if let Some((name, x)) = powers.iter().find(|(_, x)| !is_power_of_two(*x)) {
            return Err(format!("{name}: {x} is not a power of two between 2^-60 and 2^60"));
        }
        let &Self::Dynamic { initial, growth, backoff, interval, least, most } = self else { return Ok(()) };
        if !(least <= initial && initial <= most) {
            return Err(format!("initial: {initial} is not between least, {least}, and most, {most}"));
        }
        if growth < 1.0 || backoff >= 1.0 || interval == 0 {
            return Err(format!(
                "growth {growth} must be at least 1, backoff {backoff} below 1, interval {interval} above 0"
            ));
        }
        Ok(())
    }

    fn initial(&self) -> f32 {
        match *self {
            Self::Fixed(scale) => scale,
            Self::Dynamic { initial, .. } => initial,
        }
    }
}

/// Prints as in `dynamic from 65536 (times 2 after 2000 good steps, 0.5 after a skipped one; 1 to 16777216)`.
impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An f64 shows all digits.
        match *self {
            Self::Fixed(scale) => write!(f, "fixed at {}", f64::from(scale)),
            Self::Dynamic { initial, growth, backoff, interval, least, most } => {
                let [initial, least, most] = [initial, least, most].map(f64::from);
                write!(
                    f,
                    "dynamic from {initial} (times {growth} after {interval} good steps, {backoff} after a skipped one; "
                )?;
                write!(f, "{least} to {most})")
            }
        }
    }
}

/// Whether a number is a power of two that stays one when it is multiplied by another one, or by the size of
/// a batch.
fn is_power_of_two(x: f32) -> bool {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    x.to_bits() & 0x007f_ffff == 0 && (-60..=60).contains(&exponent)
}

/// The loss scale of a run, and how it came about: a part of the run's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// The setting that says how the scale changes.
    pub setting: LossScale,
    /// The scale of the next step.
    pub scale: f32,
    /// The number of good steps since the scale changed.
    pub good: u64,
    /// The number of steps skipped so far because a summed gradient was not finite.
    pub skipped: u64,
}

impl Scaling {
    pub(crate) fn new(setting: LossScale) -> Self {
        Self { setting, scale: setting.initial(), good: 0, skipped: 0 }
    }

    /// Checks a scale that was read from a checkpoint of a run that has done `steps` steps.
    ///
    /// # Errors
    /// A scale that is not a power of two, so that scaling back would not be exact; more skipped steps than
    /// steps.
    pub(crate) fn check(&self, steps: u64) -> Result<(), String> {
        self.setting.check()?;
        if !is_power_of_two(self.scale) {
            return Err(format!("the loss scale {} is not a power of two", self.scale));
        }
        if self.skipped > steps {
            return Err(format!("the loss scale skipped {} of {steps} steps", self.skipped));
        }
        Ok(())
    }

    /// Returns the loss scale of a run that is resumed from `saved`. It is the saved one, or the start value
    /// if the setting is another one.
    pub(crate) fn resumed(self, saved: Option<Self>) -> Self {
        match saved {
            Some(saved) if saved.setting == self.setting => saved,
            Some(Self { skipped, .. }) => Self { skipped, ..self },
            None => self,
        }
    }

    /// Returns the numbers of the next step: the scale of each sample's loss, and its inverse. Each loss
    /// counts for one part of a full batch's mean, and the batch's size is rounded up to a power of two.
    pub(crate) fn scalars(&self, global_batch: usize) -> [Scalar; 2] {
        let seed = self.scale / global_batch.next_power_of_two() as f32;
        [Scalar::new(SCALE, seed), Scalar::new(INVERSE, 1.0 / seed)]
    }

    /// Counts a step that has committed.
    pub(crate) fn went_well(&mut self) {
        let LossScale::Dynamic { growth, interval, most, .. } = self.setting else { return };
        self.good += 1;
        if self.good >= interval {
            self.scale = (self.scale * growth).min(most);
            self.good = 0;
        }
    }

    /// Returns whether the scale can become smaller, so that a step after one that overflowed may be good.
    pub(crate) fn can_back_off(&self) -> bool {
        matches!(self.setting, LossScale::Dynamic { least, .. } if self.scale > least)
    }

    /// Counts a step with a summed gradient that was not finite, and backs off: multiplies the scale by
    /// `backoff` (Default: 0.5, which halves it), but goes no lower than `least`. A scale that cannot become
    /// smaller stays as it is, and nothing is counted.
    pub(crate) fn overflowed(&mut self) {
        if let LossScale::Dynamic { backoff, least, .. } = self.setting
            && self.can_back_off()
        {
            self.scale = (self.scale * backoff).max(least);
            self.good = 0;
            self.skipped += 1;
        }
    }
}

/// The loss scale of a run in mixed precision; a run in full precision has none.
impl Section for Option<Scaling> {
    /// Appends the scale, the good steps and the skipped ones.
    fn digest(&self, bytes: &mut Vec<u8>) {
        if let Some(Scaling { scale, good, skipped, .. }) = self {
            bytes.extend(scale.to_bits().to_le_bytes());
            bytes.extend(good.to_le_bytes());
            bytes.extend(skipped.to_le_bytes());
        }
    }

    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let setting = |of: &Self| of.as_ref().map_or_else(|| "none".into(), |own| own.setting.to_string());
        Difference::of("the loss scale", &setting(saved), &setting(self), true).into_iter().collect()
    }

    /// Goes on with the saved scale, or under another setting with a scale from that setting's start.
    fn resume(&mut self, saved: Self) {
        *self = self.take().map(|own| Scaling::new(own.setting).resumed(saved));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_grows_and_backs_off_within_its_bounds() {
        let setting = LossScale::Dynamic {
            initial: 4.0,
            growth: 2.0,
            backoff: 0.25,
            interval: 3,
            least: 0.5,
            most: 16.0,
        };
        setting.check().unwrap();
        let mut scaling = Scaling::new(setting);
        let scales = |scaling: &mut Scaling, steps| -> Vec<f32> {
            let step = |_| {
                scaling.went_well();
                scaling.scale
            };
            (0..steps).map(step).collect()
        };
        assert_eq!(scales(&mut scaling, 9), [4.0, 4.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 16.0]);
        scales(&mut scaling, 2);
        scaling.overflowed();
        assert_eq!((scaling.scale, scaling.good, scaling.skipped), (4.0, 0, 1));
        (0..2).for_each(|_| scaling.overflowed());
        assert_eq!((scaling.scale, scaling.skipped), (0.5, 3));
        assert!(!scaling.can_back_off());
        scaling.overflowed();
        assert_eq!((scaling.scale, scaling.skipped), (0.5, 3));
        assert!(!Scaling::new(LossScale::Fixed(8.0)).can_back_off());
    }

    #[test]
    fn scaling_back_is_exact() {
        for batch in [1, 3, 64, 100_000] {
            let [scale, inverse] = Scaling::new(LossScale::default()).scalars(batch);
            assert_eq!(scale.value * inverse.value, 1.0);
        }
    }

    #[test]
    fn numbers_that_would_round_are_refused() {
        let problem = |setting: LossScale| setting.check().unwrap_err();
        assert!(problem(LossScale::Fixed(1000.0)).contains("1000 is not a power of two"));
        assert!(problem(LossScale::Fixed(-2.0)).contains("-2 is not a power of two"));
        assert!(problem(LossScale::Fixed(f32::INFINITY)).contains("not a power of two"));
        let dynamic = |initial, backoff| LossScale::Dynamic {
            initial,
            growth: 2.0,
            backoff,
            interval: 1,
            least: 1.0,
            most: 4.0,
        };
        assert!(problem(dynamic(8.0, 0.5)).starts_with("initial: 8 is not between"));
        assert!(problem(dynamic(2.0, 1.0)).contains("backoff 1 below 1"));
        LossScale::default().check().unwrap();
    }
}
