//! Notes on losses and metrics that are those of a constant guess, or that no guess could reach.

use std::collections::BTreeMap;

use unisono_data::{Batch, Values};
use unisono_graph::Type;

use crate::compile::objective::{LossOn, On};
use crate::compile::opposed::Opposed;
use crate::run::scales::Scale;
use crate::{Epoch, Evaluation, Step, Trainer};

/// The first loss of classes that is noted, by the loss of a guess.
const MOST_GUESSES: f64 = 8.0;
/// The mean or deviation of targets that is noted.
const MOST_TARGET: f64 = 1000.0;
/// The ratio of two losses of the first step that is noted.
const MOST_LOSSES: f64 = 1000.0;
/// The epochs after which a loss is compared with that of a guess.
const EPOCHS: u32 = 3;
/// The relative change of a loss from which on training has an effect.
const LEAST_CHANGE: f64 = 0.01;
/// The fewest targets whose variance is that of a guess, and the most that are summed.
const FEWEST_TARGETS: usize = 32;
const MOST_TARGETS: usize = 1 << 20;
/// The share of the most frequent class from which on an accuracy is compared with it.
const MOST_SHARE: f64 = 0.8;

/// Returns whether a loss is one of quantities, which have no classes.
fn is_of_quantities((loss, output): &(LossOn, Type)) -> bool {
    loss.loss.classes(output) == 0
}

/// How often each label occurs in an evaluation.
#[derive(Default)]
pub(super) struct LabelCounts {
    counts: BTreeMap<i32, u64>,
}

impl LabelCounts {
    /// Returns the most frequent label and its share.
    fn most(&self) -> Option<(i32, f64)> {
        let all: u64 = self.counts.values().sum();
        let (label, count) = self.counts.iter().max_by_key(|(_, count)| **count)?;
        Some((*label, *count as f64 / all as f64))
    }
}

/// The sums of the first targets that were trained on.
#[derive(Default)]
pub(super) struct TargetSums {
    values: usize,
    sum: f64,
    squares: f64,
}

impl TargetSums {
    fn add(&mut self, values: &[f32]) {
        for value in values.iter().take(MOST_TARGETS.saturating_sub(self.values)).map(|x| f64::from(*x)) {
            (self.values, self.sum) = (self.values + 1, self.sum + value);
            self.squares += value * value;
        }
    }

    fn variance(&self) -> Option<f64> {
        let mean = |sum: f64| sum / self.values as f64;
        let variance = mean(self.squares) - mean(self.sum).powi(2);
        (self.values >= FEWEST_TARGETS && variance > 0.0).then_some(variance)
    }
}

impl Trainer {
    /// Tells observers what no network gets near to: targets out of the range of the last activation, targets
    /// that are very large, and accuracies of quantities.
    pub(super) fn note_targets(&mut self, batch: &Batch) {
        let notes: Vec<String> =
            self.plan.programs.losses.iter().filter_map(|loss| self.note_on_targets(loss, batch)).collect();
        let notes = notes.iter().chain(&self.note_on_opposed(batch)).cloned().collect::<Vec<_>>();
        notes.iter().for_each(|note| self.monitor.note_once(&format!("note: {note}")));
    }

    /// Returns a note if one value is to have two targets, and both losses train the same parameters.
    fn note_on_opposed(&self, batch: &Batch) -> Option<String> {
        let Opposed { outputs, targets, parameter } = self.plan.programs.opposed.as_ref()?;
        let [first, second] = targets.each_ref().map(|target| batch.stacked.field(target));
        (first? != second?).then(|| {
            format!(
                "the outputs {:?} and {:?} are one value with different targets, and both losses train {parameter}, \
                 so they work against each other: in a GAN, detach() the critic's input in its own loss and apply \
                 the critic with Context::apply_frozen in the generator's, or use phases (Builder::phase)",
                outputs[0], outputs[1]
            )
        })
    }

    fn note_on_targets(&self, loss: &(LossOn, Type), batch: &Batch) -> Option<String> {
        let on = &loss.0.on;
        let target = on.target.as_deref()?;
        let Values::F32(values) = &batch.stacked.field(target)?.values else { return None };
        let mut metrics = self.plan.parts.objective().named_metrics();
        let counted = metrics.find(|(_, of, kind)| *of == on && *kind == "binary accuracy");
        let counted = counted.map(|(metric, ..)| metric.name());
        let is_share = |x: &f32| (0.0..=1.0).contains(x);
        let other = values.iter().find(|x| !is_share(x));
        if let Some((other, metric)) = other.zip(counted) {
            return Some(format!(
                "the metric {metric} takes targets from 0 to 1, but {target:?} has {other}: for a quantity, \
                 measure MeanAbsoluteError or R2"
            ));
        }
        if !is_of_quantities(loss) {
            return None;
        }
        let is_label = |x: &f32| [0.0, 1.0].contains(x);
        if let Some(metric) = counted
            && values.iter().all(is_label)
            && self.plan.programs.linear.contains(&on.output)
        {
            return Some(format!(
                "the metric {metric} counts outputs above 0 as a yes, but the loss {} trains them towards the \
                 0 and 1 of {target:?}: use the loss BinaryCrossEntropyWithLogits",
                loss.0.loss.name()
            ));
        }
        let activation = self.plan.programs.activations.get(&on.output).copied();
        let beyond = match activation {
            Some("relu") => values.iter().find(|x| **x < 0.0),
            Some("sigmoid" | "softmax") => other,
            Some("tanh") => values.iter().find(|x| x.abs() > 1.0),
            _ => None,
        };
        if let (Some(beyond), Some(activation)) = (beyond, activation) {
            return Some(format!(
                "the output {:?} is a {activation}, and the targets {target:?} have {beyond}, which it cannot reach: \
                 leave the activation out",
                on.output
            ));
        }
        let scale = Scale::of(values);
        (scale.size() > MOST_TARGET).then(|| {
            format!(
                "the targets {target:?} are {scale} (mean and standard deviation), and outputs start near 0: scale \
                 the targets down (unisono::data::normalize or rescale), and scale predictions back up"
            )
        })
    }

    /// Tells observers of a first step whose loss is 0, far above that of a guess, or a thousand times that
    /// of another output.
    pub(super) fn note_first_step(&mut self, step: &Step) {
        if step.now.loss == 0.0 {
            self.monitor.note_once("note: the loss of the first step is 0, so no parameter has a gradient");
        }
        let notes = [self.note_on_first_loss(step.now.loss), self.note_on_losses(&step.now)];
        notes.iter().flatten().for_each(|note| self.monitor.note_once(&format!("note: {note}")));
    }

    fn note_on_first_loss(&self, loss: f64) -> Option<String> {
        let (name, guess) = self.guess()?;
        (loss > MOST_GUESSES * guess && self.state.identity.is_from_start()).then(|| {
            format!(
                "the {name} of the first step is {loss:.1}, and that of a guess is {guess:.1}: the inputs are \
                 probably too large, so scale them first (unisono::data::rescale or normalize)"
            )
        })
    }

    /// Compares the losses of several outputs, as they count.
    fn note_on_losses(&self, now: &Evaluation) -> Option<String> {
        let objective = self.plan.parts.objective();
        let weights = objective.losses.iter().map(|loss| f64::from(loss.weight));
        let losses = now.metrics.iter().take(objective.measured_losses).zip(weights);
        let losses = losses.map(|((name, loss), weight)| (name, (loss * weight).abs()));
        let losses: Vec<(&String, f64)> = losses.filter(|(_, loss)| *loss > 0.0).collect();
        let by_size = |a: &&(&String, f64), b: &&(&String, f64)| a.1.total_cmp(&b.1);
        let (least, most) = (losses.iter().min_by(by_size)?, losses.iter().max_by(by_size)?);
        (most.1 > MOST_LOSSES * least.1).then(|| {
            format!(
                "{} is {:.3} in the first step and {} {:.3}, so training follows the first alone: scale its targets, or \
                 give the losses weights",
                most.0, most.1, least.0, least.1
            )
        })
    }

    /// Returns the only loss, if it is one of classes, and what it is where all of them are as likely.
    fn guess(&self) -> Option<(&str, f64)> {
        let [(loss, output)] = &*self.plan.programs.losses else { return None };
        if loss.weight != 1.0 {
            return None;
        }
        let classes = match loss.loss.name() {
            "cross-entropy" => *output.dims.last()?,
            "binary cross-entropy" => 2,
            _ => return None,
        };
        Some((loss.loss.name(), libm::log(classes.max(2) as f64)))
    }

    /// Returns the only loss, if it is the mean squared error.
    fn squared_error(&self) -> Option<&LossOn> {
        let [(loss, _)] = &*self.plan.programs.losses else { return None };
        (loss.loss.name() == "mean squared error" && loss.weight == 1.0).then_some(loss)
    }

    /// Counts the targets of a batch that was trained on, as far as they are needed for a guess.
    pub(super) fn count_targets(&mut self, batch: &Batch) {
        let Some(target) = self.squared_error().and_then(|loss| loss.on.target.clone()) else { return };
        if let Some(Values::F32(values)) = batch.stacked.field(&target).map(|field| &field.values) {
            self.known_data.targets.add(values);
        }
    }

    /// Returns the only loss, if it is the mean squared error, and what it is where all outputs are the mean
    /// of the targets.
    fn guess_of_quantities(&self) -> Option<(&str, f64)> {
        Some((self.squared_error()?.loss.name(), self.known_data.targets.variance()?))
    }

    /// Tells observers once of a loss that is that of a guess after some epochs.
    pub(super) fn note_no_progress(&mut self, epoch: &Epoch) {
        let Some((name, guess)) = self.guess().or_else(|| self.guess_of_quantities()) else { return };
        let (loss, epochs) = (epoch.train.loss, epoch.epoch + 1);
        if epochs < EPOCHS || loss < guess || self.monitor.told_guess {
            return;
        }
        let first = self.state.history.first().map_or(loss, |first| first.train.loss);
        let advice = match (loss - first).abs() < LEAST_CHANGE * first {
            true => "it hardly changes: is the learning rate too small, or what should learn frozen?",
            false => "try a smaller learning rate (LearningRateFinder), and inputs that are normalized",
        };
        let note = format!(
            "note: after {epochs} epochs the {name} is {loss:.3}, and that of a constant guess is {guess:.3}: {advice}"
        );
        self.monitor.told_guess = true;
        self.monitor.note(&note);
    }

    /// Returns the name of the first accuracy, and what it is measured on.
    fn accuracy(&self) -> Option<(&str, &On)> {
        let mut metrics = self.plan.parts.objective().named_metrics();
        let (metric, on, _) = metrics.find(|(.., kind)| matches!(*kind, "accuracy" | "binary accuracy"))?;
        Some((metric.name(), on))
    }

    /// Counts the labels that an accuracy is measured on.
    pub(super) fn count_labels(&self, batch: &Batch, counts: &mut LabelCounts) {
        let target = self.accuracy().and_then(|(_, on)| batch.stacked.field(on.target.as_deref()?));
        let mut count = |label| *counts.counts.entry(label).or_default() += 1;
        match target.map(|target| &target.values) {
            Some(Values::I32(labels)) => labels.iter().copied().for_each(count),
            Some(Values::F32(targets)) => targets.iter().for_each(|x| count(i32::from(*x > 0.5))),
            None => {}
        }
    }

    /// Tells observers once of an accuracy that is the share of the most frequent class.
    pub(super) fn note_accuracy(&mut self, measured: &Evaluation, counts: &LabelCounts) {
        let Some((label, share)) = counts.most().filter(|(_, share)| *share >= MOST_SHARE) else { return };
        let named = self.accuracy().map(|(name, _)| name);
        let accuracy = measured.metrics.iter().find(|(name, _)| Some(&**name) == named);
        let is_share = |accuracy: f64| accuracy <= share + 1e-6 && share < 1.0;
        if accuracy.is_some_and(|(_, accuracy)| is_share(*accuracy))
            && !std::mem::replace(&mut self.monitor.told_share, true)
        {
            self.monitor.note(&format!(
                "note: the accuracy is not above {share:.3}, the share of the class {label}, so always answering \
                 {label} does as well: measure F1, recall or Auc, and weight rare classes with Builder::class_weights"
            ));
        }
    }
}
