//! Perplexity: how many classes a model hesitates between.

use unisono_graph::{DType, Type, Var};

use super::reduction::ratio;
use super::{Better, Metric, MetricState, MetricValue, Reduction, SampleValues};

/// Perplexity: e to the mean over all labels of -ln softmax(x) at the label (torchmetrics' `Perplexity`,
/// KerasHub's `Perplexity(from_logits=True)`). It is NaN where no label counts.
///
/// Shapes: logits x `[B, ..., classes]` with i32 labels `[B, ...]`. Each label counts with the weight that
/// the data give its sample. Errors: other shapes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perplexity {
    ignored: Option<i32>,
}

/// The perplexity of all labels, as [`Perplexity::new`] creates it.
#[expect(
    non_upper_case_globals,
    reason = "it reads as other metrics without settings do: `.metric(Perplexity)`"
)]
pub const Perplexity: Perplexity = Perplexity::new();

impl Perplexity {
    /// Creates the perplexity of all labels.
    pub const fn new() -> Self {
        Self { ignored: None }
    }

    /// Sets a label that counts nowhere, such as that of padding (torchmetrics' `ignore_index`). Default: all
    /// labels count.
    pub fn ignore_index(mut self, label: i32) -> Self {
        self.ignored = Some(label);
        self
    }
}

impl Metric for Perplexity {
    fn name(&self) -> &str {
        "perplexity"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let fits = matches!(output.dims.split_last(), Some((_, rest)) if rest == target.dims);
        let fits = fits && target.dtype == DType::I32;
        fits.then_some(()).ok_or_else(|| format!("needs i32 labels for logits {output}, got {target}"))
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }

    fn counts_label(&self, label: i32) -> bool {
        self.ignored != Some(label)
    }

    fn takes_logits(&self) -> bool {
        true
    }

    /// Traces the sum over a sample's labels, and their number.
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let number = |x: f32| target.tape().constant(x);
        let labels = [target.ty().count()];
        let logs = output.log_softmax();
        let logs = match self.ignored {
            Some(_) => target.tape().with_any_index(|| logs.take(target)),
            None => logs.take(target),
        };
        let logs = logs.reshape(&labels);
        let target = target.to_f32().reshape(&labels);
        let counts = match self.ignored {
            Some(ignored) => 1.0 - target.eq_mask(&number(ignored as f32)),
            None => target.eq_mask(&target),
        };
        let sum = counts.select(&-logs, &number(0.0)).sum(&[-1]);
        sum.add_axis().concat(&[&counts.sum(&[-1]).add_axis()], -1)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for Perplexity {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(2)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        state.add_counted(sample);
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        libm::exp(ratio(state.sum(0), state.sum(1))).into()
    }
}
