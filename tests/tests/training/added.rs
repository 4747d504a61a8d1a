//! Losses and metrics that a model adds by itself, without targets.

use unisono::cluster::{Fault, Script};
use unisono::data::{Batch, Field, Loader};
use unisono::{
    BarlowTwins, Builder, Cluster, Context, ConvTranspose1d, CrossEntropy, Dense, DropPath, Dropout,
    Embedding, Error, FromFn, InBatchSoftmax, LayerScale, Lstm, MeanSquaredError, Model, NtXent, Optimizer,
    Outputs, Phase, Predictor, Relu, Resize2d, Sequential, Sgd, SqueezeExcite, TimeDistributed, Trainer,
    TripletHard, Var, WeightNorm,
};
use unisono_tests::{CLASSES, FEATURES, loader, on_ranks};

use crate::sha256;

/// 50 samples, so that the last of four batches of 16 is ragged.
fn data() -> Loader {
    let all = loader(50, 5).unwrap();
    all.map("weight", |sample, draws| sample.set("weight", Field::f32([], [draws.range(0.5, 1.5)])))
}

/// An autoencoder that compares its output with its input by itself, and keeps its code short.
fn autoencoder() -> Model {
    let encoder = Sequential::new().add(Dense::new(5)).add(Relu).add(Dropout::new(0.2));
    let short = FromFn::new("short", |cx: &mut Context, code: &Var| {
        cx.loss("length", &code.square().sum(&[-1]), 0.25);
        cx.metric("largest", &code.max(&[-1]));
        code.clone()
    });
    Model::new(move |cx, x| {
        let code = cx.apply("encoder", &encoder, &x["x"]);
        let code = cx.apply("short", &short, &code);
        let y = cx.apply("decoder", &Dense::new(FEATURES), &code);
        cx.loss("distance", &(&y - &x["x"]).square(), 1.0);
        Outputs::new().with("picture", &y)
    })
}

fn built(builder: Builder, replicas: usize) -> Result<Trainer, Error> {
    let builder = builder.optimizer(Sgd::new(0.05)).global_batch(16).replicas(replicas);
    builder.build(&data().fields().unwrap())
}

fn trained(builder: Builder, replicas: usize) -> Trainer {
    let mut trainer = built(builder, replicas).unwrap();
    trainer.fit(&data(), Some(&data()), 2).unwrap();
    trainer
}

#[test]
fn a_model_trains_by_its_own_losses_the_same_on_any_replicas() {
    let mut one = trained(Trainer::builder(autoencoder()), 1);
    for epoch in one.history() {
        for measured in [&epoch.train, epoch.validation.as_ref().unwrap()] {
            let names: Vec<&str> = measured.metrics.iter().map(|(name, _)| &**name).collect();
            assert_eq!(names, ["short.length loss", "distance loss", "short.largest"]);
            let [length, distance] = [0, 1].map(|at| measured.metrics[at].1);
            assert!(
                (measured.loss - (distance + 0.25 * length)).abs() < 1e-6 * measured.loss,
                "{measured:?}"
            );
        }
    }
    let names: Vec<String> = one.predict_all(&data()).unwrap().iter().map(|p| p.name.to_string()).collect();
    assert_eq!(names, ["picture"]);
    for replicas in [2, 3, 7] {
        let mut other = trained(Trainer::builder(autoencoder()), replicas);
        assert_eq!(sha256(&mut other), sha256(&mut one), "{replicas} replicas");
        assert_eq!(other.history(), one.history());
    }
}

/// What a model adds is what the same loss with a target is, bit for bit, weights included.
#[test]
fn a_loss_of_the_models_own_is_that_with_a_target() {
    let model = |adds: bool| {
        Model::new(move |cx, x| {
            let y = cx.apply("dense", &Dense::new(FEATURES), &x["x"]);
            if adds {
                cx.loss("distance", &(&y - &x["x"]).square(), 1.0);
            }
            Outputs::new().with("y", &y)
        })
    };
    for weighs in [false, true] {
        let compared = Trainer::builder(model(false)).loss_between("y", "x", MeanSquaredError, 1.0);
        let own = Trainer::builder(model(true));
        let [compared, own] = match weighs {
            true => [compared.sample_weights_of("y", "weight"), own.sample_weights_of("distance", "weight")],
            false => [compared, own],
        };
        let [mut compared, mut own] = [compared, own].map(|builder| trained(builder, 2));
        assert_eq!(sha256(&mut own), sha256(&mut compared), "weights: {weighs}");
        assert_eq!(own.history(), compared.history());
    }
}

/// A number of the whole batch counts once, and an output can be minimised by itself: x - mean of the batch,
/// whose square is the variance of the batch.
#[test]
fn values_are_by_hand() {
    let model = Model::new(|cx, x| {
        let ones = x["x"].tape().constant(1.0).expand(unisono::Lead::Sample, &[]);
        let scaled = cx.apply("dense", &Dense::new(1).no_bias(), &x["x"]).reshape(&[]);
        cx.loss("total", &(scaled.sum_shards() / ones.sum_shards()), 2.0);
        Outputs::new().with("numbers", &x["x"].square())
    });
    let mut trainer = built(Trainer::builder(model).minimize("numbers", 1.0), 3).unwrap();
    let weight = trainer.tensor("dense.weight").unwrap().unwrap();
    let everything = data().batch(50).epoch(0).unwrap().next().unwrap().unwrap();
    let x = everything.field("x").unwrap().values.as_f32().unwrap().to_vec();
    let squares = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / x.len() as f64;
    let product = |row: &[f32]| row.iter().zip(&weight).map(|(x, w)| f64::from(x * w)).sum::<f64>();
    let total = x.chunks(FEATURES).map(product).sum::<f64>() / 50.0;
    let measured = trainer.evaluate(&data()).unwrap();
    let [numbers, own] = [0, 1].map(|at| measured.metrics[at].1);
    assert!((numbers - squares).abs() < 1e-5, "{numbers} {squares}");
    // Batches of 16, 16, 16 and 2 samples, each of which counts by its samples.
    assert!((own - total).abs() < 1e-5, "{own} {total}");
    assert!((measured.loss - numbers - 2.0 * own).abs() < 1e-6);
}

#[test]
fn phases_take_losses_of_the_model() {
    let phases = || {
        let outer = Phase::new("outer").trains(|name| name.starts_with("decoder")).minimize("distance", 1.0);
        let inner =
            Phase::new("inner").trains(|name| name.starts_with("encoder")).minimize("short.length", 2.0);
        Trainer::builder(autoencoder()).phase(outer).phase(inner)
    };
    let mut one = trained(phases(), 1);
    let names: Vec<&str> = one.history()[0].train.metrics.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["distance loss", "short.length loss", "short.largest"]);
    assert_eq!(sha256(&mut trained(phases(), 3)), sha256(&mut one));
    // A phase without a loss has those of the model.
    let all = || Trainer::builder(autoencoder()).phase(Phase::new("all").optimizer(Sgd::new(0.05)));
    let weights = |mut trainer: Trainer| trainer.tensor("encoder.0.weight").unwrap().unwrap();
    assert_eq!(weights(trained(all(), 1)), weights(trained(Trainer::builder(autoencoder()), 1)));
}

/// A model, more settings of the builder, and words of the error.
type Wrong = (fn(&mut Context, &Var), fn(Builder) -> Builder, &'static str);

#[test]
fn what_cannot_be_added_says_why() {
    let problem = |add: fn(&mut Context, &Var), change: fn(Builder) -> Builder| {
        let model = Model::new(move |cx, x| {
            let y = cx.apply("dense", &Dense::new(3), &x["x"]);
            add(cx, &y);
            Outputs::new().with("scores", &y)
        });
        built(change(Trainer::builder(model)), 1)
            .map_or_else(|error| error.to_string(), |_| "it is taken".into())
    };
    let same = |builder| builder;
    let own: fn(&mut Context, &Var) = |cx, y| cx.loss("own", &y.square(), 1.0);
    let cases: [Wrong; 9] = [
        (own, same, "it is taken"),
        (
            |cx, y| (0..2).for_each(|_| cx.loss("own", y, 1.0)),
            same,
            "outputs and losses have the name \"own\"",
        ),
        (|cx, y| cx.loss("scores", y, 1.0), same, "outputs and losses have the name \"scores\""),
        (
            |cx, y| cx.loss("own", &y.sum_samples(), 1.0),
            same,
            "own: the model's value is [S; 3], not f32 numbers",
        ),
        (|cx, y| cx.loss("own", y, -1.0), same, "that of \"own\" counts -1 times"),
        (
            |cx, y| {
                if cx.is_training() {
                    cx.loss("own", y, 1.0)
                }
            },
            same,
            "the model adds \"own\" in training but not in evaluations",
        ),
        (
            own,
            |builder| builder.minimize("other", 1.0),
            "the model has no output \"other\", only own, scores",
        ),
        (
            own,
            |builder| builder.class_weights([1.0, 2.0]),
            "\"own\" is a value of the model, which has no labels",
        ),
        (|cx, y| cx.metric("loss", y), |b| b.minimize("scores", 1.0), "a metric cannot have this name"),
    ];
    for (add, change, expected) in cases {
        let problem = problem(add, change);
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
}

/// Losses over the whole batch, whose last one is ragged and has 2 samples.
fn contrastive(rows: usize) -> Builder {
    let encoder = Sequential::new().add(Dense::new(8)).add(Relu).add(Dense::new(4));
    let model = Model::new(move |cx, x| {
        let views = ["a", "b"].map(|view| {
            cx.within(view, "view", |cx| {
                let noise = x["x"].normal_noise(&cx.stream());
                &x["x"] + noise * 0.1
            })
        });
        let codes = views.map(|view| cx.apply("encoder", &encoder, &view).reshape(&[1, 4]));
        Outputs::new().with("codes", &codes[0].concat(&[&codes[1]], 1)).with("code", &codes[0].flatten())
    });
    Trainer::builder(model)
        .loss_between("codes", "y", NtXent::new(0.5, rows), 1.0)
        .loss_between("codes", "x", InBatchSoftmax::new(0.25, rows), 0.5)
        .loss_between("codes", "weight", BarlowTwins::new(0.01), 0.1)
        .loss_between("code", "y", TripletHard::new(0.5, rows), 1.0)
}

#[test]
fn losses_over_the_batch_are_the_same_on_any_replicas() {
    let mut one = trained(contrastive(16), 1);
    assert!(one.history()[1].train.loss < one.history()[0].train.loss, "{:?}", one.history());
    for replicas in [2, 3, 7] {
        let mut other = trained(contrastive(16), replicas);
        assert_eq!(sha256(&mut other), sha256(&mut one), "{replicas} replicas");
        assert_eq!(other.history(), one.history());
    }
    let problem = built(contrastive(15), 1).unwrap().fit(&data(), None, 1).unwrap_err().to_string();
    assert!(problem.contains("global batches of up to 15, but this batch has 16"), "{problem}");
    for rows in [0, 65_537] {
        let problem = built(contrastive(rows), 1).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(problem.contains(&format!("{rows} rows are not in 1..=65536")), "{problem}");
    }
}

/// A replica is lost in the middle of a step, or a machine, and those that are left make the same bytes.
#[test]
fn losses_over_the_batch_survive_a_lost_replica_and_a_lost_machine() {
    let mut one = trained(contrastive(16), 1);
    let (expected, history) = (sha256(&mut one), one.history().clone());
    for (step, segment) in [(0, 0), (1, 1), (2, 2), (8, 1)] {
        let scope = format!("contrastive-{step}:");
        fail::cfg(format!("{scope}replica-1:step-{step}:segment-{segment}"), "return(lose)").unwrap();
        let mut other = trained(contrastive(16).fault_scope(&scope), 3);
        assert_eq!((sha256(&mut other), other.history()), (expected.clone(), &history), "step {step}");
        assert!(other.reports()[1].left.is_some(), "replica 1 is not lost in step {step}");
    }
    let run = |cluster: Cluster| -> Result<_, Error> {
        let mut trainer = built(contrastive(16).cluster(cluster), 1)?;
        trainer.fit(&data(), Some(&data()), 2)?;
        Ok((trainer.state_sha256()?, trainer.history().clone()))
    };
    for ended in on_ranks(2, Script::default(), run) {
        assert_eq!(ended.unwrap(), (expected.clone(), history.clone()));
    }
    for after in [15, 30, 55] {
        let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 0, after }] };
        let ended = on_ranks(3, script, run);
        assert!(ended[0].is_err(), "rank 0 is lost after {after} messages");
        for ended in ended.into_iter().skip(1) {
            assert_eq!(ended.unwrap(), (expected.clone(), history.clone()), "after {after} messages");
        }
    }
}

/// A layer that is applied again adds its loss again.
#[test]
fn a_layer_that_is_applied_again_adds_its_loss_again() {
    let short = FromFn::new("short", |cx: &mut Context, x: &Var| {
        cx.loss("length", &x.square(), 1.0);
        x.clone()
    });
    let model = Model::new(move |cx, x| {
        let y = cx.apply("dense", &Dense::new(3), &x["x"]);
        let once = cx.apply("short", &short, &y);
        let twice = cx.apply("short", &short, &(once * 2.0));
        Outputs::new().with("y", &twice)
    });
    let mut trainer = built(Trainer::builder(model), 1).unwrap();
    let measured = trainer.evaluate(&data()).unwrap();
    let names: Vec<&str> = measured.metrics.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["short.length loss", "short.length (2) loss"]);
    assert!((4.0 * measured.metrics[0].1 - measured.metrics[1].1).abs() < 1e-5);
}

/// Draws, rows that are moved, and layers that draw or keep a state, on a ragged batch too.
#[test]
fn new_layers_and_values_are_the_same_on_any_replicas() {
    fn builder() -> Builder {
        let frames = TimeDistributed::new(Sequential::new().add(Dense::new(4)).add(DropPath::new(0.25)));
        let model = Model::new(move |cx, x| {
            let rows = cx.apply("first", &Dense::new(24), &x["x"]).reshape(&[6, 4]);
            let ids = (cx.uniform(&[6]) * 6.0).to_i32();
            let moved = rows.gather_rows(&ids) + rows.segment_sum(&ids, 6) + cx.normal(&[6, 4]) * 0.1;
            let scale = cx.constant("scale", &[4], &[1.0, 0.5, 2.0, 0.1]);
            let sorted = moved.sort().0.cumulative_max(-1) * scale;
            let mut state = Vec::new();
            cx.within("encoder", "lstm", |cx| {
                let (all, last) = Lstm::new(4).with_state(cx, &rows, None, &[]);
                state = last;
                all
            });
            let decoded =
                cx.within("decoder", "lstm", |cx| Lstm::new(4).with_state(cx, &sorted, None, &state).0);
            let scaled = cx.apply("factor", &LayerScale::new(0.5), &decoded);
            let frames = cx.apply("frames", &frames, &scaled);
            let image = cx.apply("resize", &Resize2d::new([3, 5]).bicubic(), &frames.reshape(&[2, 3, 4]));
            let image = cx.apply("squeeze", &SqueezeExcite::new(2), &image).reshape(&[2, 15]);
            let wave = cx.apply("wave", &ConvTranspose1d::new(1, 3).stride(2), &image);
            Outputs::new().with("y", &cx.apply("last", &Dense::new(3), &wave.flatten()))
        });
        Trainer::builder(model).loss_of("y", CrossEntropy::new(), 1.0)
    }
    let mut one = trained(builder(), 1);
    for replicas in [2, 3, 7] {
        let mut other = trained(builder(), replicas);
        assert_eq!(sha256(&mut other), sha256(&mut one), "{replicas} replicas");
        assert_eq!(other.history(), one.history());
    }
}

/// An average starts where its weight does, follows it, and sends gradients on to what is before it alone.
#[test]
fn averages_of_weights_follow_them() {
    fn builder() -> Builder {
        let model = Model::new(|cx, x| {
            let first = cx.apply("first", &Dense::new(4), &x["x"]);
            let net = Sequential::new().add(Dense::new(3)).add(Dropout::new(0.25));
            // The average is there before the weight is trained, and twice.
            let slow = cx.apply_average("net", &net, &first, 0.75);
            let again = cx.apply_average("net", &net, &(&first * 2.0), 0.75);
            let trained = cx.apply("net", &net, &first.detach());
            cx.loss("near 1", &(&trained - 1.0).square(), 1.0);
            cx.loss("near -1", &(&slow + 1.0).square(), 1.0);
            Outputs::new().with("slow", &slow).with("again", &again).with("trained", &trained)
        });
        Trainer::builder(model)
    }
    // SAM computes gradients at shifted weights; the averages must not follow those.
    let mut sharp = built(builder().optimizer(Sgd::new(0.1).sharpness_aware(0.5)), 1).unwrap();
    let values = |trainer: &mut Trainer, name: &str| trainer.tensor(name).unwrap().unwrap();
    let own = values(&mut sharp, "net.0.weight");
    sharp.step(&data().batch(16).epoch(0).unwrap().next().unwrap().unwrap()).unwrap();
    assert_ne!(values(&mut sharp, "net.0.weight"), own);
    assert_close(&values(&mut sharp, "net.0.weight.average"), &own);
    let mut one = built(builder(), 1).unwrap();
    let names: Vec<String> = one.tensors().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().filter(|name| name.ends_with(".average")).count(), 2, "{names:?}");
    let mut expected = values(&mut one, "net.0.weight");
    assert!(expected.iter().any(|value| *value != 0.0));
    for batch in data().batch(16).epoch(0).unwrap() {
        assert_close(&values(&mut one, "net.0.weight.average"), &expected);
        let before = ["first.weight", "net.0.weight"].map(|name| values(&mut one, name));
        one.step(&batch.unwrap()).unwrap();
        let after = ["first.weight", "net.0.weight"].map(|name| values(&mut one, name));
        assert!(before[0] != after[0] && before[1] != after[1]);
        expected.iter_mut().zip(&before[1]).for_each(|(average, own)| *average += 0.25 * (own - *average));
    }
    assert_close(&values(&mut one, "net.0.weight.average"), &expected);
    // What predicts is the average, as it is.
    let found = one.predict_all(&data()).unwrap();
    assert_ne!(found.get("slow").unwrap().values, found.get("trained").unwrap().values);
    let mut one = trained(builder(), 1);
    for replicas in [2, 3, 7] {
        let mut other = trained(builder(), replicas);
        assert_eq!(sha256(&mut other), sha256(&mut one), "{replicas} replicas");
    }
    let refused =
        Model::new(|cx, x| Outputs::new().with("y", &cx.apply_average("net", &Dense::new(3), &x["x"], 1.5)));
    let error = built(Trainer::builder(refused).loss_of("y", CrossEntropy::new(), 1.0), 1).err().unwrap();
    assert!(error.to_string().contains("a decay of 1.5 is not in [0, 1]"), "{error}");
}

/// A weight that is computed from others has an average that starts where it does.
#[test]
fn averages_of_normalized_weights_start_where_these_do() {
    let model = Model::new(|cx, x| {
        let net = WeightNorm::new(Dense::new(3));
        let trained = cx.apply("net", &net, &x["x"]);
        let slow = cx.apply_average("net", &net, &x["x"], 1.0);
        cx.loss("near 1", &(&trained - 1.0).square(), 1.0);
        Outputs::new().with("slow", &slow).with("trained", &trained)
    });
    let mut trainer = built(Trainer::builder(model), 1).unwrap();
    let found = trainer.predict_all(&data()).unwrap();
    let start = found.get("slow").unwrap().values.clone();
    assert_eq!(start, found.get("trained").unwrap().values);
    trainer.fit(&data(), None, 1).unwrap();
    let found = trainer.predict_all(&data()).unwrap();
    assert_eq!(start, found.get("slow").unwrap().values);
    assert_ne!(start, found.get("trained").unwrap().values);
}

/// The row of an embedding's padding is zeros, whose length nothing can be divided by.
#[test]
fn a_normalized_row_of_zeros_stays_zeros() {
    let model = Model::new(|cx, x| {
        let net = WeightNorm::new(Embedding::new(CLASSES, 4).padding_idx(1));
        let rows = cx.apply("net", &net, &x["y"]);
        cx.loss("near 1", &(&rows - 1.0).square(), 1.0);
        Outputs::new().with("length", &rows.square().sum(&[-1]))
    });
    let mut trainer = built(Trainer::builder(model), 1).unwrap();
    trainer.fit(&data(), None, 1).unwrap();
    let batch = data().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    let lengths = trainer.predict_batch(&batch).unwrap();
    let ids = batch.field("y").unwrap().values.as_i32().unwrap().to_vec();
    assert!(ids.contains(&1));
    for (id, length) in ids.iter().zip(lengths) {
        assert!(if *id == 1 { length == 0.0 } else { length > 0.1 }, "{id}: {length}");
    }
}

fn assert_close(found: &[f32], expected: &[f32]) {
    let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far < 1e-6 && found.len() == expected.len(), "{far}");
}

/// Labels that only the model's own loss reads are no part of a prediction, of its fields and of ONNX.
#[test]
fn a_prediction_needs_no_field_that_only_an_own_loss_reads() {
    let model = || {
        Model::new(|cx, x| {
            let logits = cx.apply("logits", &Dense::new(CLASSES), &x["x"]);
            cx.loss("own", &-logits.log_softmax().take(&x["y"]), 1.0);
            Outputs::new().with("logits", &logits)
        })
    };
    let mut trainer = trained(Trainer::builder(model()), 1);
    let whole = data().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    let x = whole.field("x").unwrap().clone();
    let bare = Batch::of([("x", x.clone())]).unwrap();
    let unknown = Batch::of([("x", x), ("y", Field::i32([16], [-1; 16]))]).unwrap();
    let expected = trainer.predict_batch(&whole).unwrap();
    for batch in [&bare, &unknown] {
        assert_eq!(trainer.predict_batch(batch).unwrap(), expected);
        assert!(trainer.step(batch).is_err());
    }
    let (specs, weights) = (data().fields().unwrap(), trainer.weights().unwrap());
    let mut predictor = Predictor::builder().replicas(1).open_tensors(model(), &specs, &weights).unwrap();
    let names: Vec<String> = predictor.fields().iter().map(|field| field.name.to_string()).collect();
    assert_eq!(names, ["x"]);
    assert_eq!(predictor.predict_batch(&bare).unwrap().get("logits").unwrap().values, expected);
}
