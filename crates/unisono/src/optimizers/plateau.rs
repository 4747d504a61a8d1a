//! Learning rates that are reduced when a run stops improving.

use super::schedule::RateReduction;
use super::settings::not_negative;
use crate::objective::Epoch;
use crate::objective::metrics::Better;

/// When a schedule lowers the learning rate: after epochs in which a monitored value did not improve
/// (PyTorch's `ReduceLROnPlateau`, with its defaults). Keras counts one epoch of patience less, and its
/// threshold is [`Plateau::absolute_threshold`].
///
/// The value is the loss or a metric, from the validation data if there are any, otherwise from the training
/// data. From the first epoch with validation values on, epochs without them are ignored. Epochs in which the
/// value is NaN are ignored. The reductions depend on the run's history only, which every checkpoint
/// contains. A resumed run therefore continues as the original would have.
///
/// ```
/// use unisono::{Plateau, Schedule, Sgd};
///
/// let plateau = Plateau::lowest("loss").patience(3).factor(0.5);
/// let optimizer = Sgd::new(Schedule::constant(0.1).reduce_on(plateau));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    watched: String,
    highest: bool,
    factor: f64,
    patience: u32,
    threshold: f64,
    /// Whether the threshold is a distance, not a share of the best value.
    is_absolute: bool,
    cooldown: u32,
    least: f64,
}

impl Plateau {
    /// Monitors `"loss"` or a named metric that should decrease. Defaults match PyTorch: factor 0.1, patience
    /// 10 epochs, threshold 1e-4, cooldown 0, minimum learning rate 0.
    pub fn lowest(watched: &str) -> Self {
        Self {
            watched: watched.into(),
            highest: false,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            is_absolute: false,
            cooldown: 0,
            least: 0.0,
        }
    }

    /// Monitors a named metric that should increase, such as an accuracy. The defaults are those of
    /// [`Plateau::lowest`].
    pub fn highest(watched: &str) -> Self {
        Self { highest: true, ..Self::lowest(watched) }
    }

    /// Sets the factor by which each reduction multiplies the learning rate, in [0, 1). Default: 0.1.
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// Sets how many epochs in a row may pass without improvement before a reduction. Default: 10.
    pub fn patience(self, epochs: u32) -> Self {
        Self { patience: epochs, ..self }
    }

    /// Sets by how much a value must improve on the best so far, as a fraction of the best (PyTorch's
    /// `threshold_mode="rel"`). For negative values, the fraction is that of the magnitude, so an equal value
    /// is never an improvement; in PyTorch it is. Default: 1e-4.
    pub fn threshold(mut self, share: f64) -> Self {
        (self.threshold, self.is_absolute) = (share, false);
        self
    }

    /// Sets by how much a value must improve on the best so far, as a difference instead of a fraction
    /// (PyTorch's `threshold_mode="abs"`, Keras's `min_delta`). Use it for values around 0. Default: a
    /// fraction, see [`Plateau::threshold`].
    #[doc(alias("threshold_mode", "min_delta"))]
    pub fn absolute_threshold(mut self, distance: f64) -> Self {
        (self.threshold, self.is_absolute) = (distance, true);
        self
    }

    /// Sets how many epochs after a reduction are not counted. Default: 0.
    pub fn cooldown(self, epochs: u32) -> Self {
        Self { cooldown: epochs, ..self }
    }

    /// Sets the minimum learning rate. Default: 0.
    pub fn least(self, lr: f64) -> Self {
        Self { least: lr, ..self }
    }

    /// Returns how many reductions a run of this history has had.
    ///
    /// # Errors
    /// The watched quantity is not measured, or a setting cannot work; the error is the message.
    pub(crate) fn reductions(&self, history: &[Epoch]) -> Result<u32, String> {
        if !(0.0..1.0).contains(&self.factor) {
            return Err(format!("a plateau's factor {} is not in [0, 1)", self.factor));
        }
        for (setting, value) in [("threshold", self.threshold), ("least learning rate", self.least)] {
            not_negative(&format!("a plateau's {setting}"), value)?;
        }
        let (mut best, mut bad, mut cooling, mut reductions) = (None, 0, 0, 0);
        let mut is_validated = false;
        for epoch in history {
            let has_validation = epoch.validation.is_some();
            if is_validated && !has_validation {
                continue;
            }
            if has_validation && !is_validated {
                (best, bad, is_validated) = (None, 0, true);
            }
            let value = self.value(epoch)?;
            if value.is_nan() {
                continue;
            }
            if best.is_none_or(|best| self.is_better(value, best)) {
                (best, bad) = (Some(value), 0);
            } else {
                bad += 1;
            }
            if cooling > 0 {
                (cooling, bad) = (cooling - 1, 0);
            }
            if bad > self.patience {
                (reductions, cooling, bad) = (reductions + 1, self.cooldown, 0);
            }
        }
        Ok(reductions)
    }

    /// Returns what is watched, and which of its values count as better.
    pub(crate) fn watches(&self) -> (&str, Better) {
        (&self.watched, if self.highest { Better::Higher } else { Better::Lower })
    }

    /// Returns the plateau as text, with all its numbers.
    pub(crate) fn describe(&self) -> String {
        let Self { watched, highest, factor, patience, threshold, is_absolute, cooldown, least } = self;
        let best = if *highest { "highest" } else { "lowest" };
        let mode = if *is_absolute { "absolute threshold" } else { "threshold" };
        format!(
            "a plateau of the {best} {watched:?} (factor {factor}, patience {patience}, {mode} {threshold}, \
             cooldown {cooldown}, least {least})"
        )
    }

    /// Returns what this number of reductions does to a learning rate.
    pub(crate) fn reduction(&self, times: u32) -> RateReduction {
        RateReduction { factor: self.factor, least: self.least, times }
    }

    /// Returns whether a value is better than the best by more than the threshold.
    fn is_better(&self, value: f64, best: f64) -> bool {
        let threshold = if self.highest { self.threshold } else { -self.threshold };
        let bar = match (self.is_absolute, best < 0.0) {
            (true, _) => best + threshold,
            (false, false) => best * (1.0 + threshold),
            // A share of a negative number has the other sign.
            (false, true) => best * (1.0 - threshold),
        };
        if self.highest { value > bar } else { value < bar }
    }

    /// Returns the watched quantity of an epoch.
    fn value(&self, epoch: &Epoch) -> Result<f64, String> {
        epoch.watched(&self.watched).map_err(|problem| format!("a plateau of {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, Chain, Evaluation, Groups, Optimizer, Schedule, Sgd};

    fn history(losses: &[f64]) -> Vec<Epoch> {
        let epoch = |(i, &loss): (usize, &f64)| {
            let metrics = vec![("accuracy".to_owned(), 1.0 - loss)];
            let train = Evaluation { loss, metrics, samples: 1, ..Evaluation::default() };
            Epoch { epoch: i as u32, steps: 0, train, validation: None }
        };
        losses.iter().enumerate().map(epoch).collect()
    }

    fn reductions(plateau: &Plateau, losses: &[f64]) -> Vec<u32> {
        (0..=losses.len()).map(|n| plateau.reductions(&history(&losses[..n])).unwrap()).collect()
    }

    #[test]
    fn patience_runs_out_after_so_many_bad_epochs_and_one() {
        let plateau = Plateau::lowest("loss").patience(2);
        let losses = [1.0, 0.9, 0.95, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8];
        assert_eq!(reductions(&plateau, &losses), [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]);
        let rising = Plateau::highest("accuracy").patience(2);
        assert_eq!(reductions(&rising, &losses), [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]);
        // Better by less than the threshold is no better.
        let creeping = [1.0, 0.9997, 0.9994, 0.9991];
        assert_eq!(reductions(&plateau, &creeping), [0; 5]);
        assert_eq!(reductions(&plateau.clone().threshold(1e-3), &creeping), [0, 0, 0, 0, 1]);
        assert_eq!(reductions(&plateau.cooldown(3), &losses), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_plateau_begins_again_with_validation_samples() {
        let plateau = Plateau::lowest("loss").patience(0);
        let mut all = history(&[0.1, 0.1, 0.05, 0.05, 0.05]);
        for (epoch, loss) in all[2..].iter_mut().zip([0.4, 0.3, 0.35]) {
            epoch.validation = Some(Evaluation { loss, ..Evaluation::default() });
        }
        let reductions = |epochs: usize| plateau.reductions(&all[..epochs]).unwrap();
        assert_eq!([1, 2, 3, 4, 5].map(reductions), [0, 1, 1, 1, 2]);
    }

    /// A share of a negative value is that of its size: an equal or a slightly worse value is not better.
    #[test]
    fn negative_quantities_end_on_a_plateau_too() {
        let plateau = Plateau::lowest("loss").patience(0);
        assert_eq!(reductions(&plateau, &[-1.0; 3]), [0, 0, 1, 2]);
        assert_eq!(reductions(&plateau, &[-1.0, -0.99995, -1.00005, -1.01]), [0, 0, 1, 2, 2]);
        assert_eq!(reductions(&plateau, &[0.5, 0.0, -0.5, -0.5]), [0, 0, 0, 0, 1]);
        // The accuracy is 1 minus the loss.
        let highest = Plateau::highest("accuracy").patience(0);
        assert_eq!(reductions(&highest, &[2.0, 2.0, 1.99995, 1.5]), [0, 0, 1, 2, 2]);
    }

    #[test]
    fn an_absolute_threshold_is_a_distance() {
        let plateau = Plateau::lowest("loss").patience(0).absolute_threshold(0.25);
        assert_eq!(reductions(&plateau, &[8.0, 7.875, 7.5, 0.25, 0.0, -0.25]), [0, 0, 1, 1, 1, 2, 2]);
        let highest = Plateau::highest("accuracy").patience(0).absolute_threshold(0.25);
        assert_eq!(reductions(&highest, &[8.0, 7.875, 7.5, 0.25, 0.0, -0.25]), [0, 0, 1, 1, 1, 2, 2]);
        // Runs without an absolute threshold are described as before there was one.
        let share = "factor 0.1, patience 10, threshold 0.5, cooldown 0, least 0)";
        let plateau = Plateau::lowest("loss").absolute_threshold(0.5);
        let texts = [&plateau, &plateau.clone().threshold(0.5)].map(Plateau::describe);
        assert_eq!(texts[1], format!("a plateau of the lowest \"loss\" ({share}"));
        assert_eq!(texts[0], texts[1].replace("threshold", "absolute threshold"));
        let problem = plateau.absolute_threshold(-0.5).reductions(&[]).unwrap_err();
        assert_eq!(problem, "a plateau's threshold is -0.5, and must be finite and not negative");
    }

    #[test]
    fn settings_that_are_no_numbers_are_refused() {
        let plateau = || Plateau::lowest("loss");
        for (plateau, problem) in [
            (plateau().factor(f64::NAN), "a plateau's factor NaN is not in [0, 1)"),
            (plateau().threshold(f64::NAN), "a plateau's threshold is NaN, and must be finite"),
            (plateau().least(f64::NAN), "a plateau's least learning rate is NaN, and must be finite"),
            (plateau().least(1e300), "a plateau's least learning rate is 1000"),
        ] {
            let error = plateau.reductions(&[]).unwrap_err();
            assert!(error.starts_with(problem), "{problem:?}: {error}");
        }
    }

    #[test]
    fn what_is_no_number_is_passed_over() {
        let plateau = Plateau::lowest("loss").patience(1);
        let losses = [f64::NAN, 1.0, 0.5, f64::NAN, 0.25, f64::NAN, f64::NAN, 0.1];
        assert_eq!(reductions(&plateau, &losses), [0; 9]);
        let worse = [1.0, f64::NAN, 2.0, f64::NAN, f64::NAN, 2.0];
        assert_eq!(reductions(&plateau, &worse), [0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(reductions(&plateau, &[f64::NAN; 2]), [0, 0, 0]);
        assert_eq!(reductions(&plateau, &[f64::INFINITY, 1.0, 2.0, 0.5]), [0; 5]);
    }

    #[test]
    fn it_scales_any_schedule_down_to_the_least() {
        let plateau = Plateau::lowest("loss").patience(0).factor(0.5).least(0.02);
        let mut schedule = Schedule::step(0.1, 10, 0.1).reduce_on(plateau);
        assert_eq!(schedule.at(0), 0.1);
        schedule.observe(&history(&[1.0, 1.0])).unwrap();
        assert_eq!((schedule.at(0), schedule.at(10)), (0.05, 0.1 * 0.1));
        schedule.observe(&history(&[1.0; 9])).unwrap();
        assert_eq!(schedule.at(0), 0.02);
        schedule.observe(&[]).unwrap();
        assert_eq!(schedule.at(0), 0.1, "nothing but the history counts");
    }

    #[test]
    fn wrappers_and_groups_pass_it_on() {
        let plateau = || Schedule::constant(0.5).reduce_on(Plateau::lowest("loss").patience(0));
        let wrapped = AdamW::new(1.0).no_decay_for_biases_and_norms().clip_norm(1.0).clip_value(1.0);
        let groups = Groups::new(wrapped).group(|_| true, Sgd::new(plateau()).freeze(|_| false));
        let mut optimizer = Chain::from(groups);
        let before = optimizer.scalars(0);
        optimizer.observe(&history(&[1.0, 1.0])).unwrap();
        let after = optimizer.scalars(0);
        // The group's own learning rate comes last.
        let (last, rest) = after.split_last().unwrap();
        assert_eq!((rest, last.value, before[rest.len()].value), (&before[..rest.len()], 0.05, 0.5));
        let mut unknown = Sgd::new(Schedule::constant(0.5).reduce_on(Plateau::lowest("f1")));
        assert!(
            unknown
                .observe(&history(&[1.0]))
                .unwrap_err()
                .contains("\"f1\", but there is only loss accuracy")
        );
    }
}
