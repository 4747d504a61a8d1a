//! Reductions: how the values of all samples become a metric's number, on the host and in sample order.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::objective::number;

/// A reduction of a metric over all samples of an epoch or an evaluation. It has a state before the first
/// sample, updates it for each sample in order, and computes the result from it.
///
/// The trainer updates in f64 on the host, sample by sample. The result therefore depends neither on replicas
/// nor on batches. In the middle of an epoch, checkpoints contain the state.
///
/// ```
/// use unisono::{Metric, MetricState, MetricValue, Reduction, SampleValues, Var};
///
/// /// The largest absolute error of all samples.
/// struct MaxError;
///
/// impl Metric for MaxError {
///     fn name(&self) -> &str {
///         "max error"
///     }
///     fn per_sample(&self, output: &Var, target: &Var) -> Var {
///         (output - target).abs()
///     }
///     fn reduction(&self) -> Option<&dyn Reduction> {
///         Some(self)
///     }
/// }
///
/// impl Reduction for MaxError {
///     fn start(&self, _values: usize) -> MetricState {
///         MetricState::zeros(1)
///     }
///     fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
///         let largest = sample.values.iter().map(|&x| f64::from(x));
///         state.sums[0] = largest.fold(state.sums[0], f64::max);
///     }
///     fn finish(&self, state: &MetricState) -> MetricValue {
///         state.sums[0].into()
///     }
/// }
/// ```
pub trait Reduction: Send + Sync {
    /// Returns the state before the first sample. `values` is the number of values of each sample.
    ///
    /// Resuming a checkpoint with another number of [`MetricState::sums`] is an error. If batches have
    /// several lengths, such as in buckets, samples have several numbers of values. The number of sums must
    /// then be the same for all of them; otherwise the first batch of another length is an error.
    fn start(&self, values: usize) -> MetricState;

    /// Adds a sample. The trainer calls this for one sample after another, in the order of the data.
    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>);

    /// Returns the number, or the table, for the samples so far.
    fn finish(&self, state: &MetricState) -> MetricValue;

    /// Returns the kind of result of [`Reduction::finish`], and when it is computed. Default:
    /// [`MetricKind::EachStep`].
    fn kind(&self) -> MetricKind {
        MetricKind::EachStep
    }

    /// Returns a text of all settings of the reduction. A resume compares it with that of the original run,
    /// because schedules and callbacks may decide by a metric. In your own metric, add a version that you
    /// change with the code. Default: `None`, and the run's identity says that the settings are not covered.
    fn settings(&self) -> Option<String> {
        None
    }
}

/// The kind of result of a reduction, and when it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A number, which costs so little that every [`Step`](crate::Step) has it: that of its batch and that of
    /// the epoch so far.
    #[default]
    EachStep,
    /// A number that is computed at the end of an epoch or an evaluation only. Steps do not have it.
    AtEnd,
    /// A table, which is computed at the end of an epoch or an evaluation. It is in
    /// [`Evaluation::tables`](crate::Evaluation::tables), and not in histories.
    Table,
}

/// The values of a metric for one sample, with the sample's weights.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SampleValues<'a> {
    /// What [`Metric::per_sample`](crate::Metric::per_sample) gives for the sample, in row-major order.
    pub values: &'a [f32],
    /// The weight of the sample in the data (the field `w`). The default mean uses it. Default: 1.
    pub weight: f64,
    /// The weight of the sample in the loss. It is the weight in the data, times that of the loss, such as
    /// the number of labels that are not ignored ([`Loss::weight`](crate::Loss::weight)). In training it is
    /// also times the weight of its class ([`Builder::class_weights`](crate::Builder::class_weights)). The
    /// library's own metrics do not use it. Default: 1.
    pub loss_weight: f64,
}

impl<'a> SampleValues<'a> {
    /// Creates the values of a sample with a weight of 1.
    pub fn new(values: &'a [f32]) -> Self {
        Self { values, weight: 1.0, loss_weight: 1.0 }
    }

    /// Sets the weight that the data give the sample, and that of the loss.
    pub fn weighted(mut self, weight: f64, loss_weight: f64) -> Self {
        (self.weight, self.loss_weight) = (weight, loss_weight);
        self
    }
}

/// The state of a reduction. Checkpoints store it bit for bit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct MetricState {
    /// A fixed number of sums. The sign and the payload of a NaN are not saved.
    #[serde(with = "number::list")]
    pub sums: Vec<f64>,
    /// Values that are kept for every sample, such as scores. They take four bytes each of the host's memory
    /// and of a checkpoint within an epoch, and with audits up to eight more of memory.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "hex",
        deserialize_with = "words"
    )]
    pub kept: Vec<f32>,
}

impl MetricState {
    /// Creates a state of `sums` zeros that keeps nothing yet.
    pub fn zeros(sums: usize) -> Self {
        Self { sums: vec![0.0; sums], kept: Vec::new() }
    }
}

/// What a reduction gives.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetricValue {
    /// One number.
    Number(f64),
    /// A table of numbers, such as a confusion matrix.
    Table(Table),
}

impl From<f64> for MetricValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Table> for MetricValue {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

/// A table of numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: usize,
    values: Vec<f64>,
}

impl Table {
    /// Creates a table with so many columns of values in row-major order. A last row that is not full is left
    /// out.
    pub fn new(columns: usize, mut values: Vec<f64>) -> Self {
        values.truncate(values.len() / columns.max(1) * columns);
        Self { columns, values }
    }

    /// Returns the numbers of rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.values.len() / self.columns.max(1), self.columns]
    }

    /// Returns the rows, from the first to the last.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.columns.max(1))
    }

    /// Returns the number in a row and a column, both counted from 0, or `None` outside of the table.
    pub fn get(&self, row: usize, column: usize) -> Option<f64> {
        (column < self.columns).then(|| self.values.get(row * self.columns + column).copied()).flatten()
    }
}

/// The reduction of metrics without one of their own: the mean over samples with the weights that the data
/// give them, or NaN where all weights are 0. Its sums are that of the values and that of the weights.
pub(crate) struct Mean;

/// The mean over labels: a sample gives the sum of a value over its labels that count, and their number.
pub(crate) struct MeanOfLabels;

/// The mean over samples with their weights in the loss, for losses that are measured like metrics.
pub(crate) struct MeanInLoss;

impl Reduction for Mean {
    fn settings(&self) -> Option<String> {
        Some("mean".into())
    }

    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(2)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        state.add_weighted(sample.values, sample.weight);
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        ratio(state.sum(0), state.sum(1)).into()
    }
}

impl Reduction for MeanOfLabels {
    fn settings(&self) -> Option<String> {
        Some("mean of labels".into())
    }

    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(2)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        state.add_counted(sample);
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        Mean.finish(state)
    }
}

impl Reduction for MeanInLoss {
    fn settings(&self) -> Option<String> {
        Some("mean in the loss".into())
    }

    fn start(&self, values: usize) -> MetricState {
        Mean.start(values)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        state.add_weighted(sample.values, sample.loss_weight);
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        Mean.finish(state)
    }
}

impl MetricState {
    /// Adds to the sums, in order.
    pub(super) fn add(&mut self, terms: &[f64]) {
        self.sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }

    /// Adds a sample's only value and its weight to the two sums of a mean. A weight of 0 adds nothing, also
    /// where the value is not finite.
    fn add_weighted(&mut self, values: &[f32], weight: f64) {
        let value = values.first().copied().unwrap_or_default();
        if weight != 0.0 {
            self.add(&[f64::from(value) * weight, weight]);
        }
    }

    /// Adds a sample's sum over labels and the number of these labels to the two sums of a mean.
    pub(super) fn add_counted(&mut self, sample: &SampleValues<'_>) {
        if let &[sum, count] = sample.values
            && sample.weight != 0.0
        {
            self.add(&[f64::from(sum) * sample.weight, f64::from(count) * sample.weight]);
        }
    }

    /// Returns a sum, or 0 if there is none of this number.
    pub(crate) fn sum(&self, index: usize) -> f64 {
        self.sums.get(index).copied().unwrap_or_default()
    }
}

/// Returns a quotient, or NaN where the divisor is 0: nothing was measured then.
pub(crate) fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator == 0.0 { f64::NAN } else { numerator / denominator }
}

/// Writes f32 numbers as one text: eight hexadecimal digits of each, the highest first.
fn hex<S: Serializer>(kept: &[f32], to: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(kept.len() * 8);
    for word in kept.iter().map(|x| x.to_bits()) {
        (0..8).rev().for_each(|digit| text.push(DIGITS[(word >> (4 * digit)) as usize & 15].into()));
    }
    to.serialize_str(&text)
}

/// Reads what [`hex`] wrote.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
    let text = String::deserialize(from)?;
    let (words, []) = text.as_bytes().as_chunks::<8>() else {
        return Err(D::Error::custom("kept is not made of words of eight hexadecimal digits"));
    };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(u32::from(byte - b'0')),
        b'a'..=b'f' => Ok(u32::from(byte - b'a') + 10),
        _ => Err(D::Error::custom("kept holds something else than lowercase hexadecimal digits")),
    };
    let word = |word: &[u8; 8]| word.iter().try_fold(0, |bits, &byte| Ok(bits << 4 | digit(byte)?));
    words.iter().map(|bytes| word(bytes).map(f32::from_bits)).collect()
}
