//! Prediction without a trainer: the trainer's bits, in order, from whatever rows come in.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use unisono::checkpoint::WeightPrecision;
use unisono::data::{Field, FieldSpec, Loader, Memory, Sample, Source, Values};
use unisono::{
    Context, CrossEntropy, Dense, Embedding, FromFn, Initializer, Lstm, MeanSquaredError, Model, Outputs,
    Predictor, PredictorBuilder, Sequential, Trainer, Var,
};
use unisono_tests::{CLASSES, FEATURES, blobs, loader, perceptron};

const SAMPLES: usize = 21;

fn data() -> Loader {
    Loader::new(blobs(SAMPLES, 8).unwrap()).threads(1)
}

fn samples() -> Vec<Sample> {
    let source = blobs(SAMPLES, 8).unwrap();
    (0..source.len()).map(|index| source.fetch(index).unwrap()).collect()
}

/// Trains a perceptron and exports it. Returns what it predicts.
fn exported(path: &Path) -> Vec<f32> {
    let mut trainer = perceptron(8).global_batch(8).replicas(1).build(&data().fields().unwrap()).unwrap();
    trainer.fit(&loader(40, 3).unwrap(), None, 1).unwrap();
    trainer.export(path, WeightPrecision::F32).unwrap();
    trainer.predict(&data()).unwrap()
}

fn open(path: &Path, replicas: usize) -> Predictor {
    Predictor::builder().replicas(replicas).batch(8).open(path).unwrap()
}

#[test]
fn every_way_in_gives_the_trainers_bits_on_any_number_of_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let expected = exported(&path);
    let array: Vec<f32> =
        samples().iter().flat_map(|s| s.field("x").unwrap().values.as_f32().unwrap()).copied().collect();
    for replicas in [1, 2, 3] {
        let mut predictor = open(dir.path(), replicas);
        assert_eq!(predictor.outputs(), [("output".to_owned(), vec![CLASSES])]);
        let all = predictor.predict(&data()).unwrap();
        assert_eq!(
            (&*all.get("output").unwrap().values, &*all.get("output").unwrap().shape),
            (&*expected, &[SAMPLES, CLASSES][..])
        );
        assert_eq!(predictor.predict_array(&array).unwrap().values, expected);
        let rows = predictor.rows(samples()).unwrap().map(|row| row.unwrap().values().to_vec());
        assert_eq!(rows.collect::<Vec<_>>().concat(), expected);
        let report = predictor.report();
        assert_eq!((report.samples, report.batches), (3 * SAMPLES as u64, 9));
        // Parameters alone: no gradients, and nothing that AdamW keeps.
        let parameters = (FEATURES * 8 + 8 + 8 * CLASSES + CLASSES) as u64;
        assert_eq!(report.memory.state, 4 * parameters);
        assert!(
            report.median > Duration::ZERO && report.median <= report.p95 && report.p95 <= report.longest
        );
    }
}

/// Too few values in one row and too many in the next make a batch of the right size.
#[test]
fn rows_that_are_shorter_and_longer_than_they_say_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    exported(&path);
    let lying = [FEATURES - 1, FEATURES + 1]
        .map(|values| Sample::new().with("x", Field::f32([FEATURES], vec![0.5; values])));
    let mut predictor = open(&path, 1);
    let error = predictor.rows(lying).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains(&format!("got {} values", FEATURES - 1)), "{error}");
}

#[test]
fn single_rows_of_many_threads_are_put_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let expected = exported(&path);
    let server = open(&path, 2).serve(Duration::from_millis(300)).unwrap();
    std::thread::scope(|scope| {
        for (sample, row) in samples().into_iter().zip(expected.chunks(CLASSES)) {
            let client = server.client();
            scope.spawn(move || assert_eq!(client.predict(sample).unwrap().values(), row));
        }
        // What does not fit fails alone.
        let client = server.client();
        scope.spawn(move || {
            let wrong = Sample::new().with("x", Field::f32([2], [0.0; 2]));
            assert!(client.predict(wrong).unwrap_err().to_string().contains("\"x\""));
            let nan = Sample::new().with("x", Field::f32([FEATURES], [f32::NAN; FEATURES]));
            assert!(client.predict(nan).unwrap_err().to_string().contains("NaN"));
            for values in [FEATURES - 1, FEATURES + 1] {
                let lying = Sample::new().with("x", Field::f32([FEATURES], vec![0.0; values]));
                let error = client.predict(lying).unwrap_err().to_string();
                assert!(
                    error.contains("\"x\"") && error.contains(&format!("got {values} values")),
                    "{error}"
                );
            }
        });
    });
    let client = server.client();
    let report = server.stop().unwrap().report();
    assert!(report.samples == SAMPLES as u64 && report.batches < SAMPLES as u64, "{report}");
    assert!(client.predict(samples().remove(0)).unwrap_err().to_string().contains("the server has ended"));
}

/// A draw depends on the seed and on the sample's position, and not on the batches.
#[test]
fn samples_draw_by_their_position() {
    let model = || {
        Model::from(FromFn::new("draws", |cx: &mut Context, x: &Var| {
            cx.apply("own", &Dense::new(CLASSES), x) * 0.0 + cx.normal(&[CLASSES])
        }))
    };
    let fields = data().fields().unwrap();
    let trainer = Trainer::builder(model()).loss(CrossEntropy::new()).global_batch(8).replicas(1).seed(5);
    let mut trainer = trainer.build(&fields).unwrap();
    let (expected, weights) = (trainer.predict(&data()).unwrap(), trainer.weights().unwrap());
    let distinct: BTreeSet<u32> = expected.iter().map(|x| x.to_bits()).collect();
    assert_eq!(distinct.len(), SAMPLES * CLASSES);
    let open = |batch: usize, seed: u64| {
        let builder = Predictor::builder().replicas(2).batch(batch).seed(seed);
        builder.open_tensors(model(), &fields[..1], &weights).unwrap()
    };
    let array: Vec<f32> =
        samples().iter().flat_map(|s| s.field("x").unwrap().values.as_f32().unwrap()).copied().collect();
    for batch in [4, 32] {
        let mut predictor = open(batch, 5);
        let all = predictor.predict(&data()).unwrap();
        assert_eq!(all.get("output").unwrap().values, expected);
        assert_eq!(predictor.predict_array(&array).unwrap().values, expected);
        let rows = predictor.rows(samples()).unwrap().map(|row| row.unwrap().values().to_vec());
        assert_eq!(rows.collect::<Vec<_>>().concat(), expected);
        // Answers of a server draw one after another.
        let server = predictor.serve(Duration::ZERO).unwrap();
        let client = server.client();
        let answers = samples().into_iter().map(|sample| client.predict(sample).unwrap().values().to_vec());
        assert_eq!(answers.collect::<Vec<_>>().concat(), expected);
    }
    assert_ne!(open(4, 6).predict(&data()).unwrap().get("output").unwrap().values, expected);
}

#[test]
fn a_model_of_ones_own_is_opened_by_its_code() {
    let model = || {
        Model::new(|cx, x| {
            let city = cx.apply("city", &Embedding::new(5, 3), &x["city"]);
            let price = cx.apply("price", &Dense::new(1), &(city + &x["numbers"]));
            Outputs::new().with("price", &price).with("twice", &(&price * 2.0))
        })
    };
    let house = |at: usize| {
        let sample = Sample::new().with("city", Field::i32([], [(at % 5) as i32]));
        sample
            .with("numbers", Field::f32([3], [at as f32, 1.0, -1.0]))
            .with("price", Field::f32([1], [at as f32]))
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("houses.safetensors");
    let specs = house(0).specs();
    let builder = Trainer::builder(model()).loss_of("price", MeanSquaredError, 1.0).replicas(1);
    let mut trainer = builder.build(&specs).unwrap();
    trainer.export(&path, WeightPrecision::F32).unwrap();
    assert!(Predictor::open(&path).is_err());
    let mut predictor = Predictor::builder().replicas(2).open_model(model(), &specs, &path).unwrap();
    assert_eq!(predictor.fields().len(), 2);
    let rows: Vec<_> = predictor.rows((0..40).map(house)).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 40);
    for row in &rows {
        let [price, twice] = ["price", "twice"].map(|name| row.get(name).unwrap().values[0]);
        assert_eq!(2.0 * price, twice);
    }
    let unknown = predictor.rows([house(0).with("city", Field::i32([], [7]))]).unwrap().next().unwrap();
    assert!(unknown.unwrap_err().to_string().contains("id 7 is not in 0..5"));
    // No row follows an error: those of the samples behind it would be taken for others'.
    let one_bad =
        (0..80).map(|at| if at == 37 { house(at).with("city", Field::i32([], [7])) } else { house(at) });
    let rows: Vec<_> = predictor.rows(one_bad).unwrap().collect();
    assert_eq!((rows.len(), rows.iter().filter(|row| row.is_ok()).count()), (33, 32));
}

/// The sample that an error names is counted over all batches.
#[test]
fn a_bad_sample_of_a_later_batch_is_named_by_its_place_among_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    exported(&path);
    let mut predictor = Predictor::builder().replicas(1).batch(2).open(&path).unwrap();
    let mut array = vec![0.5; 4 * FEATURES];
    array[3 * FEATURES] = f32::NAN;
    let named = "sample 3 (epoch 1, position 3): field \"x\" holds NaN";
    assert_eq!(predictor.predict_array(&array).unwrap_err().to_string(), named);
    let samples = array.chunks(FEATURES).map(|row| Sample::new().with("x", Field::f32([FEATURES], row)));
    let rows: Vec<_> = predictor.rows(samples).unwrap().collect();
    let [Ok(_), Ok(_), Err(error)] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(error.to_string(), named);
}

/// Scores, the sample's id, and a table that is the same for all samples.
fn joined() -> Model {
    Model::new(|cx, x| {
        let scores = cx.apply("scores", &Dense::new(2), &x["x"]);
        let table = cx.parameter("table", &[2, 3], Initializer::Normal(1.0));
        Outputs::new().with("scores", &scores).with("id", &x["id"]).with("table", &table)
    })
}

#[test]
fn an_output_of_integers_and_one_of_all_samples_are_rows_of_their_numbers() {
    let row = |at: i32| {
        let sample = Sample::new().with("x", Field::f32([3], [at as f32, 1.0, -1.0]));
        sample.with("id", Field::i32([], [at - 2])).with("y", Field::f32([2], [0.0, 1.0]))
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("joined.safetensors");
    let builder = Trainer::builder(joined()).loss_between("scores", "y", MeanSquaredError, 1.0);
    let mut trainer = builder.replicas(1).global_batch(4).build(&row(0).specs()).unwrap();
    trainer.export(&path, WeightPrecision::F32).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        (0..5).flat_map(|at| row(at).field(name).unwrap().values.as_f32().unwrap().to_vec()).collect()
    };
    let source = Memory::new("x", [3], Values::F32(floats("x"))).unwrap();
    let source = source.with("id", [], Values::I32((-2..3).collect())).unwrap();
    let source = source.with("y", [2], Values::F32(floats("y"))).unwrap();
    let by_trainer = trainer.predict_all(&Loader::new(source).threads(1)).unwrap();
    let mut predictor =
        Predictor::builder().replicas(2).batch(4).open_model(joined(), &row(0).specs(), &path).unwrap();
    assert_eq!(predictor.outputs()[1..], [("id".into(), vec![]), ("table".into(), vec![2, 3])]);
    let table = trainer.tensor("table").unwrap().unwrap();
    assert_eq!(by_trainer.get("id").unwrap().values, [-2.0, -1.0, 0.0, 1.0, 2.0]);
    assert_eq!(by_trainer.get("table").unwrap().shape, [5, 2, 3]);
    assert_eq!(by_trainer.get("table").unwrap().values, table.repeat(5));
    for (at, row) in predictor.rows((0..5).map(row)).unwrap().enumerate() {
        let row = row.unwrap();
        assert_eq!(row.get("id").unwrap().values, [at as f32 - 2.0]);
        assert_eq!(row.get("table").unwrap().values, table);
    }
    // An id that f32 does not hold is an error, and no other id.
    let large = row(0).with("id", Field::i32([], [(1 << 24) + 1]));
    let error = predictor.rows([large]).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the output \"id\" is 16777217, which f32 does not hold"), "{error}");
}

#[test]
fn an_output_made_of_a_whole_batch_is_refused() {
    let mean = |sum: fn(&Var) -> Var| {
        Model::new(move |cx, x| {
            let scores = cx.apply("scores", &Dense::new(2), &x["x"]);
            Outputs::new().with("scores", &scores).with("all", &sum(&scores))
        })
    };
    for sum in [|x: &Var| x.sum_shards(), |x: &Var| x.sum_samples(), |x: &Var| x - x.sum_shards()] {
        let specs = Sample::new().with("x", Field::f32([3], [0.0; 3])).with("y", Field::f32([2], [0.0; 2]));
        let builder = Trainer::builder(mean(sum));
        let builder = builder.loss_between("scores", "y", MeanSquaredError, 1.0);
        let error = builder.replicas(1).build(&specs.specs()).err().unwrap().to_string();
        assert!(error.contains("the output \"all\" depends on all samples of a batch"), "{error}");
    }
}

/// The mean of a text's words.
fn of_words() -> Sequential {
    let mean = FromFn::new("mean", |_, x| x.mean(&[1]));
    Sequential::new().add(Embedding::new(9, 4)).add(mean).add(Dense::new(2))
}

fn text(ids: &[i32]) -> Sample {
    Sample::new().with("x", Field::i32([ids.len()], ids))
}

/// Exports [`of_words`] for texts of so many words. Returns the fields of a sample.
fn export_of_words(path: &Path, longest: usize) -> Vec<FieldSpec> {
    let specs = text(&vec![0; longest]).with("y", Field::i32([], [0])).specs();
    let mut trainer = Trainer::builder(of_words()).replicas(1).build(&specs).unwrap();
    trainer.export(path, WeightPrecision::F32).unwrap();
    specs
}

#[test]
fn rows_of_several_lengths_come_back_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.safetensors");
    let specs = export_of_words(&path, 6);
    let mut predictor = Predictor::builder().replicas(1).open_model(of_words(), &specs, &path).unwrap();
    let texts = [text(&[1, 2, 3]), text(&[4; 6]), text(&[1, 2, 3]), text(&[1, 2, 3]), text(&[4])];
    let rows: Vec<_> = predictor.rows(texts).unwrap().map(|row| row.unwrap().values().to_vec()).collect();
    assert_eq!((rows.len(), &rows[0], &rows[2]), (5, &rows[2], &rows[3]));
    assert_ne!(rows[0], rows[1]);
    // The mean of equal words is the word, up to rounding.
    assert!(rows[1].iter().zip(&rows[4]).all(|(a, b)| (a - b).abs() < 1e-6));
}

/// What a predictor holds is bounded by its setting, however many lengths come, and no bit shows it.
#[test]
fn lengths_that_are_dropped_come_back_with_the_same_bits() {
    const LONGEST: usize = 40;
    const READY: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.safetensors");
    let specs = export_of_words(&path, LONGEST);
    let open = |replicas, lengths| {
        let builder = Predictor::builder().replicas(replicas).lengths(lengths);
        builder.open_model(of_words(), &specs, &path).unwrap()
    };
    let words = |length: usize| text(&(0..length).map(|at| (at * 5 + length) as i32 % 9).collect::<Vec<_>>());
    let row = |predictor: &mut Predictor, length| {
        predictor.rows([words(length)]).unwrap().next().unwrap().unwrap().values().to_vec()
    };
    let (mut all, mut few) = (open(1, LONGEST), open(1, READY));
    let mut kernels = Vec::new();
    for round in 0..3 {
        for length in 1..=LONGEST {
            assert_eq!(row(&mut few, length), row(&mut all, length), "length {length} in round {round}");
            let report = few.report();
            assert!(report.lengths <= READY + 1, "{}", report.lengths);
            kernels.push(report.replicas[0].kernels);
        }
        // A length that is in use stays.
        let loads = few.report().replicas[0].loads;
        (0..8).for_each(|_| assert_eq!(row(&mut few, LONGEST - 1), row(&mut all, LONGEST - 1)));
        assert_eq!(few.report().replicas[0].loads, loads);
    }
    let all = all.report();
    assert_eq!(all.lengths, LONGEST);
    let (most, unbounded) = (kernels.iter().max().unwrap(), all.replicas[0].kernels);
    assert!(4 * most < unbounded, "{most} kernels, and {unbounded} without a limit");
    // The same behind a server, on two replicas.
    let server = open(2, READY).serve(Duration::ZERO).unwrap();
    let client = server.client();
    let mut one = open(1, LONGEST);
    for length in (1..=LONGEST).step_by(3).chain(1..4) {
        assert_eq!(client.predict(words(length)).unwrap().values(), row(&mut one, length));
    }
    assert_eq!(server.stop().unwrap().report().lengths, READY + 1);
}

/// A model that panics when samples of a new length come fails them alone, and says why.
#[test]
fn a_panic_for_a_new_length_ends_no_server() {
    let picky = || {
        let head = FromFn::new("picky", |_, x| {
            assert!(x.dims()[0] != 5, "five is right out");
            x.mean(&[1])
        });
        Sequential::new().add(Embedding::new(9, 4)).add(head).add(Dense::new(2))
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.safetensors");
    let specs = export_of_words(&path, 6);
    let server = Predictor::builder().replicas(1).open_model(picky(), &specs, &path).unwrap();
    let server = server.serve(Duration::from_millis(50)).unwrap();
    std::thread::scope(|scope| {
        for length in [6, 5, 4, 5, 3] {
            let client = server.client();
            scope.spawn(move || match client.predict(text(&vec![1; length])) {
                Ok(_) => assert_ne!(length, 5),
                Err(error) => {
                    let error = error.to_string();
                    assert!(length == 5 && error.contains("panicked: five is right out"), "{error}");
                    assert!(error.contains("picky"), "{error}");
                }
            });
        }
    });
    assert_eq!(server.stop().unwrap().report().samples, 3);
    // A trainer of such a model says so, too, when it is built.
    let five = text(&[1; 5]).with("y", Field::i32([], [0])).specs();
    let error = Trainer::builder(picky()).replicas(1).build(&five).err().unwrap().to_string();
    assert!(error.contains("picky") && error.contains("panicked: five is right out"), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_errors_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    exported(&dir.path().join("model.safetensors"));
    let refused = |builder: PredictorBuilder| builder.open(dir.path()).err().unwrap().to_string();
    for builder in [Predictor::builder(), Predictor::builder().replicas(1)] {
        assert!(refused(builder.clone().shards(0)).contains("shards"), "{}", refused(builder.shards(0)));
    }
    let error = refused(Predictor::builder().replicas(1).lengths(0));
    assert!(error.contains("lengths"), "{error}");
    for batch in [0, usize::MAX] {
        let error = refused(Predictor::builder().replicas(1).batch(batch));
        assert!(error.contains("batch"), "{error}");
    }
    // The longest wait is until the batch is full, which the server's end does too.
    let server = open(dir.path(), 1).serve(Duration::MAX).unwrap();
    std::thread::scope(|scope| {
        for sample in samples().into_iter().take(8) {
            let client = server.client();
            scope.spawn(move || client.predict(sample).unwrap());
        }
    });
    assert_eq!(server.stop().unwrap().report().samples, 8);
}

#[test]
fn an_exported_model_says_what_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ids.safetensors");
    let ids = Sample::new().with("x", Field::i32([], [0])).with("y", Field::i32([], [0]));
    let model = Sequential::new().add(Embedding::new(9, 4));
    let mut trainer = Trainer::builder(model).replicas(1).build(&ids.specs()).unwrap();
    trainer.export(&path, WeightPrecision::F32).unwrap();
    let mut predictor = open(&path, 1);
    let row = predictor.rows([ids]).unwrap().next().unwrap().unwrap();
    assert_eq!(row.values(), &trainer.tensor("0.weight").unwrap().unwrap()[..4]);
    assert!(
        predictor.predict_array(&[0.0]).unwrap_err().to_string().contains("do not make samples of [] i32")
    );
    let other = Sample::new().with("input", Field::i32([], [0]));
    let error = predictor.rows([other]).unwrap().next().unwrap().unwrap_err().to_string();
    assert_eq!(error, "field \"x\": expected [] i32 in each sample, got fields [\"input\"]");
    // A file that is not there, one that is no model, and weights without a description.
    let refused = |name: &str| Predictor::open(dir.path().join(name)).err().unwrap().to_string();
    assert!(refused("none.safetensors").contains("none.safetensors"), "{}", refused("none.safetensors"));
    std::fs::write(dir.path().join("text.safetensors"), "no model").unwrap();
    assert!(refused("text.safetensors").contains("text.safetensors"), "{}", refused("text.safetensors"));
    std::fs::copy(&path, dir.path().join("weights.safetensors")).unwrap();
    let error = refused("weights.safetensors");
    assert!(error.contains("weights.json is not there") && error.contains("open_model"), "{error}");
    // A model that goes on from batch to batch has no single rows.
    let path = dir.path().join("lstm.safetensors");
    let series = Sample::new().with("x", Field::f32([2, 3], [0.0; 6])).with("y", Field::i32([2], [0; 2]));
    let mut trainer = Trainer::builder(Lstm::new(3).stateful()).replicas(1).build(&series.specs()).unwrap();
    trainer.export(&path, WeightPrecision::F32).unwrap();
    let mut predictor = open(&path, 1);
    assert!(predictor.rows([series]).err().unwrap().to_string().contains("no single rows"));
    assert_eq!(predictor.predict_array(&[0.0; 12]).unwrap().shape, [2, 2, 3]);
}
