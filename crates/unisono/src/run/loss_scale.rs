//! Loss scaling: gradients are taken of a larger loss, so that f16 holds the small ones, and divided again as sums.

use std::fmt;

use serde::{Deserialize, Serialize};
use unisono_graph::NodeId;

use crate::Trainer;
use crate::optimizers::Scalar;

/// The input that the loss is multiplied by.
pub(crate) const SCALE: &str = "loss scale";
/// The input that the summed gradients are multiplied by.
pub(crate) const INVERSE: &str = "1 / loss scale";

/// What the mean loss of a full batch is multiplied by before its gradients are taken in mixed precision (Micikevicius et al.
/// 2018, section 3.2). The summed gradients are divided by it before an optimizer sees them. All its numbers are powers of two,
/// so that both are exact.
///
/// ```
/// use unisono::LossScale;
///
/// let fixed = LossScale::Fixed(1024.0);
/// let slow = LossScale::Dynamic { initial: 256.0, growth: 2.0, backoff: 0.5, interval: 5000, least: 1.0, most: 65_536.0 };
/// assert_ne!(slow, LossScale::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossScale {
    /// Always this one. A sum that is not finite is an error.
    Fixed(f32),
    /// As large as gradients allow: a step with a summed gradient that is not finite is skipped, and the next one has a smaller
    /// scale.
    Dynamic {
        /// The scale of the first step.
        initial: f32,
        /// What the scale is multiplied by after enough good steps.
        growth: f32,
        /// What the scale is multiplied by after a skipped step.
        backoff: f32,
        /// How many good steps in a row are enough.
        interval: u64,
        /// Below this the scale does not go; a sum that is not finite then is an error.
        least: f32,
        /// Above this the scale does not go.
        most: f32,
    },
}

impl Default for LossScale {
    /// As PyTorch's `GradScaler`: from 2^16, twice as much after 2000 good steps, half of it after a skipped one; from 1 to 2^24.
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
    /// What is wrong with its numbers.
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

/// `dynamic from 65536 (times 2 after 2000 good steps, 0.5 after a skipped one; 1 to 16777216)`.
impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As f64, which shows all digits.
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

/// A power of two that stays one when multiplied by another one, or by the size of a batch.
fn is_power_of_two(x: f32) -> bool {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    x.to_bits() & 0x007f_ffff == 0 && (-60..=60).contains(&exponent)
}

/// The loss scale of a run, and how it came about: a part of the run's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// How it changes.
    pub setting: LossScale,
    /// The scale of the next step.
    pub scale: f32,
    /// Good steps since it changed.
    pub good: u64,
    /// Steps skipped so far, because a summed gradient was not finite.
    pub skipped: u64,
}

impl Scaling {
    pub(crate) fn new(setting: LossScale) -> Self {
        Self { setting, scale: setting.initial(), good: 0, skipped: 0 }
    }

    /// What a run goes on with that had `saved`: that, or under another setting a scale from its start.
    pub(crate) fn resumed(self, saved: Option<Self>) -> Self {
        match saved {
            Some(saved) if saved.setting == self.setting => saved,
            Some(Self { skipped, .. }) => Self { skipped, ..self },
            None => self,
        }
    }

    /// The numbers of the next step: each sample's loss counts for one part of a full batch's mean, whose size is rounded up to a
    /// power of two.
    pub(crate) fn scalars(&self, global_batch: usize) -> [Scalar; 2] {
        let seed = self.scale / global_batch.next_power_of_two() as f32;
        [Scalar::new(SCALE, seed), Scalar::new(INVERSE, 1.0 / seed)]
    }

    /// A step has committed.
    pub(crate) fn went_well(&mut self) {
        let LossScale::Dynamic { growth, interval, most, .. } = self.setting else { return };
        self.good += 1;
        if self.good >= interval {
            self.scale = (self.scale * growth).min(most);
            self.good = 0;
        }
    }

    /// A summed gradient was not finite. Returns whether a smaller scale may help.
    pub(crate) fn overflowed(&mut self) -> bool {
        let LossScale::Dynamic { backoff, least, .. } = self.setting else { return false };
        if self.scale <= least {
            return false;
        }
        self.scale = (self.scale * backoff).max(least);
        self.good = 0;
        self.skipped += 1;
        true
    }

    /// The bytes that a digest of the state takes.
    pub(crate) fn digested(&self) -> Vec<u8> {
        let Self { scale, good, skipped, .. } = self;
        [scale.to_bits().to_le_bytes().as_slice(), &good.to_le_bytes(), &skipped.to_le_bytes()].concat()
    }
}

impl Trainer {
    /// The loss scale in mixed precision, and the steps that were skipped for it.
    pub fn scaling(&self) -> Option<&Scaling> {
        self.scaling.as_ref()
    }

    /// The numbers of the next step. Steps that a loss scale has skipped do not count for the optimizer.
    pub(crate) fn scalars(&self) -> Vec<Scalar> {
        let Some(scaling) = &self.scaling else { return self.parts.optimizer.scalars(self.step) };
        let mut scalars = self.parts.optimizer.scalars(self.step - scaling.skipped);
        scalars.extend(scaling.scalars(self.settings.global_batch));
        scalars
    }

    /// Whether a smaller loss scale may make a sum finite; the next step has it.
    pub(crate) fn backs_off(&mut self, sum: Option<NodeId>) -> bool {
        let is_scaled = sum.is_some_and(|sum| self.programs.train.depends_on(sum, SCALE));
        is_scaled && self.scaling.as_mut().is_some_and(Scaling::overflowed)
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
        assert!(scaling.overflowed());
        assert_eq!((scaling.scale, scaling.good, scaling.skipped), (4.0, 0, 1));
        assert!(scaling.overflowed() && scaling.overflowed());
        assert_eq!(scaling.scale, 0.5);
        assert!(!scaling.overflowed());
        assert!(!Scaling::new(LossScale::Fixed(8.0)).overflowed());
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
