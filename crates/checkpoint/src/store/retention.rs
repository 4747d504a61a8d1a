//! Retention: which checkpoints are kept.

use std::cmp::Ordering;

/// The rules by which a [`Store`](crate::Store) keeps checkpoints: the last few, and besides them milestones
/// and the best.
///
/// The newest trusted checkpoint always stays in addition to those that the rules keep, until a newer one is
/// trusted ([`Store::trust`](crate::Store::trust)).
///
/// This is decided after each save, among the checkpoints that are complete, the new one included. The others
/// are then removed, once the new one is durable. Complete means here that the sizes of the files are those
/// in the manifest; their contents are not read. Other checkpoints and suspects neither count nor are
/// removed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The number of the last checkpoints that are kept, the one just saved among them. 0 keeps all. Default:
    /// 3.
    pub keep: usize,
    /// Keeps milestones as well: the checkpoints whose step is a multiple of this. 0 keeps none. Default: 0.
    pub every: u64,
    /// Keeps the best as well, by the metric that they were saved with. Default: none.
    pub best: Option<Best>,
    /// The names of the metrics to compare, the most important one first. Values are compared only between
    /// metrics of the same name. A checkpoint whose metric is listed earlier is better than every checkpoint
    /// whose metric is listed later. A metric whose name is not listed counts as none. Default: no names,
    /// which compares metrics without a name.
    pub metrics: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { keep: 3, every: 0, best: None, metrics: Vec::new() }
    }
}

impl Options {
    /// Sets how many of the last checkpoints are kept. 0 keeps all.
    pub fn keep(self, last: usize) -> Self {
        Self { keep: last, ..self }
    }

    /// Keeps the checkpoints whose step is a multiple of this as well. 0 keeps none.
    pub fn every(self, steps: u64) -> Self {
        Self { every: steps, ..self }
    }

    /// Keeps the best as well, by the metric that they were saved with.
    pub fn best(self, best: impl Into<Option<Best>>) -> Self {
        Self { best: best.into(), ..self }
    }

    /// Names the metrics that are compared, those that count most first. Others count as none.
    pub fn metrics(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { metrics: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// Returns a metric as it is ranked, unless it is none of those that are compared.
    pub(crate) fn rank(&self, metric: Option<&Metric>) -> Option<Ranked> {
        let metric = metric?;
        let place = match &metric.name {
            None => self.metrics.is_empty().then_some(0)?,
            Some(name) => self.metrics.iter().position(|own| own == name)?,
        };
        Some(Ranked { place, value: metric.value })
    }
}

/// What was measured at a checkpoint's step, for [`Options::best`].
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// The value.
    pub value: f64,
    /// What the value is, in the caller's words, such as "lowest loss". `None` is a metric without a name.
    pub name: Option<String>,
}

impl Metric {
    /// Creates a metric with a name.
    pub fn named(value: f64, name: impl Into<String>) -> Self {
        Self { value, name: Some(name.into()) }
    }
}

impl From<f64> for Metric {
    fn from(value: f64) -> Self {
        Self { value, name: None }
    }
}

/// A metric as it is ranked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ranked {
    /// The place of its name among those that are compared. An earlier one is better.
    place: usize,
    value: f64,
}

/// The number of the best checkpoints that are kept, and which metric is better. Of equal ones the earlier
/// counts as better, so that none is replaced by its equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Best {
    /// Keeps this many with the lowest metric, such as a loss.
    Lowest(usize),
    /// Keeps this many with the highest metric, such as an accuracy.
    Highest(usize),
}

impl Best {
    fn count(self) -> usize {
        match self {
            Self::Lowest(count) | Self::Highest(count) => count,
        }
    }

    /// Compares two checkpoints by metric and step: better first, then earlier first.
    fn compare(self, a: (Ranked, u64), b: (Ranked, u64)) -> Ordering {
        let value = match self {
            Self::Lowest(_) => a.0.value.total_cmp(&b.0.value),
            Self::Highest(_) => b.0.value.total_cmp(&a.0.value),
        };
        a.0.place.cmp(&b.0.place).then(value).then(a.1.cmp(&b.1))
    }
}

/// A checkpoint as retention sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) step: u64,
    pub(crate) metric: Option<Ranked>,
}

impl Options {
    /// Returns, for each of the candidates, newest first, whether it stays. `trusted` is the newest trusted
    /// step.
    pub(crate) fn stays(&self, newest_first: &[Candidate], trusted: Option<u64>) -> Vec<bool> {
        let best = self.best_of(newest_first);
        let stays = |(age, candidate): (usize, &Candidate)| {
            self.keep == 0
                || age < self.keep
                || self.is_milestone(candidate.step)
                || best.contains(&candidate.step)
                || trusted == Some(candidate.step)
        };
        newest_first.iter().enumerate().map(stays).collect()
    }

    /// Whether a checkpoint will stay when later ones have come, so that a save is worth waiting for.
    pub(crate) fn is_kept_for_long(&self, new: Candidate, earlier: &[Candidate]) -> bool {
        let all: Vec<Candidate> = earlier.iter().copied().chain([new]).collect();
        self.is_milestone(new.step) || self.best_of(&all).contains(&new.step)
    }

    /// Returns the steps of the best, best first.
    pub(crate) fn best_of(&self, candidates: &[Candidate]) -> Vec<u64> {
        let Some(best) = self.best else { return Vec::new() };
        let measured = candidates.iter().filter_map(|c| Some((c.metric?, c.step)));
        let measured = measured.filter(|(metric, _)| metric.value.is_finite());
        let mut measured: Vec<(Ranked, u64)> = measured.collect();
        measured.sort_by(|&a, &b| best.compare(a, b));
        measured.into_iter().take(best.count()).map(|(_, step)| step).collect()
    }

    /// Whether a step is kept because it is a multiple of [`Options::every`].
    pub(crate) fn is_milestone(&self, step: u64) -> bool {
        self.every > 0 && step.is_multiple_of(self.every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(value: f64) -> Option<Ranked> {
        Some(Ranked { place: 0, value })
    }

    /// Returns the steps that stay when they were saved one by one with these metrics.
    fn kept(options: &Options, metrics: &[(u64, f64)]) -> Vec<u64> {
        let mut there: Vec<Candidate> = Vec::new();
        for &(step, metric) in metrics {
            there.insert(0, Candidate { step, metric: ranked(metric) });
            let mut stays = options.stays(&there, None).into_iter();
            there.retain(|_| stays.next().unwrap());
        }
        there.iter().map(|candidate| candidate.step).collect()
    }

    #[test]
    fn the_last_the_milestones_and_the_best_stay() {
        let metrics = [(10, 0.5), (20, 0.2), (30, 0.9), (40, 0.2), (50, f64::NAN), (60, 0.4)];
        let last = Options { keep: 1, ..Options::default() };
        assert_eq!(kept(&last, &metrics), [60]);
        assert_eq!(kept(&Options { keep: 0, ..last.clone() }, &metrics), [60, 50, 40, 30, 20, 10]);
        assert_eq!(kept(&Options { every: 30, ..last.clone() }, &metrics), [60, 30]);
        let best = |best| Options { best: Some(best), ..last.clone() };
        assert_eq!(kept(&best(Best::Lowest(1)), &metrics), [60, 20]);
        assert_eq!(kept(&best(Best::Lowest(2)), &metrics), [60, 40, 20]);
        assert_eq!(kept(&best(Best::Highest(2)), &metrics), [60, 30, 10]);
        assert_eq!(
            kept(&Options { keep: 2, every: 20, ..best(Best::Highest(1)) }, &metrics),
            [60, 50, 40, 30, 20]
        );
    }

    #[test]
    fn metrics_of_one_name_are_compared_and_earlier_names_count_first() {
        let options = Options::default().best(Best::Lowest(1)).metrics(["held out", "trained on"]);
        let of = |metrics: &[(u64, Metric)]| {
            let candidate = |(step, metric): &(u64, Metric)| Candidate {
                step: *step,
                metric: options.rank(Some(metric)),
            };
            options.best_of(&metrics.iter().map(candidate).collect::<Vec<_>>())
        };
        let [held, trained] = ["held out", "trained on"].map(|name| move |value| Metric::named(value, name));
        let mut metrics = vec![(1, Metric::from(0.1)), (2, Metric::named(0.1, "accuracy"))];
        assert_eq!(of(&metrics), [0; 0]);
        metrics.extend([(3, trained(0.3)), (4, trained(0.2))]);
        assert_eq!(of(&metrics), [4]);
        metrics.extend([(5, held(0.9)), (6, trained(0.1))]);
        assert_eq!(of(&metrics), [5]);
        metrics.push((7, held(0.8)));
        assert_eq!(of(&metrics), [7]);
    }

    #[test]
    fn what_will_stay_is_worth_waiting_for() {
        let options = Options::default().keep(1).every(100).best(Best::Lowest(1));
        let earlier = [Candidate { step: 10, metric: ranked(0.5) }];
        for (step, metric, expected) in
            [(20, None, false), (100, None, true), (20, ranked(0.5), false), (20, ranked(0.4), true)]
        {
            assert_eq!(options.is_kept_for_long(Candidate { step, metric }, &earlier), expected);
        }
    }
}
