//! Batches of several lengths: a program for each, in fits, evaluations and predictions.

use unisono::data::{Batch, Buckets, Field, Loader, Memory, Sequences, Values, mask};
use unisono::{
    Accuracy, AdamW, Auc, Builder, ConfusionMatrix, Context, CrossEntropy, Dense, Embedding, F1, FromFn, Gru,
    Initializer, Lstm, Matthews, MeanSquaredError, Model, Optimizer, Outputs, Phase, R2, Sequential, Sgd,
    Trainer, Var,
};

use crate::{Notes, others, sha256};

const SAMPLES: usize = 60;
const LONGEST: usize = 12;

/// Sequences of 1 to 12 ids, whose class is whether the id 3 is in them.
fn texts() -> Sequences {
    let text = |at: usize| (0..1 + at * 7 % LONGEST).map(move |i| (1 + (at * 5 + i * i * 3) % 9) as i32);
    let texts: Vec<Vec<i32>> = (0..SAMPLES).map(|at| text(at).collect()).collect();
    let labels: Vec<i32> = texts.iter().map(|text| i32::from(text.contains(&3))).collect();
    Sequences::labelled(texts, labels, 0).unwrap()
}

fn whole() -> Loader {
    Loader::new(texts()).shuffle(4).threads(1).try_map("mask", mask("mask", LONGEST))
}

fn bucketed() -> Loader {
    whole().buckets(Buckets::new(&texts().lengths(), [4, 8, LONGEST], &["x", "mask"]).unwrap())
}

/// The mean of the words' vectors, without the padding.
fn model() -> Model {
    Model::new(|cx, x| {
        let words = cx.apply("words", &Embedding::new(10, 6), &x["x"]);
        let mask = &x["mask"];
        let sum = (words * mask.add_axis()).sum(&[1]);
        let count = mask.sum(&[1]).add_axis();
        Outputs::new().with("class", &cx.apply("class", &Dense::new(2), &(sum / count)))
    })
}

fn builder(replicas: usize) -> Builder {
    let builder = Trainer::builder(model()).loss_between("class", "y", unisono::CrossEntropy::new(), 1.0);
    builder
        .metric_between("class", "y", Accuracy::new())
        .optimizer(AdamW::new(0.05))
        .global_batch(8)
        .replicas(replicas)
}

fn build(replicas: usize) -> Trainer {
    builder(replicas).build(&bucketed().fields().unwrap()).unwrap()
}

#[test]
fn buckets_train_evaluate_and_predict_with_the_same_bits_on_any_replicas() {
    let notes = Notes::default();
    let mut one = builder(1).observer(notes.clone()).build(&bucketed().fields().unwrap()).unwrap();
    one.fit(&bucketed(), Some(&bucketed()), 4).unwrap();
    assert!(notes.has("compiled for x [B, 4] i32, mask [B, 4]"), "{:?}", notes.0);
    let (first, last) = (&one.history()[0], &one.history()[3]);
    assert_eq!((last.train.samples, last.validation.as_ref().unwrap().samples), (60, 60));
    assert!(last.train.loss < first.train.loss);
    let predicted = one.predict(&bucketed()).unwrap();
    assert_eq!(predicted.len(), 2 * SAMPLES);
    for &replicas in others() {
        let mut trainer = build(replicas);
        trainer.fit(&bucketed(), Some(&bucketed()), 4).unwrap();
        assert_eq!(sha256(&mut trainer), sha256(&mut one));
        assert_eq!(trainer.history(), one.history());
        assert_eq!(trainer.predict(&bucketed()).unwrap(), predicted);
    }
    // What is cut off is padding alone, so the whole batches measure the same.
    let [cut, all] = [bucketed(), whole()].map(|loader| one.evaluate(&loader).unwrap());
    assert!((cut.loss - all.loss).abs() < 1e-5 * all.loss, "{cut:?} {all:?}");
    assert_eq!(cut.metrics, all.metrics);
}

/// With one length beside the longest the programs of two take turns, to the same bits.
#[test]
fn programs_of_few_lengths_are_kept_and_the_least_recently_used_are_compiled_again() {
    let mut all = build(1);
    all.fit(&bucketed(), Some(&bucketed()), 2).unwrap();
    for replicas in [1, 2] {
        let notes = Notes::default();
        let few = builder(replicas).lengths(1).audit_every(3).observer(notes.clone());
        let mut few = few.build(&bucketed().fields().unwrap()).unwrap();
        few.fit(&bucketed(), Some(&bucketed()), 2).unwrap();
        assert_eq!((sha256(&mut few), few.history()), (sha256(&mut all), all.history()));
        assert!(notes.all("compiled for x").len() > 4, "{:?}", notes.0);
        assert!(notes.has("programs for 1 lengths are kept, and those for x [B, "), "{:?}", notes.0);
        // Audits of programs that were dropped count too.
        assert_eq!((few.audits().steps, all.audits().steps), (few.steps(), all.steps()));
    }
    let refused = builder(1).lengths(0).build(&bucketed().fields().unwrap());
    assert!(refused.err().unwrap().to_string().contains("lengths: one length of samples at least"));
}

#[test]
fn a_run_in_buckets_resumes_within_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer =
        builder(2).callback(unisono::PauseAfter::steps(11)).build(&bucketed().fields().unwrap());
    let trainer_2 = trainer.as_mut().unwrap();
    trainer_2.checkpoints(dir.path(), 3).unwrap();
    trainer_2.fit(&bucketed(), None, 3).unwrap();
    drop(trainer);
    let mut trainer = build(3);
    trainer.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, 11);
    trainer.fit(&bucketed(), None, 3).unwrap();
    let mut undisturbed = build(1);
    undisturbed.fit(&bucketed(), None, 3).unwrap();
    assert_eq!(sha256(&mut trainer), sha256(&mut undisturbed));
}

/// The recurrent weight of a sequence of one step has no gradient, and is trained by longer ones.
#[test]
fn sequences_of_one_step_train_with_longer_ones() {
    let loader = || whole().buckets(Buckets::new(&texts().lengths(), [1, LONGEST], &["x", "mask"]).unwrap());
    let model = || Sequential::new().add(Embedding::new(10, 6)).add(Lstm::new(4).last()).add(Dense::new(2));
    for phases in [false, true] {
        let notes = Notes::default();
        let builder = Trainer::builder(model()).global_batch(8).replicas(1).observer(notes.clone());
        let mut trainer = match phases {
            true => builder.phase(Phase::new("all").optimizer(AdamW::new(0.05))),
            false => builder.optimizer(AdamW::new(0.05).average_weights(0.9)),
        }
        .build(&loader().fields().unwrap())
        .unwrap();
        trainer.fit(&loader(), None, 2).unwrap();
        assert!(notes.has("compiled for x [B, 1] i32"), "{:?}", notes.0);
    }
    // Its gradient is 0 in a batch of sequences of one step.
    let trainer =
        Trainer::builder(model()).optimizer(Sgd::new(0.1).momentum(0.9)).global_batch(8).replicas(1);
    let mut trainer = trainer.build(&loader().fields().unwrap()).unwrap();
    let weights = |trainer: &mut Trainer| {
        ["1.weight_ih_l0", "1.weight_hh_l0"].map(|name| trainer.tensor(name).unwrap().unwrap())
    };
    let before = weights(&mut trainer);
    let mut batches = loader().batch(8).epoch(0).unwrap().map(Result::unwrap);
    let short = batches.find(|batch| batch.i32("x").unwrap().len() == batch.len()).unwrap();
    trainer.step(&short).unwrap();
    let after = weights(&mut trainer);
    assert!(after[0] != before[0] && after[1] == before[1], "the recurrent weight alone stays");
    // A decay counts there too, whether the optimizer keeps something of the parameter or not.
    for optimizer in [Sgd::new(0.1).weight_decay(0.5), Sgd::new(0.1).weight_decay(0.5).momentum(0.9)] {
        let trainer = Trainer::builder(model()).optimizer(optimizer).global_batch(8).replicas(1);
        let mut trainer = trainer.build(&loader().fields().unwrap()).unwrap();
        let before = weights(&mut trainer);
        trainer.step(&short).unwrap();
        let after = weights(&mut trainer);
        let decayed = before[1].iter().zip(&after[1]).all(|(a, b)| (b - 0.95 * a).abs() <= 1e-6 * a.abs());
        assert!(decayed, "{:?} {:?}", before[1], after[1]);
    }
}

/// A label a word: metrics of labels keep the same sums, however many labels a sample has.
#[test]
fn metrics_of_a_label_a_word_count_the_words_of_all_lengths() {
    let tags = |loader: Loader| {
        loader.map("tags", |sample, _| {
            let words = sample.field("x").unwrap().values.as_i32().unwrap().to_vec();
            let tag = |&word: &i32| if word == 0 { -1 } else { word % 3 };
            let tags: Vec<i32> = words.iter().map(tag).collect();
            sample.set("y", Field::i32([tags.len()], tags));
        })
    };
    let model = || Sequential::new().add(Embedding::new(10, 6)).add(Dense::new(3));
    let fields = ["x", "y", "mask"];
    let bucketed = || {
        let buckets = Buckets::new(&texts().lengths(), [4, 8, LONGEST], &fields).unwrap();
        tags(whole()).buckets(buckets)
    };
    let builder = Trainer::builder(model())
        .loss(CrossEntropy::new().ignore_index(-1))
        .metric(F1::macro_average(3).ignore_index(-1))
        .metric(Matthews::new(3).ignore_index(-1))
        .metric(Auc::roc().one_vs_rest(3).ignore_index(-1))
        .metric(ConfusionMatrix::new(3).ignore_index(-1));
    let builder = builder.optimizer(AdamW::new(0.05)).global_batch(8).replicas(2);
    let mut trainer = builder.build(&bucketed().fields().unwrap()).unwrap();
    trainer.fit(&bucketed(), Some(&bucketed()), 2).unwrap();
    let [cut, all] = [bucketed(), tags(whole())].map(|loader| trainer.evaluate(&loader).unwrap());
    assert_eq!(cut.metrics.len(), 3);
    for (cut, all) in cut.metrics.iter().zip(&all.metrics) {
        assert!(cut.0 == all.0 && (cut.1 - all.1).abs() < 1e-6, "{cut:?} {all:?}");
    }
    assert_eq!(cut.tables, all.tables);
    // R2 has sums for each element of a sample.
    let numbers = |loader: Loader| {
        tags(loader).map("numbers", |sample, _| {
            let tags = sample.field("y").unwrap().values.as_i32().unwrap();
            let tags: Vec<f32> = tags.iter().map(|&tag| tag as f32).collect();
            sample.set("y", Field::f32([tags.len()], tags));
        })
    };
    let buckets = Buckets::new(&texts().lengths(), [4, 8, LONGEST], &fields).unwrap();
    let loader = numbers(whole()).buckets(buckets);
    let model = Sequential::new()
        .add(Embedding::new(10, 6))
        .add(Dense::new(1))
        .add(FromFn::new("flat", |_, x| x.flatten()));
    let builder = Trainer::builder(model).loss(MeanSquaredError).metric(R2).global_batch(8).replicas(1);
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    let error = trainer.fit(&loader, None, 1).unwrap_err().to_string();
    assert!(error.contains("the metric \"r2\" keeps ") && error.contains(" sums, and 38 of the"), "{error}");
}

#[test]
fn a_model_that_cannot_take_another_length_says_why() {
    let fit = |model: Model| {
        let builder = Trainer::builder(model).global_batch(8).replicas(1);
        let mut trainer = builder.build(&bucketed().fields().unwrap()).unwrap();
        trainer.fit(&bucketed(), None, 1).unwrap_err().to_string()
    };
    let places = FromFn::new("places", |cx: &mut Context, x: &Var| {
        x + cx.parameter("at", x.dims(), Initializer::Zeros)
    });
    let layers = Sequential::new()
        .add(Embedding::new(10, 6))
        .add(places)
        .add(FromFn::new("mean", |_, x| x.mean(&[1])));
    let error = fit(layers.add(Dense::new(2)).into());
    let expected = "expected [B, 12] i32, got [B, ";
    assert!(
        error.contains(expected) && error.contains("1.at") && error.contains("for the longest"),
        "{error}"
    );
    // A field that is not cut no longer fits one that is.
    let buckets = Buckets::new(&texts().lengths(), [4, 8, LONGEST], &["x"]).unwrap();
    let mut trainer = build(1);
    let error = trainer.fit(&whole().buckets(buckets), None, 1).unwrap_err().to_string();
    assert!(error.contains("a program for this length"), "{error}");
}

/// The targets of each word are as long as the words, and a prediction has none.
#[test]
fn a_prediction_of_another_length_needs_no_targets() {
    let ids = |at: i32| Values::I32((0..80).map(|i| (i + at) % 5).collect());
    let data = Memory::new("x", [8], ids(0)).unwrap().with("y", [8], ids(1)).unwrap();
    let data = Loader::new(data);
    let model = || Sequential::new().add(Embedding::new(5, 4)).add(Gru::new(4)).add(Dense::new(5));
    let words = |n: i32| Field::i32([1, n as usize], (0..n).map(|i| i % 5).collect::<Vec<_>>());
    let x = |n: i32| Batch::of([("x", words(n))]).unwrap();
    let build =
        || Trainer::builder(model()).global_batch(4).replicas(1).build(&data.fields().unwrap()).unwrap();
    let (mut one, mut other) = (build(), build());
    for length in [5, 8, 3, 5] {
        let alone = one.predict_batch_outputs(&x(length), &["output"]).unwrap();
        let with = Batch::of([("x", words(length)), ("y", words(length))]).unwrap();
        assert_eq!(alone, other.predict_batch_outputs(&with, &["output"]).unwrap(), "{length} words");
        assert_eq!(one.predict_batch(&x(length)).unwrap().len(), 5 * length as usize);
        // The program is that of batches with targets.
        one.step(&with).unwrap();
        other.step(&with).unwrap();
    }
    assert_eq!(sha256(&mut one), sha256(&mut other));
}

/// The number of answers is the length of the longest text by chance, and stays that.
#[test]
fn a_target_as_long_as_the_longest_samples_may_have_a_length_of_its_own() {
    let (texts, answers) = (Values::I32((0..80).map(|i| i % 5).collect()), Values::F32(vec![0.5; 80]));
    let data = Memory::new("x", [8], texts).unwrap().with("y", [8], answers).unwrap();
    let mean = FromFn::new("mean", |_, x: &Var| x.mean(&[1]));
    let model = Sequential::new().add(Embedding::new(5, 4)).add(mean).add(Dense::new(8));
    let builder = Trainer::builder(model).loss(MeanSquaredError).global_batch(4).replicas(1);
    let mut trainer = builder.build(&Loader::new(data).fields().unwrap()).unwrap();
    let words = |length: usize| {
        let words: Vec<i32> = (0..length).map(|i| i as i32 % 5).collect();
        Batch::of([("x", Field::i32([1, length], words))]).unwrap()
    };
    // The mean of the same word is the same for any number.
    let [five, eight] = [5, 8].map(|length| {
        let x = Field::i32([1, length], vec![3; length]);
        trainer.predict_batch(&Batch::of([("x", x)]).unwrap()).unwrap()
    });
    assert_eq!(five.len(), 8);
    assert!(five.iter().zip(&eight).all(|(five, eight)| (five - eight).abs() < 1e-6));
    assert_eq!(trainer.predict_batch(&words(3)).unwrap().len(), 8);
}

/// The texts that are held out may all be shorter than those to train on.
#[test]
fn validation_samples_may_be_shorter() {
    let bytes = |length: usize| Values::I32((0..16 * length).map(|i| (i % 5) as i32).collect());
    let data = |length: usize| {
        let texts = Memory::new("x", [length], bytes(length)).unwrap();
        Loader::new(texts.with("y", [], Values::I32(vec![1; 16])).unwrap())
    };
    let mean = || FromFn::new("mean", |_, x: &Var| x.mean(&[1]));
    let model = || Sequential::new().add(Embedding::new(5, 4)).add(mean()).add(Dense::new(2));
    let (train, held_out) = (data(8), data(6));
    let build = || {
        let builder = Trainer::builder(model()).loss(CrossEntropy::new()).global_batch(8).replicas(1);
        builder.build(&train.fields().unwrap()).unwrap()
    };
    let (mut with, mut without) = (build(), build());
    with.fit(&train, Some(&held_out), 2).unwrap();
    without.fit(&train, None, 2).unwrap();
    let measured = with.history().last().unwrap().validation.clone().unwrap();
    assert_eq!(measured, without.evaluate(&held_out).unwrap());
    assert_eq!(sha256(&mut with), sha256(&mut without));
    // Shorter ones without labels, and longer ones, are refused before the first step.
    let unlabelled = Loader::new(Memory::new("x", [6], bytes(6)).unwrap());
    let mut refusing = build();
    let error = refusing.fit(&train, Some(&unlabelled), 1).unwrap_err().to_string();
    assert!(error.contains("no such field") && refusing.steps() == 0, "{error}");
    let error = build().fit(&train, Some(&data(9)), 1).unwrap_err().to_string();
    assert!(error.contains("expected [B, 8] i32, got [B, 9] i32"), "{error}");
}
