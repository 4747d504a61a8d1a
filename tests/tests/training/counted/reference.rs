//! What metrics are by their definitions, computed plainly over all labels: scikit-learn's, where weights of
//! 0 count nothing and what nothing was measured for is NaN.

/// The number of classes of the output `tag`.
pub const CLASSES: usize = 4;

/// Samples with what a model gives for them: the logits of `tag` and the number `b`.
pub struct Samples {
    /// For each sample the logits of each of its labels.
    pub logits: Vec<Vec<[f32; CLASSES]>>,
    /// For each sample its labels.
    pub labels: Vec<Vec<i32>>,
    /// The output `b` of each sample, and its target, which is 0 or 1.
    pub numbers: Vec<[f32; 2]>,
    /// The weights that the data give the samples.
    pub weights: Option<Vec<f32>>,
}

/// A label that counts.
struct Label {
    logits: [f64; CLASSES],
    predicted: usize,
    actual: usize,
    weight: f64,
}

/// The labels of a class: those hit, predicted and actual.
#[derive(Clone, Copy, Default)]
struct Count {
    hits: f64,
    predicted: f64,
    actual: f64,
}

impl Samples {
    pub fn weight(&self, sample: usize) -> f64 {
        self.weights.as_ref().map_or(1.0, |weights| f64::from(weights[sample]))
    }

    /// Returns the labels that count, of samples with a weight.
    fn counted(&self, ignored: Option<i32>) -> Vec<Label> {
        let mut counted = Vec::new();
        for (sample, labels) in self.labels.iter().enumerate() {
            for (logits, &label) in self.logits[sample].iter().zip(labels) {
                let logits = logits.map(f64::from);
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let predicted = logits.iter().position(|&x| x == largest).unwrap();
                if Some(label) != ignored && self.weight(sample) > 0.0 {
                    let (actual, weight) = (label as usize, self.weight(sample));
                    counted.push(Label { logits, predicted, actual, weight });
                }
            }
        }
        counted
    }

    /// Returns the loss of `tag`, and that of `b`: means by the weights of samples, times the number of
    /// labels that the cross-entropy does not ignore, times the weights of classes.
    pub fn losses(&self, ignored: Option<i32>, classes: Option<[f32; CLASSES]>) -> [f64; 2] {
        let (mut of_tag, mut of_b, mut sum) = (0.0, 0.0, 0.0);
        for (sample, labels) in self.labels.iter().enumerate() {
            let counted: Vec<usize> = (0..labels.len()).filter(|&at| Some(labels[at]) != ignored).collect();
            let entropy =
                |&at: &usize| -log_softmax(self.logits[sample][at].map(f64::from), labels[at] as usize);
            let entropy: f64 = counted.iter().map(entropy).sum::<f64>() / counted.len().max(1) as f64;
            let own = ignored.map_or(1.0, |_| counted.len() as f64);
            let of_class = classes.map_or(1.0, |weights| f64::from(weights[labels[0] as usize]));
            let weight = self.weight(sample) * own * of_class;
            let [output, target] = self.numbers[sample].map(f64::from);
            of_tag += weight * entropy;
            of_b += weight * (output - target).powi(2);
            sum += weight;
        }
        [of_tag / sum, of_b / sum]
    }

    /// Returns the metrics of `tag` whose names are known, where a label is ignored by them.
    pub fn metrics_of_tag(&self, ignored: Option<i32>) -> Vec<(String, f64)> {
        let labels = self.counted(ignored);
        let mean = |value: &dyn Fn(&Label) -> f64| mean(labels.iter().map(|x| (value(x), x.weight)));
        let rank = |x: &Label| {
            let own = x.logits[x.actual];
            let before = |(class, &other): (usize, &f64)| other > own || (other == own && class < x.actual);
            x.logits.iter().enumerate().filter(|&other| before(other)).count()
        };
        let mut all = vec![
            ("accuracy".to_owned(), mean(&|x| f64::from(x.predicted == x.actual))),
            ("top-2 accuracy".to_owned(), mean(&|x| f64::from(rank(x) < 2))),
            ("perplexity".to_owned(), mean(&|x| -log_softmax(x.logits, x.actual)).exp()),
            ("matthews".to_owned(), matthews(&labels)),
        ];
        let counts = counts(&labels);
        type Quotient = fn(Count) -> (f64, f64);
        let quotients: [(&str, Quotient); 4] = [
            ("precision", |x| (x.hits, x.predicted)),
            ("recall", |x| (x.hits, x.actual)),
            ("f2", |x| (5.0 * x.hits, 4.0 * x.actual + x.predicted)),
            ("iou", |x| (x.hits, x.predicted + x.actual - x.hits)),
        ];
        for (name, quotient) in quotients {
            // scikit-learn's score of a class, with zero_division=0.
            let score = |count: Count| {
                let (numerator, denominator) = quotient(count);
                if denominator > 0.0 { numerator / denominator } else { 0.0 }
            };
            let there: Vec<Count> = counts.iter().copied().filter(|x| x.predicted + x.actual > 0.0).collect();
            let macro_average = there.iter().map(|&x| score(x)).sum::<f64>() / there.len() as f64;
            let (numerator, denominator) = counts.iter().fold((0.0, 0.0), |sum, &count| {
                let own = quotient(count);
                (sum.0 + own.0, sum.1 + own.1)
            });
            let actual: f64 = counts.iter().map(|x| x.actual).sum();
            let weighted = counts.iter().map(|&x| score(x) * x.actual).sum::<f64>() / actual;
            // Of a class without labels a quotient may be undefined.
            let last = counts[CLASSES - 1];
            let undefined = last.actual == 0.0 && quotient(last).1 == 0.0;
            let of_class = if undefined { f64::NAN } else { score(last) };
            all.push((format!("{name} (macro)"), macro_average));
            all.push((format!("{name} (micro)"), numerator / denominator));
            all.push((format!("{name} (weighted)"), weighted));
            all.push((format!("{name} (class {})", CLASSES - 1), of_class));
        }
        for (name, curve) in
            [("roc auc", roc as fn(&[(f64, bool, f64)]) -> f64), ("pr auc", precision_recall)]
        {
            let area = |class: usize| {
                let points =
                    labels.iter().map(|x| (log_softmax(x.logits, class), x.actual == class, x.weight));
                curve(&points.collect::<Vec<_>>())
            };
            all.push((name.to_owned(), (0..CLASSES).map(area).sum::<f64>() / CLASSES as f64));
        }
        all
    }

    /// Returns the confusion matrix of `tag`.
    pub fn confusion(&self, ignored: Option<i32>) -> Vec<f64> {
        let mut table = vec![0.0; CLASSES * CLASSES];
        self.counted(ignored).iter().for_each(|x| table[x.actual * CLASSES + x.predicted] += x.weight);
        table
    }

    /// Returns the metrics of `b`, as a regression and as the logit of a class.
    pub fn metrics_of_b(&self) -> Vec<(String, f64)> {
        let samples = || {
            let samples = self.numbers.iter().enumerate().map(|(at, x)| (x.map(f64::from), self.weight(at)));
            samples.filter(|(_, weight)| *weight > 0.0)
        };
        let mean = |value: &dyn Fn(f64, f64) -> f64| mean(samples().map(|([x, y], w)| (value(x, y), w)));
        let squared = mean(&|x, y| (x - y).powi(2));
        let centre = mean(&|_, y| y);
        let points: Vec<(f64, bool, f64)> = samples().map(|([x, y], w)| (x, y > 0.5, w)).collect();
        let total = |counts: &dyn Fn(bool, bool) -> bool| {
            points.iter().filter(|(x, y, _)| counts(*x > 0.0, *y)).map(|(_, _, w)| w).sum::<f64>()
        };
        let [hits, predicted, actual] = [total(&|x, y| x && y), total(&|x, _| x), total(&|_, y| y)];
        let own = |numerator: f64, denominator: f64| match denominator > 0.0 {
            true => numerator / denominator,
            false if actual > 0.0 => 0.0,
            false => f64::NAN,
        };
        let named = [
            ("mean squared error", squared),
            ("mean absolute error", mean(&|x, y| (x - y).abs())),
            ("root mean squared error", squared.sqrt()),
            ("r2", 1.0 - squared / mean(&|_, y| (y - centre).powi(2))),
            ("cosine similarity", mean(&|x, y| if y == 0.0 { 0.0 } else { x.signum() })),
            ("binary accuracy", mean(&|x, y| f64::from((x > 0.0) == (y > 0.5)))),
            ("precision", own(hits, predicted)),
            ("recall", own(hits, actual)),
            ("f1", own(2.0 * hits, predicted + actual)),
            ("roc auc", roc(&points)),
            ("pr auc", precision_recall(&points)),
        ];
        named.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// Returns a weighted mean, which is NaN of nothing.
fn mean(values: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weight) = values.fold((0.0, 0.0), |sum, (x, w)| (sum.0 + w * x, sum.1 + w));
    sum / weight
}

pub fn log_softmax(logits: [f64; CLASSES], class: usize) -> f64 {
    logits[class] - logits.iter().map(|x| x.exp()).sum::<f64>().ln()
}

fn counts(labels: &[Label]) -> [Count; CLASSES] {
    let mut counts = [Count::default(); CLASSES];
    for Label { predicted, actual, weight, .. } in labels {
        counts[*predicted].predicted += weight;
        counts[*actual].actual += weight;
        counts[*actual].hits += if predicted == actual { *weight } else { 0.0 };
    }
    counts
}

/// Returns the correlation of predicted and true labels, as indicators of the classes.
fn matthews(labels: &[Label]) -> f64 {
    let total: f64 = labels.iter().map(|x| x.weight).sum();
    let counts = counts(labels);
    let covariance = |a: &dyn Fn(&Count) -> f64, b: &dyn Fn(&Count) -> f64, both: f64| {
        both / total - counts.iter().map(|x| a(x) * b(x)).sum::<f64>() / total.powi(2)
    };
    let (predicted, actual) = (|x: &Count| x.predicted, |x: &Count| x.actual);
    let hits = counts.iter().map(|x| x.hits).sum();
    let spread = [covariance(&predicted, &predicted, total), covariance(&actual, &actual, total)];
    match spread.iter().any(|spread| spread.abs() < 1e-12) {
        true => 0.0,
        false => covariance(&predicted, &actual, hits) / (spread[0] * spread[1]).sqrt(),
    }
}

/// Returns the chance that a positive point has a higher score than a negative one; a tie counts half.
fn roc(points: &[(f64, bool, f64)]) -> f64 {
    let (mut above, mut pairs) = (0.0, 0.0);
    for (score, _, weight) in points.iter().filter(|point| point.1) {
        for (other, _, weight_of_other) in points.iter().filter(|point| !point.1) {
            let share = if score == other { 0.5 } else { f64::from(score > other) };
            above += share * weight * weight_of_other;
            pairs += weight * weight_of_other;
        }
    }
    above / pairs
}

/// Returns the sum over thresholds of precision times the gain in recall.
fn precision_recall(points: &[(f64, bool, f64)]) -> f64 {
    let mut thresholds: Vec<f64> = points.iter().map(|point| point.0).collect();
    thresholds.sort_by(|a, b| b.total_cmp(a));
    thresholds.dedup();
    let sum = |threshold: f64, positive: bool| {
        let counts = points.iter().filter(|point| point.0 >= threshold && point.1 == positive);
        counts.map(|point| point.2).sum::<f64>()
    };
    let (mut area, mut before) = (0.0, 0.0);
    for threshold in thresholds {
        let (hits, misses) = (sum(threshold, true), sum(threshold, false));
        area += hits / (hits + misses) * (hits - before);
        before = hits;
    }
    area / sum(f64::NEG_INFINITY, true)
}
