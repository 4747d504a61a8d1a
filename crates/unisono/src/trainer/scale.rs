//! How large some values are.

use std::fmt;

/// The fewest values of a field in a batch whose scale is compared at all.
const FEWEST_OF_ALL: usize = 32;
/// The fewest values of a field in a batch of whose scale a small difference counts.
const FEWEST_VALUES: usize = 256;

/// The mean and the standard deviation of some values.
pub(super) struct Scale {
    values: usize,
    mean: f64,
    deviation: f64,
}

impl Scale {
    pub fn of(values: &[f32]) -> Self {
        let mean = |of: &dyn Fn(f64) -> f64| {
            values.iter().map(|x| of(f64::from(*x))).sum::<f64>() / values.len().max(1) as f64
        };
        let middle = mean(&|x| x);
        Self { values: values.len(), mean: middle, deviation: mean(&|x| (x - middle).powi(2)).sqrt() }
    }

    /// Returns how far the values are from 0.
    pub fn size(&self) -> f64 {
        self.mean.abs().max(self.deviation)
    }

    /// Returns whether the deviation is other by this ratio, or the mean is many deviations away. Of few
    /// values only a large difference counts.
    pub fn is_other(&self, known: &Self, most: f64, most_of_few: f64) -> bool {
        let (few, widest) = (self.values.min(known.values), self.deviation.max(known.deviation));
        let most = if few < FEWEST_VALUES { most.max(most_of_few) } else { most };
        let ratio = widest / self.deviation.min(known.deviation);
        let apart = (self.mean - known.mean).abs() / widest;
        let is_far = |ratio: f64, most: f64| ratio.is_finite() && ratio >= most;
        few >= FEWEST_OF_ALL && (is_far(ratio, most) || is_far(apart, most_of_few))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} +- {:.3}", self.mean, self.deviation)
    }
}
