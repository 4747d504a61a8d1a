//! Ends a run that gets no better.

use crate::{Better, Callback, Control, Epoch, Error, Influence};

/// Ends a run that does not improve (Keras's and Lightning's `EarlyStopping`): after `patience` epochs in a
/// row in which the monitored value was not better than the best so far.
///
/// The value is the loss or a metric, from the validation data if there are any, otherwise from the training
/// data. From the first epoch with validation values on, epochs without them are ignored. Epochs in which the
/// value is NaN are ignored. The decision depends on the run's history only, which every checkpoint contains.
/// A resumed run therefore stops where the original run would have stopped.
///
/// ```
/// use unisono::{Accuracy, Dense, EarlyStopping, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10))
///     .metric(Accuracy::new())
///     .callback(EarlyStopping::highest("accuracy").patience(3).restore_best());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    watched: String,
    highest: bool,
    patience: u32,
    min_delta: f64,
    start_from_epoch: u32,
    restore_best: bool,
}

/// What a history says: the epoch that was the best, and how many in a row were no better after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Judgement {
    best: Option<u32>,
    no_better: u32,
}

impl EarlyStopping {
    /// Monitors `"loss"` or a named metric that should decrease. Defaults match Keras: patience 0, min_delta
    /// 0, start at epoch 0, keep the last weights.
    pub fn lowest(watched: &str) -> Self {
        Self {
            watched: watched.to_owned(),
            highest: false,
            patience: 0,
            min_delta: 0.0,
            start_from_epoch: 0,
            restore_best: false,
        }
    }

    /// Monitors a named metric that should increase, such as an accuracy. The defaults are those of
    /// [`EarlyStopping::lowest`].
    pub fn highest(watched: &str) -> Self {
        Self { highest: true, ..Self::lowest(watched) }
    }

    /// Sets the number of epochs in a row without improvement after which the run ends: with 3, it ends
    /// after the third of them. Default: 0, which means the same as 1.
    pub fn patience(self, epochs: u32) -> Self {
        Self { patience: epochs, ..self }
    }

    /// Sets by how much a value must differ from the best so far to count as an improvement (Keras's
    /// `min_delta`). Default: 0.
    pub fn min_delta(self, difference: f64) -> Self {
        Self { min_delta: difference, ..self }
    }

    /// Sets the first epoch that counts, from 0 (Keras's `start_from_epoch`). Default: 0.
    pub fn start_from_epoch(self, epoch: u32) -> Self {
        Self { start_from_epoch: epoch, ..self }
    }

    /// Keeps the weights of the best epoch, in the host's memory and in checkpoints, and restores them when
    /// this callback stops the run (Keras's `restore_best_weights`). If all epochs are done first, the
    /// weights are those of the last epoch, and observers are told: a fit over more epochs then continues
    /// as one over all of them would. Keras 3 restores the best ones then too; here you call
    /// [`Trainer::restore_kept_weights`](crate::Trainer::restore_kept_weights). Default: the weights are not
    /// kept.
    #[doc(alias = "restore_best_weights")]
    pub fn restore_best(self) -> Self {
        Self { restore_best: true, ..self }
    }

    /// Judges a history. If any epoch has validation values, epochs without them are ignored. Only
    /// epochs that end after step `from` count as no better.
    fn judge(&self, history: &[Epoch], from: u64) -> Result<Judgement, String> {
        let (mut best, mut judgement) = (None, Judgement::default());
        let is_validated = history.iter().any(|epoch| epoch.validation.is_some());
        let counts = |epoch: &&Epoch| {
            epoch.epoch >= self.start_from_epoch && epoch.validation.is_some() == is_validated
        };
        for epoch in history.iter().filter(counts) {
            let value = self.value(epoch)?;
            if value.is_nan() {
                continue;
            }
            if best.is_none_or(|best| self.is_better(value, best)) {
                best = Some(value);
                judgement = Judgement { best: Some(epoch.epoch), no_better: 0 };
            } else if epoch.steps > from {
                judgement.no_better += 1;
            }
        }
        Ok(judgement)
    }

    fn is_better(&self, value: f64, best: f64) -> bool {
        if self.highest { value - self.min_delta > best } else { value + self.min_delta < best }
    }

    /// Returns the watched quantity of an epoch.
    fn value(&self, epoch: &Epoch) -> Result<f64, String> {
        epoch.watched(&self.watched).map_err(|problem| format!("it watches {problem}"))
    }

    fn direction(&self) -> &'static str {
        if self.highest { "highest" } else { "lowest" }
    }
}

impl Callback for EarlyStopping {
    fn awaits_steps(&self) -> bool {
        false
    }

    fn name(&self) -> &str {
        "early stopping"
    }

    fn influence(&self) -> Influence {
        let Self { watched, patience, min_delta, start_from_epoch, restore_best, .. } = self;
        Influence::By(format!(
            "{} {watched:?}, patience {patience}, least difference {min_delta}, from epoch {start_from_epoch}, \
             restores the best: {restore_best}",
            self.direction()
        ))
    }

    fn watches(&self) -> Option<(&str, Better)> {
        Some((&self.watched, if self.highest { Better::Higher } else { Better::Lower }))
    }

    fn check(&self, example: &Epoch) -> Result<(), String> {
        let difference = self.min_delta;
        if !difference.is_finite() || difference < 0.0 {
            return Err(format!("the least difference is {difference}, and must be finite and not negative"));
        }
        self.value(example).map(drop)
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        let judged = self.judge(run.history(), run.gone_on());
        let Judgement { best, no_better } =
            judged.map_err(|problem| Error::setting("early stopping", problem))?;
        if self.restore_best && best == Some(epoch.epoch) {
            run.keep_weights()?;
        }
        if no_better < self.patience.max(1) {
            return Ok(());
        }
        let best = best.map_or("there is none".to_owned(), |best| format!("that was epoch {best}"));
        let (watched, direction) = (&self.watched, self.direction());
        let reason =
            format!("{no_better} epochs were no better than the {direction} {watched:?} so far; {best}");
        let restored = self.restore_best && run.restore_weights()?;
        run.stop(&if restored { format!("{reason}, whose weights are restored") } else { reason });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evaluation;

    fn history(losses: &[f64]) -> Vec<Epoch> {
        let mut history = vec![Epoch::default(); losses.len()];
        for (number, (epoch, &loss)) in history.iter_mut().zip(losses).enumerate() {
            (epoch.epoch, epoch.steps, epoch.train.loss) = (number as u32, 3 * (number as u64 + 1), loss);
        }
        history
    }

    /// Returns the first epoch at whose end a run of these losses is stopped.
    fn stops(stopping: &EarlyStopping, losses: &[f64]) -> Option<usize> {
        let ends = |&n: &usize| {
            let judged = stopping.judge(&history(&losses[..=n]), 0).unwrap();
            judged.no_better >= stopping.patience.max(1)
        };
        (0..losses.len()).find(ends)
    }

    /// Validation losses are above those of training. They are compared with each other.
    #[test]
    fn validation_losses_are_not_compared_with_training_losses() {
        let mut all = history(&[0.1, 0.05, 0.04, 0.03, 0.02]);
        for (epoch, loss) in all[2..].iter_mut().zip([0.4, 0.3, 0.35]) {
            epoch.validation = Some(Evaluation { loss, ..Evaluation::default() });
        }
        let stopping = EarlyStopping::lowest("loss");
        let judged = |epochs: usize| stopping.judge(&all[..epochs], 0).unwrap();
        let judgement = |best, no_better| Judgement { best: Some(best), no_better };
        let expected = [judgement(1, 0), judgement(2, 0), judgement(3, 0), judgement(3, 1)];
        assert_eq!([2, 3, 4, 5].map(judged), expected);
        // Later epochs without validation samples do not count.
        let later = [all.clone(), history(&[0.01])].concat();
        assert_eq!(stopping.judge(&later, 0).unwrap(), judgement(3, 1));
    }

    /// The numbers are what Keras 3 does with the same arguments.
    #[test]
    fn it_stops_where_keras_does() {
        let losses = [1.0, 0.5, 0.6, 0.4, 0.45, 0.44, 0.39999, 0.5, 0.5, 0.5];
        let stopping = |patience| EarlyStopping::lowest("loss").patience(patience);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| stops(&stopping(n), &losses)),
            [Some(2), Some(2), Some(5), Some(9), None]
        );
        assert_eq!(stops(&stopping(3).min_delta(0.001), &losses), Some(6));
        assert_eq!(stops(&stopping(1).start_from_epoch(2), &losses), Some(4));
        let rising = EarlyStopping::highest("loss").patience(2);
        assert_eq!(stops(&rising, &losses), Some(2));
    }

    #[test]
    fn epochs_count_anew_after_an_end() {
        let history = history(&[1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.4]);
        let judged = |epochs: usize| EarlyStopping::lowest("loss").judge(&history[..epochs], 12).unwrap();
        assert_eq!([4, 5, 6, 7].map(|epochs| judged(epochs).no_better), [0, 1, 2, 0]);
        assert_eq!([4, 6, 7].map(|epochs| judged(epochs).best), [Some(1), Some(1), Some(6)]);
    }

    #[test]
    fn a_nan_is_passed_over() {
        let nan = f64::NAN;
        let stopping = EarlyStopping::lowest("loss").patience(2);
        assert_eq!(stops(&stopping, &[nan, nan, nan, 1.0]), None);
        assert_eq!(stops(&stopping, &[nan, 1.0, nan, 0.5, nan, nan, 0.25]), None);
        assert_eq!(stops(&stopping, &[1.0, nan, 2.0, nan, nan, 3.0]), Some(5));
        let judged = stopping.judge(&history(&[nan, 1.0, nan, 2.0]), 0).unwrap();
        assert_eq!(judged, Judgement { best: Some(1), no_better: 1 });
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let example = Epoch::default();
        let problem = EarlyStopping::lowest("f1").check(&example).unwrap_err();
        assert!(problem.starts_with("it watches \"f1\", but there is only loss"), "{problem}");
        assert!(!problem.ends_with(' '), "{problem:?}");
        for difference in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(EarlyStopping::lowest("loss").min_delta(difference).check(&example).is_err());
        }
    }
}
