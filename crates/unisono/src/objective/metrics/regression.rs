//! Metrics of regression: errors of outputs of the targets' shape, and the share of variance explained.

use unisono_graph::{DType, Type, Var};

use super::reduction::ratio;
use super::{Better, Mean, Metric, MetricState, MetricValue, Reduction, SampleValues};
use crate::objective::losses::{as_output, fits_binary, mean_of_sample};
use crate::{Loss, MeanAbsoluteError, MeanSquaredError};

/// The mean over samples of the mean squared error of each (scikit-learn's `mean_squared_error`, Keras's and
/// torchmetrics' `MeanSquaredError`).
///
/// Shapes: outputs and targets `[B, ...]`, or `[B, 1]` and `[B]`.
impl Metric for MeanSquaredError {
    fn name(&self) -> &str {
        Loss::name(self)
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        like_output(output, target)
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        squared_error(output, target)
    }
}

/// The mean over samples of the mean absolute error of each (scikit-learn's `mean_absolute_error`, Keras's
/// and torchmetrics' `MeanAbsoluteError`).
///
/// Shapes: outputs and targets `[B, ...]`, or `[B, 1]` and `[B]`.
impl Metric for MeanAbsoluteError {
    fn name(&self) -> &str {
        Loss::name(self)
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        like_output(output, target)
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        mean_of_sample(&(output - &as_output(output, target)).abs())
    }
}

/// Root mean squared error: the square root of the mean over samples of their mean squared errors (Keras's
/// `RootMeanSquaredError`, torchmetrics' `MeanSquaredError(squared=False)`; scikit-learn's
/// `root_mean_squared_error` for one target; with several it takes their mean).
///
/// Shapes: outputs and targets `[B, ...]`, or `[B, 1]` and `[B]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RootMeanSquaredError;

impl Metric for RootMeanSquaredError {
    fn name(&self) -> &str {
        "root mean squared error"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        like_output(output, target)
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        squared_error(output, target)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for RootMeanSquaredError {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn start(&self, values: usize) -> MetricState {
        Mean.start(values)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        Mean.update(state, sample);
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        ratio(state.sum(0), state.sum(1)).sqrt().into()
    }
}

/// Coefficient of determination: R2 = 1 - sum of (y - x)^2 / sum of (y - mean of y)^2 over all samples, the
/// mean over the elements of a sample (scikit-learn's `r2_score`, torchmetrics' and Keras's `R2Score`).
///
/// Where all targets of an element are the same, it is 1 for outputs without an error and 0 for others. It is
/// NaN for fewer than two samples. Samples count with the weights that the data give them.
///
/// Shapes: outputs x and targets y `[B, ...]`, or `[B, 1]` and `[B]`. Each sample brings its outputs and
/// targets to the host; means and sums of squares are Welford's.
#[doc(alias = "R2Score")]
#[derive(Clone, Copy, Debug, Default)]
pub struct R2;

impl Metric for R2 {
    fn name(&self) -> &str {
        "r2"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        like_output(output, target)
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let elements = output.ty().count();
        output.reshape(&[elements]).concat(&[&target.to_f32().reshape(&[elements])], -1)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

/// The sums in front of those of the elements: the number of samples and the sum of their weights.
const FRONT: usize = 2;

impl Reduction for R2 {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    /// For each element there are the mean of the targets, the sum of their squared distances from it, and
    /// the sum of the squared errors.
    fn start(&self, values: usize) -> MetricState {
        MetricState::zeros(FRONT + values / 2 * 3)
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        if sample.weight == 0.0 {
            return;
        }
        state.add(&[1.0, sample.weight]);
        let share = sample.weight / state.sum(1);
        let (outputs, targets) = sample.values.split_at(sample.values.len() / 2);
        let elements = state.sums.iter_mut().skip(FRONT).collect::<Vec<_>>();
        let mut elements = elements.into_iter();
        for (&x, &y) in outputs.iter().zip(targets) {
            let (Some(mean), Some(spread), Some(error)) = (elements.next(), elements.next(), elements.next())
            else {
                return;
            };
            let (x, y) = (f64::from(x), f64::from(y));
            let distance = y - *mean;
            *mean += share * distance;
            *spread += sample.weight * distance * (y - *mean);
            *error += sample.weight * (y - x) * (y - x);
        }
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        let elements = state.sums.get(FRONT..).unwrap_or_default().as_chunks::<3>().0;
        if state.sum(0) < 2.0 || elements.is_empty() {
            return f64::NAN.into();
        }
        let explained = |&[_, spread, error]: &[f64; 3]| match (spread == 0.0, error == 0.0) {
            (_, true) => 1.0,
            (true, false) => 0.0,
            (false, false) => 1.0 - error / spread,
        };
        (elements.iter().map(explained).sum::<f64>() / elements.len() as f64).into()
    }
}

/// Traces the mean squared error of each sample.
fn squared_error(output: &Var, target: &Var) -> Var {
    mean_of_sample(&(output - &as_output(output, target)).square())
}

/// Checks that the targets have the shape of the outputs, where a last axis of length 1 may be missing on one
/// side.
///
/// # Errors
/// They do not.
pub(super) fn like_output(output: &Type, target: &Type) -> Result<(), String> {
    match output.dtype == DType::F32 && fits_binary(output, target) {
        true => Ok(()),
        false => Err(match output.dims.split_last() {
            Some((&classes, places)) if classes > 1 && target.dims == places => format!(
                "takes one number for each target {target}, and the output {output} has {classes}, as of classes"
            ),
            _ => format!("needs targets of the output's shape {output}, got {target}"),
        }),
    }
}
