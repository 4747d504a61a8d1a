//! Metrics: their values by sample on a device, reduced on the host, sample by sample.

use serde_json::Value;
use unisono::{
    Accuracy, Auc, BinaryAccuracy, ConfusionMatrix, CosineSimilarity, FBeta, Iou, Matthews,
    MeanAbsoluteError, MeanSquaredError, Metric, MetricValue, Perplexity, PrecisionScore, R2, RecallScore,
    RootMeanSquaredError, SampleValues, TopKAccuracy,
};
use unisono_graph::Type;

use super::{Case, Recipe};

/// Returns the metric that a case names, or `None` if its op is not a metric.
pub fn metric(case: &Case) -> Option<Result<Box<dyn Metric>, String>> {
    /// Makes a metric of counts: its average, and the settings that all of them share.
    macro_rules! counted {
        ($metric:ident) => {{
            let classes = size(case, "classes").unwrap_or(2);
            let mut metric = match case.text("average") {
                Some("binary") => $metric::binary(),
                Some("macro") => $metric::macro_average(classes),
                Some("micro") => $metric::micro_average(classes),
                Some("weighted") => $metric::weighted_average(classes),
                other => return Some(Err(format!("no average {other:?}"))),
            };
            if case.flag("multilabel") {
                metric = metric.multilabel();
            }
            labelled!(metric)
        }};
    }
    /// Applies the settings that all metrics of labels share.
    macro_rules! labelled {
        ($metric:expr) => {{
            let mut metric = $metric;
            if let Some(threshold) = case.number("threshold") {
                metric = metric.threshold(threshold);
            }
            if let Some(label) = ignored(case) {
                metric = metric.ignore_index(label);
            }
            metric
        }};
    }
    Some(Ok(match case.op.as_str() {
        "accuracy" => Box::new(Accuracy),
        "binary_accuracy" => Box::new(BinaryAccuracy),
        "mean_squared_error" => Box::new(MeanSquaredError),
        "mean_absolute_error" => Box::new(MeanAbsoluteError),
        "root_mean_squared_error" => Box::new(RootMeanSquaredError),
        "r2" => Box::new(R2),
        "precision" => Box::new(counted!(PrecisionScore)),
        "recall" => Box::new(counted!(RecallScore)),
        "fbeta" => Box::new(counted!(FBeta).beta(case.number("beta").unwrap_or(1.0))),
        "iou" => Box::new(counted!(Iou)),
        "confusion_matrix" => match size(case, "classes") {
            Some(classes) => Box::new(labelled!(ConfusionMatrix::new(classes))),
            None => Box::new(labelled!(ConfusionMatrix::binary())),
        },
        "matthews" => match size(case, "classes") {
            Some(classes) => Box::new(labelled!(Matthews::new(classes))),
            None => Box::new(labelled!(Matthews::binary())),
        },
        "auc" => {
            let auc = if case.text("curve") == Some("pr") { Auc::pr() } else { Auc::roc() };
            Box::new(match size(case, "classes") {
                Some(classes) => auc.one_vs_rest(classes),
                None => auc,
            })
        }
        "top_k" => Box::new(TopKAccuracy::new(size(case, "k").unwrap_or(0))),
        "perplexity" => {
            let perplexity = Perplexity::new();
            Box::new(ignored(case).map_or(perplexity, |label| perplexity.ignore_index(label)))
        }
        "cosine_similarity" => Box::new(CosineSimilarity),
        _ => return None,
    }))
}

fn size(case: &Case, name: &str) -> Option<usize> {
    case.attrs.get(name).and_then(Value::as_u64).map(|size| size as usize)
}

fn ignored(case: &Case) -> Option<i32> {
    case.number("ignore_index").map(|label| label as i32)
}

/// Returns the recipe for the values that the metric of a case has of each sample.
///
/// # Errors
/// There is no such metric, or it does not take the case's types.
pub fn recipe(case: &Case) -> Result<Recipe, String> {
    let metric = metric(case).ok_or("it is not a metric")??;
    let ty = |role: &str| case.inputs.get(role).map(|r| Type::sample(&r.dims[1..]).of(r.dtype));
    let (Some(x), Some(target)) = (ty("x"), ty("target")) else {
        return Err("x or target is missing".into());
    };
    metric.accepts(&x, &target)?;
    let batched = &["x", "target", "weights"];
    Ok(Recipe::one(batched, move |x| metric.per_sample(&x["x"], &x["target"])))
}

/// Reduces the values of all samples as a trainer does.
pub fn reduce(case: &Case, metric: &dyn Metric, values: &[f32]) -> Vec<f64> {
    let rows = case.dims("x")[0];
    let weights = case.inputs.get("weights").map(|weights| &weights.data);
    let weight = |row: usize| weights.map_or(1.0, |weights| weights[row]);
    let width = values.len() / rows;
    let samples = values.chunks_exact(width).enumerate();
    let Some(reduction) = metric.reduction() else {
        let (mut sum, mut total) = (0.0, 0.0);
        samples.for_each(|(row, values)| {
            sum += f64::from(values[0]) * weight(row);
            total += weight(row);
        });
        return vec![sum / total];
    };
    let mut state = reduction.start(width);
    for (row, values) in samples {
        let sample = SampleValues::new(values).weighted(weight(row), weight(row));
        reduction.update(&mut state, &sample);
    }
    match reduction.finish(&state) {
        MetricValue::Number(number) => vec![number],
        MetricValue::Table(table) => table.rows().flatten().copied().collect(),
        _ => vec![],
    }
}
