//! Finds a learning rate to begin with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::{Callback, Control, Error, Influence, Step};

/// Searches for a learning rate (Smith 2015, "Cyclical Learning Rates"; Lightning's and fastai's `lr_find`).
/// It raises the rate exponentially from step to step, and records the loss of each step. Afterwards, train
/// with another trainer: this one has been trained with growing rates.
///
/// It ends the run after its steps, or when the loss is more than four times the lowest so far. If the lowest
/// loss is not above 0, it ends the run when the loss exceeds it by more than three times the size of the
/// lowest or of the first loss, whichever is larger. A step that changed no parameter ([`Step::committed`]),
/// such as one whose samples all have weight 0, does not count, and the next step tries its rate again.
/// Checkpoints contain the results so far, and a resumed run tries the rest.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let train = unisono::data::Loader::new(unisono::data::Memory::labelled([0.0; 64], [64], [0])?);
/// use unisono::{Dense, LearningRateFinder, Trainer};
///
/// let (finder, found) = LearningRateFinder::new(1e-6, 1.0, 100);
/// let mut trainer = Trainer::builder(Dense::new(10)).callback(finder).build(&train.fields()?)?;
/// trainer.fit(&train, None, u32::MAX)?;
/// println!("{:?}", found.suggestion());
/// # Ok(())
/// # }
/// ```
///
/// A run with [`Phase`](crate::Phase)s is refused, because each phase has a loss and a learning rate of its
/// own.
#[derive(Debug)]
pub struct LearningRateFinder {
    lowest: f64,
    highest: f64,
    steps: u64,
    found: RateLosses,
}

/// The learning rates that a [`LearningRateFinder`] has tried, each with the loss of its step. Clones share
/// one list.
#[derive(Clone, Debug, Default)]
pub struct RateLosses(Arc<Mutex<Found>>);

/// What a search has found.
#[derive(Debug, Default)]
struct Found {
    /// The learning rate and the loss of each step.
    tried: Vec<(f64, f64)>,
    /// Whether all rates were tried, or the loss grew.
    is_over: bool,
}

/// By how many times its size the lowest loss so far may be exceeded.
const DIVERGED: f64 = 3.0;

/// The share of the earlier losses in a smoothed loss.
const SMOOTHING: f64 = 0.9;

impl LearningRateFinder {
    /// Creates a finder that goes from the lowest to the highest rate in `steps` steps. Returns it with the
    /// list of its results. Lightning's defaults are 1e-8, 1 and 100.
    pub fn new(lowest: f64, highest: f64, steps: u64) -> (Self, RateLosses) {
        let found = RateLosses::default();
        (Self { lowest, highest, steps, found: found.clone() }, found)
    }

    /// Returns why the search is over after these rates, if it is.
    fn is_over(&self, tried: &[(f64, f64)]) -> Option<&'static str> {
        let before = tried.len().saturating_sub(1);
        if !tried.is_empty() && before.saturating_sub(1) as u64 + 1 >= self.steps {
            return Some("all rates were tried");
        }
        has_diverged(tried).then_some("the loss grows")
    }

    /// Returns one of the rates, 0 being the first.
    fn rate(&self, number: u64) -> f64 {
        let share = number as f64 / (self.steps.max(2) - 1) as f64;
        self.lowest * libm::pow(self.highest / self.lowest, share)
    }

    /// Returns the rate of a step, 0 being the finder's first. It is set two steps before, so the first two
    /// steps have the same.
    fn rate_of(&self, step: usize) -> f64 {
        self.rate(step.saturating_sub(1) as u64)
    }
}

impl RateLosses {
    /// Returns the learning rate and the loss of each step, in order.
    pub fn all(&self) -> Vec<(f64, f64)> {
        self.found().tried.clone()
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rate at which the smoothed loss fell most steeply, over the logarithm of the rate. It
    /// compares points a tenth of the steps before and after, up to the lowest smoothed loss, and ignores the
    /// first tenth of the steps. `None` before the search is over, as after a fit of too few epochs, and if
    /// there are too few steps or the loss never fell.
    pub fn suggestion(&self) -> Option<f64> {
        if !self.found().is_over {
            return None;
        }
        let all = self.all();
        let mut smoothed = Vec::with_capacity(all.len());
        let mut mean = 0.0;
        for (step, (_, loss)) in all.iter().enumerate() {
            mean = SMOOTHING * mean + (1.0 - SMOOTHING) * loss;
            // The mean begins with 0, which counts for less and less.
            smoothed.push(mean / (1.0 - libm::pow(SMOOTHING, (step + 1) as f64)));
        }
        let around = (all.len() / 10).max(1);
        let lowest = (0..smoothed.len()).min_by(|&a, &b| smoothed[a].total_cmp(&smoothed[b]))?;
        let fall = |at: usize| smoothed[at - around] - smoothed[at + around];
        let within = 2 * around..(lowest + 1).min(smoothed.len().saturating_sub(around));
        let steepest = within.max_by(|&a, &b| fall(a).total_cmp(&fall(b)))?;
        (fall(steepest) > 0.0).then(|| all[steepest].0)
    }
}

/// Returns whether the last loss is far above the lowest.
fn has_diverged(found: &[(f64, f64)]) -> bool {
    let losses = || found.iter().map(|(_, loss)| *loss);
    let lowest = losses().fold(f64::INFINITY, f64::min);
    // A loss around 0 may be many times another and yet near it, so the first one says what is far.
    let first = if lowest > 0.0 { None } else { losses().find(|loss| *loss != 0.0) };
    let size = first.map_or(lowest.abs(), |first| first.abs().max(lowest.abs()));
    losses().next_back().is_some_and(|last| last > lowest + DIVERGED * size)
}

impl Callback for LearningRateFinder {
    fn name(&self) -> &str {
        "learning rate finder"
    }

    fn influence(&self) -> Influence {
        let Self { lowest, highest, steps, .. } = self;
        Influence::By(format!("from {lowest} to {highest} in {steps} steps"))
    }

    fn check(&self, _: &crate::Epoch) -> Result<(), String> {
        let Self { lowest, highest, steps, .. } = self;
        if *lowest > 0.0 && lowest < highest && highest.is_finite() && *steps > 1 {
            return Ok(());
        }
        Err(format!(
            "from {lowest} to {highest} in {steps} steps: it needs 0 < lowest < highest, and two steps"
        ))
    }

    /// Returns the bits of the losses so far, of which some may be no JSON numbers.
    fn state(&self) -> Value {
        self.found.all().iter().map(|(_, loss)| Value::from(loss.to_bits())).collect()
    }

    fn restore(&mut self, state: &Value) -> Result<(), String> {
        let losses: Option<Vec<u64>> =
            state.as_array().and_then(|losses| losses.iter().map(Value::as_u64).collect());
        let losses = losses.ok_or("the losses of the rates that were tried are not in the checkpoint")?;
        let losses = losses.into_iter().map(f64::from_bits).enumerate();
        let tried: Vec<_> = losses.map(|(step, loss)| (self.rate_of(step), loss)).collect();
        let is_over = self.is_over(&tried).is_some();
        *self.found.found() = Found { tried, is_over };
        Ok(())
    }

    fn fit_begins(&mut self, run: &mut Control<'_>) -> Result<(), Error> {
        if !run.phases().is_empty() {
            let problem =
                "phases have losses and learning rates of their own: search in a run without phases";
            return Err(Error::setting("learning rate finder", problem));
        }
        // The rates of a run that goes on are set.
        if self.found.all().is_empty() { run.set_learning_rate(self.rate(0)) } else { Ok(()) }
    }

    fn step_ended(&mut self, step: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        // The loss of such a step says nothing of its rate, and the optimizer does not count it.
        if !step.committed {
            return Ok(());
        }
        let mut found = self.found.found();
        let tried = found.tried.len();
        found.tried.push((self.rate_of(tried), step.now.loss));
        let over = self.is_over(&found.tried);
        found.is_over = over.is_some();
        drop(found);
        if let Some(why) = over {
            run.stop(why);
            return Ok(());
        }
        run.set_learning_rate(self.rate(tried as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steepest_fall_is_suggested() {
        let found = RateLosses::default();
        assert_eq!(found.suggestion(), None);
        // Falls most steeply around 0.01 and rises from 0.1 on.
        let loss = |exponent: f64| {
            2.0 - 1.0 / (1.0 + (-3.0 * (exponent + 2.0)).exp()) + (exponent + 1.0).max(0.0).powi(2)
        };
        let rates = (0..100).map(|i| -6.0 + 6.0 * f64::from(i) / 99.0);
        let tried = rates.map(|e| (10_f64.powf(e), loss(e))).collect();
        *found.found() = Found { tried, is_over: false };
        assert_eq!(found.suggestion(), None, "the search goes on");
        found.found().is_over = true;
        let rate = found.suggestion().unwrap();
        assert!((0.005..0.05).contains(&rate), "{rate}");
        found.found().tried = vec![(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)];
        assert_eq!(found.suggestion(), None);
    }

    #[test]
    fn a_run_has_diverged_far_above_its_lowest_loss() {
        let diverged = |losses: &[f64]| {
            let found: Vec<(f64, f64)> = losses.iter().map(|&loss| (0.1, loss)).collect();
            has_diverged(&found)
        };
        for (losses, expected) in [
            (&[1.0, 0.25, 1.0][..], false),
            (&[1.0, 0.25, 1.01], true),
            (&[1.0, -1.0], false),
            (&[-1.0, -1.0, -0.5, 2.0], false),
            (&[-1.0, -1.0, -0.5, 2.01], true),
            (&[2.0, -1e-9, 1e-3, 5.9], false),
            (&[2.0, -1e-9, 1e-3, 6.1], true),
            (&[0.0], false),
            (&[0.0, 0.5, 1.5], false),
            (&[0.0, 0.5, 1.6], true),
        ] {
            assert_eq!(diverged(losses), expected, "{losses:?}");
        }
    }

    #[test]
    fn rates_rise_from_the_lowest_to_the_highest() {
        let (finder, _) = LearningRateFinder::new(1e-6, 1.0, 7);
        let rates: Vec<f64> = (0..7).map(|step| finder.rate(step)).collect();
        assert!(
            rates.iter().enumerate().all(|(i, rate)| (rate / 10_f64.powi(i as i32 - 6) - 1.0).abs() < 1e-12)
        );
        assert!(LearningRateFinder::new(1.0, 0.1, 7).0.check(&crate::Epoch::default()).is_err());
    }
}
