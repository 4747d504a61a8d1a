//! Data that are held out, how they are read, the names of classes and what callbacks decide by are the same
//! on all machines: everything that decides an answer without being trained on.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use unisono::cluster::Script;
use unisono::data::{ContentHash, Coverage, DataError, FieldSpec, Loader, Memory, Sample, Source};
use unisono::{Cluster, EarlyStopping, Error, Observer, Plateau, ReduceOnPlateau, Trainer};
use unisono_tests::{blobs, loader, on_ranks, perceptron};

/// Samples whose fingerprint says nothing of their content, like pictures whose files have the same names and
/// sizes.
struct Files {
    memory: Memory,
    readable: bool,
}

impl Files {
    fn loader(seed: u64) -> Loader {
        Loader::new(Self { memory: blobs(40, seed).unwrap(), readable: true }).threads(1)
    }
}

impl Source for Files {
    fn len(&self) -> u64 {
        self.memory.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.memory.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.memory.fetch(index)
    }
    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        if !self.readable {
            return Err(DataError::other("no such file"));
        }
        self.memory.hash_content(samples, hash)
    }
}

fn trainer(cluster: Cluster) -> Trainer {
    perceptron(8).replicas(1).cluster(cluster).build(&loader(40, 5).unwrap().fields().unwrap()).unwrap()
}

fn scale(sample: &mut Sample, factor: f32) {
    sample.f32_mut("x").unwrap().iter_mut().for_each(|value| *value *= factor);
}

/// Returns the errors of two ranks, which each do this with the loader of their number.
fn errors(
    loaders: [fn() -> Loader; 2],
    with: impl Fn(&mut Trainer, &Loader) -> Result<(), Error> + Sync,
) -> Vec<String> {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let own = loaders[cluster.rank()]();
        let mut trainer = trainer(cluster);
        with(&mut trainer, &own)
    });
    ended.into_iter().map(|ended| ended.err().map(|error| error.to_string()).unwrap_or_default()).collect()
}

fn fit(trainer: &mut Trainer, held_out: &Loader) -> Result<(), Error> {
    trainer.fit(&loader(40, 5)?, Some(held_out), 1).map(drop)
}

#[test]
fn other_data_that_are_held_out_are_refused_by_name() {
    type Case<'a> = ([fn() -> Loader; 2], &'a str);
    let cases: [Case<'_>; 5] = [
        (
            [|| loader(20, 6).unwrap(), || loader(21, 6).unwrap()],
            "the number of the validation data 21, rank 0: 20",
        ),
        (
            [|| loader(20, 6).unwrap(), || loader(20, 7).unwrap()],
            "the order and the transforms of the validation",
        ),
        (
            [|| Loader::new(blobs(20, 6).unwrap()), || Loader::new(blobs(20, 7).unwrap())],
            "the fingerprint of the validation data",
        ),
        ([|| Files::loader(6), || Files::loader(7)], "the hash of the validation data's block 0 of "),
        (
            [
                || Loader::new(blobs(20, 6).unwrap().with_classes("y", ["cat", "dog"])),
                || Loader::new(blobs(20, 6).unwrap().with_classes("y", ["dog", "cat"])),
            ],
            "the classes of the validation data {\"y\": [\"dog\", \"cat\"]}, rank 0: {\"y\": [\"cat\", \"dog\"]}",
        ),
    ];
    for (loaders, wanted) in cases {
        for error in errors(loaders, fit) {
            assert!(error.starts_with(&format!("rank 1 (thread1): {wanted}")), "{wanted}: {error}");
        }
        for error in errors(loaders, |trainer, test| trainer.evaluate(test).map(drop)) {
            let wanted = wanted.replace("validation", "evaluated");
            assert!(error.starts_with(&format!("rank 1 (thread1): {wanted}")), "{wanted}: {error}");
        }
        for error in errors(loaders, |trainer, test| trainer.predict(test).map(drop)) {
            let wanted = wanted.replace("validation", "predicted");
            assert!(error.starts_with(&format!("rank 1 (thread1): {wanted}")), "{wanted}: {error}");
        }
    }
    // Augmentation of data that are held out, by its names, and a limit of batches.
    let plain = || loader(20, 6).unwrap();
    let augmented: fn() -> Loader = || loader(20, 6).unwrap().map("noise", |_, _| ());
    let limited: fn() -> Loader = || loader(20, 6).unwrap().limit_batches(1);
    for other in [augmented, limited] {
        for error in errors([plain, other], fit) {
            let wanted = "rank 1 (thread1): the order and the transforms of the validation data ";
            assert!(error.starts_with(wanted), "{error}");
        }
    }
    // Transforms of one name that do not do the same.
    let scaled: [fn() -> Loader; 2] = [
        || loader(20, 6).unwrap().map("noise", |sample, _| scale(sample, 1.0)),
        || loader(20, 6).unwrap().map("noise", |sample, _| scale(sample, 2.0)),
    ];
    for error in errors(scaled, fit) {
        let wanted = "rank 1 (thread1): the hash of the first transformed samples of the validation data ";
        assert!(error.starts_with(wanted), "{error}");
    }
    for error in errors(scaled, |trainer, data| trainer.fit(data, None, 1).map(drop)) {
        let wanted = "rank 1 (thread1): the hash of the first transformed samples of the training data ";
        assert!(error.starts_with(wanted), "{error}");
    }
    for error in errors(scaled, |trainer, data| trainer.predict(data).map(drop)) {
        assert!(error.contains("the first transformed samples of the predicted data"), "{error}");
    }
    // One machine validates and the other does not.
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (rank, held_out) = (cluster.rank(), loader(20, 6).unwrap());
        trainer(cluster).fit(&loader(40, 5).unwrap(), (rank == 0).then_some(&held_out), 1).map(drop)
    });
    for ended in ended {
        let error = ended.unwrap_err().to_string();
        assert_eq!(error, "rank 1 (thread1): the number of the validation data none, rank 0: 20");
    }
}

#[test]
fn the_same_data_are_compared_once() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (held_out, mut trainer) = (Files::loader(6), trainer(cluster));
        let data = loader(40, 5).unwrap();
        trainer.fit(&data, Some(&held_out), 2).unwrap();
        trainer.fit(&data, Some(&held_out), 3).unwrap();
        let evaluation = trainer.evaluate(&held_out).unwrap();
        let predicted = trainer.predict(&held_out).unwrap();
        (trainer.history().clone(), evaluation, predicted)
    });
    let held_out = Files::loader(6);
    let mut alone = trainer(Cluster::alone());
    alone.fit(&loader(40, 5).unwrap(), Some(&held_out), 3).unwrap();
    let (evaluation, predicted) = (alone.evaluate(&held_out).unwrap(), alone.predict(&held_out).unwrap());
    for ended in ended {
        assert_eq!(ended, (alone.history().clone(), evaluation.clone(), predicted.clone()));
    }
}

/// Keeps notes.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn content_that_a_machine_cannot_read_is_not_compared_and_that_is_said() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (notes, rank) = (Notes::default(), cluster.rank());
        let source = Files { memory: blobs(40, 6).unwrap(), readable: rank == 0 };
        let builder = perceptron(8).replicas(1).observer(notes.clone()).cluster(cluster);
        let mut trainer = builder.build(&loader(40, 5).unwrap().fields().unwrap()).unwrap();
        trainer.fit(&loader(40, 5).unwrap(), Some(&Loader::new(source)), 1).unwrap();
        std::mem::take(&mut *notes.0.lock().unwrap())
    });
    let wanted = "have not compared the content of the validation data: rank 1 (thread1): ";
    let told: Vec<&String> = ended[0].iter().filter(|note| note.contains("have not compared")).collect();
    assert!(told.len() == 1 && told[0].contains(wanted) && told[0].ends_with("no such file"), "{ended:?}");
}

#[test]
fn other_settings_of_callbacks_are_refused_by_name() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let patience = 2 + cluster.rank() as u32;
        let builder = perceptron(8).replicas(1).callback(EarlyStopping::lowest("loss").patience(patience));
        let data = loader(40, 5)?;
        builder.cluster(cluster).build(&data.fields()?)?.fit(&data, Some(&loader(20, 6)?), 1).map(drop)
    });
    for ended in ended {
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("rank 1 (thread1): what callbacks decide by "), "{error}");
        assert!(error.contains("patience 3") && error.contains("patience 2"), "{error}");
    }
    let ended = on_ranks(2, Script::default(), |cluster| {
        let builder = perceptron(8).replicas(1);
        let builder = if cluster.rank() == 0 {
            builder.callback(ReduceOnPlateau::new(Plateau::lowest("loss")))
        } else {
            builder
        };
        let data = loader(40, 5)?;
        builder.cluster(cluster).build(&data.fields()?)?.fit(&data, Some(&loader(20, 6)?), 1).map(drop)
    });
    for ended in ended {
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("rank 1 (thread1): what callbacks decide by none, rank 0: "), "{error}");
    }
}
