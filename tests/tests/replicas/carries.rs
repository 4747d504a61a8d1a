//! Carries: the values that a lane hands from one batch to the next, whichever replica runs it.

use std::path::Path;

use unisono::checkpoint::newest;
use unisono::data::{Field, Loader, Tokens, Width};
use unisono::{AdamW, Dense, Embedding, Error, FromFn, Gru, Layer, Lstm, Saving, Sequential, Trainer};

const WORDS: usize = 7;

/// Returns a loader of windows of `context` tokens out of `tokens`, in lanes.
fn text(tokens: usize, context: usize) -> Loader {
    let token = |i: usize| ((i * i + i / 5) % WORDS) as u8;
    let tokens = (0..=tokens).map(token).collect();
    Loader::new(Tokens::in_memory("text", tokens, Width::U8, context).unwrap()).lanes().threads(1)
}

fn model(recurrent: impl Layer + 'static) -> Sequential {
    Sequential::new().add(Embedding::new(WORDS, 5)).add(recurrent).add(Dense::new(WORDS))
}

/// Returns a builder of a trainer with four lanes in four shards.
fn trainer(recurrent: impl Layer + 'static, replicas: usize, data: &Loader) -> Result<Trainer, Error> {
    let builder = Trainer::builder(model(recurrent)).optimizer(AdamW::new(0.01)).seed(3).digest_every(1);
    builder.global_batch(4).shards(4).replicas(replicas).build(&data.fields()?)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// There are 18 windows: four whole batches in an epoch and one of two samples, in which two lanes and most
/// replicas have no sample.
#[test]
fn replicas_do_not_show_in_carries() {
    let data = text(18 * 3, 3);
    let run = |replicas: usize, recurrent: Box<dyn Layer>| {
        let mut trainer = trainer(recurrent, replicas, &data).unwrap();
        trainer.fit(&data, Some(&data), 2).unwrap();
        let carries: Vec<_> =
            ["1.h_l0", "1.h_l1", "1.c_l1"].iter().map(|n| trainer.carry(n).map(bits)).collect();
        (trainer.state_sha256().unwrap(), trainer.history().clone(), carries)
    };
    let lstm = || Box::new(Lstm::new(6).layers(2).stateful());
    let gru = || Box::new(Gru::new(6).layers(2).stateful());
    let (one, three) = (run(1, lstm()), run(3, lstm()));
    assert_eq!(one, three);
    let [h, _, c] = &one.2[..] else { panic!() };
    assert!(
        [h, c].iter().all(|carry| carry.as_ref().unwrap().iter().all(|&word| f32::from_bits(word) != 0.0))
    );
    assert_eq!(h.as_ref().map(Vec::len), Some(4 * 6));
    let gru = (run(1, gru()), run(3, gru()));
    assert_eq!(gru.0, gru.1);
    assert!(gru.0.2[1].is_some() && gru.0.2[2].is_none(), "a GRU has no c");
    // Carries change the answer, and a model without stateful layers has none.
    let stateless = run(1, Box::new(Lstm::new(6).layers(2)));
    assert!(stateless.0 != one.0 && stateless.1 != one.1);
    assert_eq!(stateless.2, [None, None, None]);
}

/// With fixed weights, 4 chunks of 5 tokens give what one window of 20 tokens gives.
#[test]
fn chunks_are_one_long_run() {
    fn outputs(recurrent: impl Layer + Copy + 'static, stateful: impl Layer + Copy + 'static) {
        let (chunks, whole) = (text(4 * 20, 5), text(4 * 20, 20));
        let mut long = trainer(recurrent, 2, &whole).unwrap();
        let mut short = trainer(stateful, 3, &chunks).unwrap();
        long.fit(&whole, None, 3).unwrap();
        let expected = long.predict(&whole).unwrap();
        // Each batch of chunks has the next 5 tokens of the same rows.
        short.step(&chunks.clone().batch(4).epoch(0).unwrap().next().unwrap().unwrap()).unwrap();
        for (name, _) in long.tensors() {
            short.set_tensor(&name, &long.tensor(&name).unwrap().unwrap()).unwrap();
        }
        assert!(short.carry("1.h_l0").unwrap().iter().all(|&x| x != 0.0));
        let found = short.predict(&chunks).unwrap();
        let part = |chunk: usize, row: usize| &found[(chunk * 4 + row) * 5 * WORDS..][..5 * WORDS];
        for (row, expected) in expected.chunks(20 * WORDS).enumerate() {
            let joined: Vec<f32> = (0..4).flat_map(|chunk| part(chunk, row).to_vec()).collect();
            assert_eq!(bits(&joined), bits(expected), "row {row}");
        }
        // Both start without carries each time.
        assert_eq!(bits(&short.predict(&chunks).unwrap()), bits(&found));
        let before = short.state_sha256().unwrap();
        let (once, again) = (short.evaluate(&chunks).unwrap(), short.evaluate(&chunks).unwrap());
        assert_eq!(once, again);
        assert_eq!(short.state_sha256().unwrap(), before, "what training carries is not touched");
        let loss = long.evaluate(&whole).unwrap().loss;
        assert!((once.loss - loss).abs() < 1e-6 * loss, "{} and {loss}", once.loss);
        // Single batches go on with the carries until these are reset.
        let batches: Vec<_> = chunks.clone().batch(4).epoch(0).unwrap().map(Result::unwrap).collect();
        short.reset_carries();
        let first = short.predict_batch(&batches[0]).unwrap();
        assert_eq!(bits(&first), bits(&found[..4 * 5 * WORDS]));
        assert_ne!(bits(&short.predict_batch(&batches[0]).unwrap()), bits(&first));
        short.reset_carries();
        assert_eq!(bits(&short.predict_batch(&batches[0]).unwrap()), bits(&first));
    }
    outputs(Lstm::new(6).layers(2), Lstm::new(6).layers(2).stateful());
    outputs(Gru::new(6), Gru::new(6).stateful());
}

/// A run of 14 steps in epochs of 3 batches and a part, saved within an epoch, goes on with its carries on
/// other replicas.
#[test]
fn carries_are_saved_and_come_back() {
    let data = text(18 * 3, 3);
    let lstm = || Lstm::new(6).stateful();
    let start = |replicas: usize, dir: &Path| {
        let mut trainer = trainer(lstm(), replicas, &data).unwrap();
        // However slow the disk is, step 3 is saved.
        trainer.save_to(Saving::new(dir).every(3).keep_every(3)).unwrap();
        trainer
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut expected = start(1, whole.path());
    expected.fit(&data, Some(&data), 2).unwrap();
    let mut first = start(2, parts.path());
    first.fit(&data, None, 1).unwrap();
    drop(first);
    // After the last checkpoint, that of the end of the epoch, is removed, the newest one is in the middle of
    // the epoch.
    std::fs::remove_dir_all(parts.path().join("checkpoints/step-00000005")).unwrap();
    let saved = newest(parts.path()).unwrap().unwrap();
    assert_eq!(saved.step, 3);
    assert_eq!(saved.contents.carries.keys().collect::<Vec<_>>(), ["1.c_l0", "1.h_l0"]);
    assert_eq!(saved.contents.carries["1.h_l0"].shape(), [4, 6]);
    let mut second = start(3, parts.path());
    assert_eq!(second.resume().unwrap().unwrap().step, 3);
    second.fit(&data, Some(&data), 2).unwrap();
    assert_eq!(second.state_sha256().unwrap(), expected.state_sha256().unwrap());
    // The bytes of the carries are part of the state.
    let before = second.state_sha256().unwrap();
    second.reset_carries();
    assert_ne!(second.state_sha256().unwrap(), before);
    drop(second);

    let mut stateless = trainer(Lstm::new(6), 1, &data).unwrap();
    stateless.checkpoints(parts.path(), 0).unwrap();
    let error = stateless.resume().unwrap_err().to_string();
    assert!(error.contains("the model has no carry \"1.c_l0\""), "{error}");
    drop(stateless);

    // A wider layer has other carries because it has other parameters, which is what to say.
    let mut wider = trainer(Lstm::new(7).stateful(), 1, &data).unwrap();
    wider.checkpoints(parts.path(), 0).unwrap();
    let error = wider.resume().unwrap_err().to_string();
    assert!(error.contains("does not fit the model") && error.contains("1.weight_ih_l0"), "{error}");
    assert!(!error.contains("carry"), "{error}");
}

/// One replica is lost within a step and one while it commits. No lane is lost.
#[test]
fn a_lost_replica_takes_no_carries_along() {
    let data = text(18 * 3, 3).batch(4);
    let states = |replicas: usize, faults: &[(&str, &str)]| {
        let scope = format!("carries-{replicas}-{}:", faults.len());
        for (point, action) in faults {
            fail::cfg(format!("{scope}{point}"), action).unwrap();
        }
        let builder = Trainer::builder(model(Lstm::new(6).stateful())).optimizer(AdamW::new(0.01)).seed(3);
        let builder = builder.global_batch(4).shards(4).replicas(replicas).fault_scope(&scope);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        let mut states = Vec::new();
        for batch in data.epoch(0).unwrap() {
            trainer.step(&batch.unwrap()).unwrap();
            states.push((trainer.state_sha256().unwrap(), trainer.carry("1.c_l0").map(bits)));
        }
        assert_eq!(states.len(), 5);
        (states, trainer.reports().iter().filter(|report| report.left.is_some()).count())
    };
    let (expected, _) = states(1, &[]);
    let lost =
        [("replica-1:step-1:segment-0", "return(lose)"), ("replica-2:step-3:segment-1", "return(panic)")];
    let (found, left) = states(4, &lost);
    assert_eq!(left, 2);
    assert_eq!(found, expected);
}

/// If all weights of a batch's samples are 0, nothing is trained and carries do not change.
#[test]
fn a_step_that_does_not_commit_carries_nothing() {
    let weigh = |weight: f32| {
        text(8 * 3, 3).map("weigh", move |sample, _| sample.set("w", Field::f32([], [weight]))).batch(4)
    };
    let data = weigh(0.0);
    let mut trainer = trainer(Gru::new(6).stateful(), 2, &data).unwrap();
    let batch = |loader: &Loader| loader.epoch(0).unwrap().next().unwrap().unwrap();
    assert!(!trainer.step(&batch(&data)).unwrap().committed);
    assert!(trainer.carry("1.h_l0").unwrap().iter().all(|&x| x == 0.0));
    assert!(trainer.step(&batch(&weigh(1.0))).unwrap().committed);
    let carried = trainer.carry("1.h_l0").unwrap().to_vec();
    assert!(carried.iter().all(|&x| x != 0.0));
    assert!(!trainer.step(&batch(&data)).unwrap().committed);
    assert_eq!(bits(trainer.carry("1.h_l0").unwrap()), bits(&carried));
}

#[test]
fn what_cannot_be_carried_is_an_error() {
    let data = text(18 * 3, 3);
    let refused = |recurrent: Box<dyn Layer>| match trainer(recurrent, 1, &data) {
        Ok(_) => panic!("this trainer must not be built"),
        Err(error) => error.to_string(),
    };
    let both_ways = refused(Box::new(Lstm::new(6).bidirectional().stateful()));
    assert!(both_ways.contains("1.lstm") && both_ways.contains("cannot run back in time"), "{both_ways}");
    let wrong = refused(Box::new(FromFn::new("wrong", |cx, x| {
        let carry = cx.carry("seen", &[2]);
        cx.keep(&carry, x);
        x.clone()
    })));
    assert!(wrong.contains("1.wrong") && wrong.contains("a carry [B, 2] cannot become [B, 3, 5]"), "{wrong}");
    let not_one = refused(Box::new(FromFn::new("wrong", |cx, x| {
        cx.keep(x, x);
        x.clone()
    })));
    assert!(not_one.contains("not a carry"), "{not_one}");

    // A sample that is left out moves the rows after it.
    let mut lstm = trainer(Lstm::new(6).stateful(), 1, &data).unwrap();
    let bad = |sample: &mut unisono::data::Sample, _: &mut unisono::data::Draws| {
        let first = sample.field("x").and_then(|x| x.values.as_i32()).map_or(0, |x| x[0]);
        if first == 2 { Err("unreadable".into()) } else { Ok(()) }
    };
    let with_gaps = data.clone().try_map("check", bad).skip_bad(10);
    let error = lstm.fit(&with_gaps, None, 1).unwrap_err().to_string();
    assert!(error.starts_with("carries: sample ") && error.contains("left out"), "{error}");
    assert_eq!(lstm.steps(), 1, "the first batch was whole");
}

/// A carry of a model without a path has a bare name, which may be that of a value of the trainer's own.
#[test]
fn a_carry_may_be_called_like_a_value_of_the_trainer() {
    let data = text(8 * 3, 3);
    let run = |name: &'static str| {
        let model = FromFn::new("own", move |cx, x| {
            let before = cx.carry(name, &[]);
            let kept = &before * 0.5 - 1.0;
            cx.keep(&before, &kept);
            let hidden = cx.apply("hidden", &Embedding::new(WORDS, 5), x);
            cx.apply("out", &Dense::new(WORDS), &hidden)
        });
        let builder = Trainer::builder(model).optimizer(AdamW::new(0.01)).seed(3);
        let mut trainer = builder.global_batch(4).shards(4).build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, Some(&data), 2).unwrap();
        assert!(trainer.carry(name).unwrap().iter().all(|&x| x < 0.0));
        let weights: Vec<_> =
            ["hidden.weight", "out.weight"].map(|n| bits(&trainer.tensor(n).unwrap().unwrap())).into();
        (weights, trainer.history().clone())
    };
    let expected = run("memory");
    for name in
        ["loss", "weight sum", "penalty", "gradient of the penalty", "loss weight", "output", "x", "lr"]
    {
        assert_eq!(run(name), expected, "{name}");
    }
}
