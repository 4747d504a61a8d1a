//! What metrics take and refuse, and what they make of special cases. Numbers against scikit-learn's are in
//! `tests/oracle`.

use std::sync::Arc;

use unisono_graph::{Array, DType, Feed, Frame, Tape, Type, interpret};

use super::*;
use crate::objective::running::{Measured, OfMetric, Running};
use crate::{MeanAbsoluteError, MeanSquaredError};

/// A value by its axes and elements.
type Given<'a> = (&'a [usize], &'a [f64]);

/// Returns what a metric makes of samples.
fn evaluated(metric: &dyn Metric, output: Given<'_>, target: Given<'_>, dtype: DType) -> MetricValue {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&output.0[1..]));
    let y = tape.input("y", Type::sample(&target.0[1..]).of(dtype));
    assert_eq!(metric.accepts(x.ty(), y.ty()), Ok(()));
    tape.output("values", &metric.per_sample(&x, &y));
    let inputs = vec![Array::new(output.0, output.1.to_vec()), Array::new(target.0, target.1.to_vec())];
    let rows = output.0[0];
    let feed = Feed { frame: Frame { shards: vec![rows] }, inputs, states: vec![] };
    let values = interpret(&tape.finish().unwrap(), &feed).outputs["values"].data.clone();
    let reduction = reduction(metric);
    let mut state = reduction.start(values.len() / rows);
    for sample in values.chunks_exact(values.len() / rows) {
        let sample: Vec<f32> = sample.iter().map(|&x| x as f32).collect();
        reduction.update(&mut state, &SampleValues::new(&sample));
    }
    reduction.finish(&state)
}

fn number(metric: &dyn Metric, output: Given<'_>, target: Given<'_>, dtype: DType) -> f64 {
    match evaluated(metric, output, target, dtype) {
        MetricValue::Number(number) => number,
        MetricValue::Table(table) => panic!("{table:?}"),
    }
}

#[test]
fn areas_of_one_class_alone() {
    let scores = (&[3usize][..], &[0.1, 0.7, 0.2][..]);
    let of = |metric: &Auc, target: &[f64]| number(metric, scores, (&[3], target), DType::F32);
    assert!(of(&Auc::roc(), &[1., 1., 1.]).is_nan());
    assert!(of(&Auc::roc(), &[0., 0., 0.]).is_nan());
    assert_eq!(of(&Auc::pr(), &[1., 1., 1.]), 1.0);
    assert!(of(&Auc::pr(), &[0., 0., 0.]).is_nan());
    assert_eq!(of(&Auc::roc(), &[0., 1., 0.]), 1.0);
    assert_eq!(of(&Auc::roc().ignore_index(-1), &[0., 1., -1.]), 1.0);
    // Zeros of both signs are one score.
    let zeros = (&[2usize][..], &[0.0, -0.0][..]);
    assert_eq!(number(&Auc::roc(), zeros, (&[2], &[0., 1.]), DType::F32), 0.5);
    let bad = (&[2usize][..], &[f64::NAN, 0.0][..]);
    assert!(number(&Auc::roc(), bad, (&[2], &[0., 1.]), DType::F32).is_nan());
}

#[test]
fn r2_of_few_samples_and_of_equal_targets() {
    let of = |x: &[f64], y: &[f64]| number(&R2, (&[x.len()], x), (&[y.len()], y), DType::F32);
    assert!(of(&[1.], &[1.]).is_nan());
    assert_eq!(of(&[2., 2.], &[2., 2.]), 1.0);
    assert_eq!(of(&[2., 3.], &[2., 2.]), 0.0);
    assert_eq!(of(&[1., 3.], &[1., 3.]), 1.0);
    assert_eq!(of(&[2., 2.], &[1., 3.]), 0.0);
}

/// A label or a prediction that is no class is not counted for class 0 or the last one.
#[test]
fn what_is_no_class_hits_none() {
    let logits = (&[3usize, 2][..], &[9., 0., 9., 0., f64::NAN, f64::NAN][..]);
    let labels = (&[3usize][..], &[-7., 0., 1.][..]);
    let precision = PrecisionScore::of_class(2, 0);
    assert_eq!(number(&precision, logits, labels, DType::I32), 0.5);
    assert_eq!(number(&RecallScore::of_class(2, 1), logits, labels, DType::I32), 0.0);
    assert_eq!(number(&precision.ignore_index(-7), logits, labels, DType::I32), 1.0);
    let matrix = evaluated(&ConfusionMatrix::new(2), logits, labels, DType::I32);
    assert_eq!(matrix, Table::new(2, vec![1., 0., 0., 0.]).into());
}

#[test]
fn ties_of_the_largest_logits() {
    let logits = (&[4usize, 3][..], &[1., 1., 1., 1., 1., 1., 0., 1., 1., 2., 1., 1.][..]);
    let labels = (&[4usize][..], &[1., 2., 2., 2.][..]);
    let top = |k| number(&TopKAccuracy::new(k), logits, labels, DType::I32);
    assert_eq!([top(1), top(2), top(3)], [0.0, 0.5, 1.0]);
    let ignored = TopKAccuracy::new(2).ignore_index(2);
    assert_eq!(number(&ignored, logits, labels, DType::I32), 1.0, "samples without a label do not count");
}

/// A lookup of a label that is no class reads another class.
#[test]
fn a_label_that_is_no_class_is_not_among_the_largest() {
    let logits = (&[4usize, 3][..], &[0.1, 0.9, 0.5, 0.1, 0.2, 0.9, 0.9, 0.2, 0.1, 0.9, 0.2, 0.1][..]);
    let labels = (&[4usize][..], &[-100., 3., -1., 0.][..]);
    for k in 1..=3 {
        assert_eq!(number(&TopKAccuracy::new(k), logits, labels, DType::I32), 0.25, "k = {k}");
    }
    assert_eq!(number(&Accuracy, logits, labels, DType::I32), 0.25);
}

#[test]
fn targets_may_lack_an_axis_of_length_1() {
    let (x, y) = ([0.5, -1.0, 2.0], [1.0, 0.0, 1.0]);
    for metric in [
        &R2 as &dyn Metric,
        &RootMeanSquaredError,
        &MeanSquaredError,
        &MeanAbsoluteError,
        &Auc::roc(),
        &F1::binary(),
        &Matthews::binary(),
    ] {
        let same = number(metric, (&[3], &x), (&[3], &y), DType::F32);
        assert_eq!(number(metric, (&[3, 1], &x), (&[3], &y), DType::I32), same, "{}", metric.name());
        assert_eq!(number(metric, (&[3], &x), (&[3, 1], &y), DType::F32), same, "{}", metric.name());
    }
    let squared = number(&MeanSquaredError, (&[3, 1], &x), (&[3], &y), DType::F32);
    assert_eq!(squared, (0.25 + 1.0 + 1.0) / 3.0);
}

/// A label that is neither predicted nor true counts 0 in the mean, a class counts nothing.
#[test]
fn absent_labels_count_in_the_mean_over_labels() {
    let (x, y) = ([9.0, -9.0, -9.0], [1.0, 0.0, 0.0]);
    let labels = F1::macro_average(3).multilabel();
    assert_eq!(number(&labels, (&[1, 3], &x), (&[1, 3], &y), DType::F32), 1.0 / 3.0);
    assert_eq!(number(&F1::macro_average(3), (&[1, 3], &x), (&[1], &[0.0]), DType::I32), 1.0);
}

#[test]
fn settings_and_types_that_cannot_work_say_why() {
    let (three, label) = (Type::sample(&[3]), Type::sample(&[]).of(DType::I32));
    let of = |metric: &dyn Metric| metric.accepts(&three, &label).unwrap_err();
    assert_eq!(of(&TopKAccuracy::new(0)), "k = 0 is not in 1..=3, the number of classes");
    assert_eq!(of(&TopKAccuracy::new(4)), "k = 4 is not in 1..=3, the number of classes");
    assert_eq!(of(&F1::macro_average(0)), "needs at least one class");
    assert_eq!(of(&F1::macro_average(0).multilabel()), "needs at least one label");
    assert_eq!(of(&ConfusionMatrix::new(0)), "needs at least one class");
    assert_eq!(of(&Auc::roc().one_vs_rest(0)), "needs at least one class");
    assert_eq!(of(&Iou::macro_average(4)), "needs logits of 4 classes, got [B, 3]");
    assert_eq!(of(&RecallScore::of_class(3, 3)), "class 3 is not in 0..3");
    for beta in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let problem = of(&FBeta::macro_average(3).beta(beta));
        assert_eq!(problem, format!("beta {beta} is not a finite number above 0"));
    }
    let one = Type::sample(&[1]);
    for threshold in [0.0, 1.0, -0.1, 1.5, f64::NAN] {
        let expected = Err(format!("threshold {threshold} is not between 0 and 1"));
        assert_eq!(PrecisionScore::binary().threshold(threshold).accepts(&one, &one), expected);
        assert_eq!(ConfusionMatrix::binary().threshold(threshold).accepts(&one, &one), expected);
    }
    let of_classes = "takes one number for each target [B] i32, and the output [B, 3] has 3, as of classes";
    assert_eq!(of(&R2), of_classes);
    assert_eq!(of(&Auc::roc()), of_classes);
    assert_eq!(of(&CosineSimilarity), of_classes);
    let problem = Perplexity::new().accepts(&three, &three).unwrap_err();
    assert_eq!(problem, "needs i32 labels for logits [B, 3], got [B, 3]");
}

#[test]
fn names_say_the_average() {
    let names = [
        F1::binary().named("f1 at 0.3").name().to_owned(),
        FBeta::macro_average(3).beta(2.0).name().to_owned(),
        FBeta::binary().named("f1 of fraud").beta(2.0).name().to_owned(),
        FBeta::binary().beta(0.5).name().to_owned(),
        Iou::of_class(3, 1).name().to_owned(),
        TopKAccuracy::new(5).name().to_owned(),
    ];
    assert_eq!(names, ["f1 at 0.3", "f2 (macro)", "f1 of fraud", "f0.5", "iou (class 1)", "top-5 accuracy"]);
}

#[test]
fn metrics_know_which_values_are_better() {
    let errors: [&dyn Metric; 4] =
        [&MeanSquaredError, &MeanAbsoluteError, &RootMeanSquaredError, &Perplexity::new()];
    let shares: [&dyn Metric; 12] = [
        &Accuracy,
        &BinaryAccuracy,
        &TopKAccuracy::new(2),
        &PrecisionScore::binary(),
        &RecallScore::binary(),
        &F1::binary(),
        &Iou::binary(),
        &Matthews::binary(),
        &Auc::roc(),
        &Auc::pr(),
        &R2,
        &CosineSimilarity,
    ];
    assert!(errors.iter().all(|metric| metric.better() == Some(Better::Lower)));
    assert!(shares.iter().all(|metric| metric.better() == Some(Better::Higher)));
    assert_eq!(ConfusionMatrix::binary().better(), None);
}

#[test]
fn beta_is_in_the_settings() {
    let settings = |beta| FBeta::binary().named("score").beta(beta).reduction().unwrap().settings();
    assert_ne!(settings(2.0), settings(0.5));
}

/// Where the batches end does not show, and a step has what costs little.
#[test]
fn batches_do_not_show_and_steps_have_no_areas() {
    let metrics: Vec<Arc<dyn Metric>> =
        vec![Arc::new(R2), Arc::new(Auc::pr()), Arc::new(F1::binary()), Arc::new(MeanSquaredError)];
    let samples = 13;
    let values = |at: usize| (0..2 * samples).map(|i| ((i * i + at) % 7) as f32 / 3.0).collect::<Vec<_>>();
    let (pairs, losses) = (values(1), &values(2)[..samples]);
    let labels: Vec<f32> = (0..2 * samples).map(|i| f32::from(i % 3 == 0)).collect();
    let weights: Vec<f32> = (0..samples).map(|i| (i % 3) as f32).collect();
    let measured = |from: usize, to: usize| Measured {
        losses: &losses[from..to],
        metrics: [
            &pairs[2 * from..2 * to],
            &labels[2 * from..2 * to],
            &labels[2 * from..2 * to],
            &losses[from..to],
        ]
        .map(|values| OfMetric { values, given: Some(&weights[from..to]), weights: None })
        .into(),
        weights: None,
        several: vec![],
        penalty: 0.0,
    };
    let run = |cuts: &[usize]| {
        let mut running = Running::default();
        for pair in cuts.windows(2) {
            running.add(&metrics, &measured(pair[0], pair[1]));
            // As a checkpoint in between would do.
            running = serde_json::from_str(&serde_json::to_string(&running).unwrap()).unwrap();
        }
        running.finish(&metrics)
    };
    let whole = run(&[0, 13]);
    assert_eq!(run(&[0, 5, 10, 13]), whole);
    assert_eq!(run(&[0, 1, 12, 13]), whole);
    let names = |metrics: &[(String, f64)]| metrics.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&whole.metrics), ["r2", "pr auc", "f1", "mean squared error"]);
    let step = Running::of_step(&metrics, &measured(0, 5));
    assert_eq!(names(&step.metrics), ["r2", "f1", "mean squared error"]);
    let mut running = Running::default();
    running.add(&metrics, &measured(0, 5));
    assert_eq!(running.so_far(&metrics), step);
    assert_eq!(running.problem(&metrics, &[2, 2, 2, 1]), None);
    let problem = running.problem(&metrics, &[4, 2, 2, 1]).unwrap();
    assert_eq!(problem, "the metric \"r2\" of the run has 5 sums, not 8");
}

#[test]
fn of_no_batch_all_numbers_are_nan() {
    let metrics: Vec<Arc<dyn Metric>> =
        vec![Arc::new(Accuracy), Arc::new(ConfusionMatrix::new(2)), Arc::new(Auc::pr()), Arc::new(R2)];
    let nothing = Running::default();
    let evaluation = nothing.finish(&metrics);
    let names: Vec<&str> = evaluation.metrics.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["accuracy", "pr auc", "r2"]);
    assert!(evaluation.loss.is_nan() && evaluation.metrics.iter().all(|(_, value)| value.is_nan()));
    assert_eq!(nothing.unmeasured(&metrics, &evaluation), ["loss", "accuracy", "pr auc", "r2"]);
}

#[test]
fn a_state_is_saved_bit_for_bit() {
    let kept = vec![0.1, -0.0, f32::NEG_INFINITY, f32::from_bits(0x7fc0_1234), f32::MIN_POSITIVE];
    let state = MetricState { sums: vec![0.1 + 0.2, -0.0, f64::INFINITY], kept };
    let json = serde_json::to_string(&state).unwrap();
    assert!(
        json.starts_with(r#"{"sums":[0.30000000000000004,-0.0,"inf"],"kept":"3dcccccd80000000ff8"#),
        "{json}"
    );
    let back: MetricState = serde_json::from_str(&json).unwrap();
    assert_eq!(back.sums, state.sums);
    let bits = |state: &MetricState| state.kept.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&back), bits(&state));
    assert_eq!(serde_json::to_string(&MetricState::zeros(1)).unwrap(), r#"{"sums":[0.0]}"#);
    for kept in ["3dcccc", "3dcccccg", "3DCCCCCD"] {
        let json = format!(r#"{{"sums":[],"kept":"{kept}"}}"#);
        assert!(serde_json::from_str::<MetricState>(&json).unwrap_err().to_string().contains("kept"));
    }
}

#[test]
fn a_table_knows_its_shape() {
    let table = Table::new(2, vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!((table.shape(), table.get(1, 0), table.get(0, 2)), ([2, 2], Some(3.0), None));
    assert_eq!(table.rows().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(Table::new(0, vec![1.0]).shape(), [0, 0]);
}
