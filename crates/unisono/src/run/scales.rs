//! The section `scales`: how large the inputs of a run are. A model is exported with it, so that a prediction
//! can tell of inputs that lack a transform.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unisono_data::{Batch, Field, Values};

use crate::compile::fields::WEIGHT;
use crate::run::section::Section;

/// The fewest values of a field in a batch whose scale is compared at all.
const FEWEST_OF_ALL: usize = 32;
/// The largest ratio of two batches' standard deviations that is not noted, as far as is known of their
/// transforms.
pub(crate) const MOST_RATIO: f64 = 8.0;
/// The fewest values of a field in a batch of whose scale a small difference counts.
const FEWEST_VALUES: usize = 256;

/// The scales of the f32 fields of the run's first samples, by name. It is empty before the first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Scales(pub BTreeMap<String, Scale>);

/// A checkpoint of an earlier version does not have it, and one before the first step does not need it.
impl Section for Scales {
    fn is_written(&self) -> bool {
        !self.0.is_empty()
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl Scales {
    /// Returns the scale of each f32 field in some rows of a batch, unless a value is not finite.
    pub fn of(batch: &Batch, rows: Range<usize>) -> Self {
        let fields = batch.stacked.fields().filter(|(name, _)| &***name != WEIGHT);
        let own = batch.rows();
        let rows = rows.start.max(own.start) - own.start..rows.end.clamp(own.start, own.end) - own.start;
        let scale = |(name, field): (&Arc<str>, &Field)| {
            let Values::F32(values) = &field.values else { return None };
            let row = field.shape.iter().skip(1).product::<usize>();
            let values = values.get(rows.start * row..rows.end * row)?;
            Some((name.to_string(), Scale::of(values)))
        };
        Self(fields.filter_map(scale).filter(|(_, scale)| scale.size().is_finite()).collect())
    }
}

/// The mean and the standard deviation of some values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
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

    /// Returns whether there are enough values for a comparison.
    pub fn is_enough(&self) -> bool {
        self.values >= FEWEST_OF_ALL
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
